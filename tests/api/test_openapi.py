"""The OpenAPI document: valid, complete, and what the service serves. That answers keep to it, `conformance` sees."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from api.errors import PromptNotFoundError
from api.openapi import FAILURES, OPERATIONS, TAGS, document
from tests.api.conformance import DriftError, check_answer, check_event
from tests.api.harness import service
from tests.api.routes import routes_of
from tests.api.test_docs import section, table_of_routes

if TYPE_CHECKING:
    from trio.testing import MockClock

TOKEN = "0123456789abcdef"
HOW = (
    "describe it by an Operation in a module of api/openapi and name that module in api/openapi/__init__.py"
    " (its docstring says how)"
)
JSON_HEAD = {"content-type": "application/json"}


def described() -> set[tuple[str, str]]:
    return {(operation.method, operation.path) for operation in OPERATIONS}


@pytest.mark.parametrize("with_token", [False, True])
def test_it_is_valid(*, with_token: bool) -> None:
    OpenAPIV31SpecValidator(document(with_token=with_token)).validate()


async def test_it_is_served(autojump_clock: MockClock) -> None:
    async with service() as up:
        answer = await up.ask("GET", "/openapi.json")
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert answer.json == json.loads(json.dumps(document(with_token=False)))
        assert answer.json["openapi"].startswith("3.1.")


async def test_it_needs_the_token_and_says_so(autojump_clock: MockClock) -> None:
    async with service(tokens={"api": TOKEN}) as up:
        assert (await up.ask("GET", "/openapi.json")).status == 401
        answer = await up.ask("GET", "/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.json["paths"]["/session"]["post"]["security"] == [{"bearer": []}]
        assert answer.json["paths"]["/health"]["get"]["security"] == []
        assert answer.json["paths"]["/metrics"]["get"]["security"] == [{"bearer": []}, {}]


async def test_every_route_of_the_application_is_in_it_and_no_other(autojump_clock: MockClock) -> None:
    async with service() as up:
        there = {(method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path)) for method, path in routes_of(up.app)}
    missing = sorted(there - described())
    assert not missing, f"the OpenAPI document has no {missing}: {HOW}"
    gone = sorted(described() - there)
    assert not gone, f"the OpenAPI document has {gone}, and the application has not"


def test_it_has_every_route_that_the_page_has() -> None:
    """Whatever has no Quart rule is at least documented, so it is missed here."""
    templates = {re.sub(r"\{\w+\}", "*", path) for _, path in described()}
    shown = {re.sub(r":\w+", "*", path) for _, path in table_of_routes()}
    assert not shown - templates, HOW
    assert {path for path in templates - shown if "/versions/" not in path} == set()


def test_every_operation_has_an_id_a_tag_and_every_parameter_of_its_path() -> None:
    ids = [operation.id for operation in OPERATIONS]
    assert len(set(ids)) == len(ids)
    for operation in OPERATIONS:
        assert operation.tag in TAGS, operation
        assert not operation.summary.endswith("."), operation
        names = {parameter.name for parameter in operation.parameters if parameter.place == "path"}
        assert names == set(re.findall(r"\{(\w+)\}", operation.path)), operation


def test_its_error_codes_are_those_of_the_page_with_their_status() -> None:
    page = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", section("Error codes"), re.MULTILINE))
    below = set(re.findall(r"`(\w+)`", section("Error codes").rpartition("\n\n")[2]))
    told = {code: status for code, status in page.items() if status.isdigit() and code in FAILURES}
    assert told == {code: str(FAILURES[code].status) for code in FAILURES if code not in below}
    # An answer of another shape, and what no route answers with but a prompt's terminal event has.
    assert set(page) - set(FAILURES) == {code for code, status in page.items() if not status.isdigit()} | {
        "not_ready",
        "backend_answered_error",
    }


def test_every_error_code_is_one_that_a_route_may_answer_with() -> None:
    used = {code for operation in OPERATIONS for code in operation.codes()}
    assert set(FAILURES) - used == {"method_not_allowed", "connect_not_supported"}, "of no route"


def test_the_checks_see_what_is_not_promised() -> None:
    """The guard of all the other tests: each kind of drift is found."""
    good = json.dumps(PromptNotFoundError("s", "p").body()).encode()
    path = "/session/s/turns/p"
    check_answer("GET", path, 404, JSON_HEAD, good)
    error = json.loads(good)
    drifts: list[tuple[str, str, int, dict[str, str], bytes]] = [
        ("GET", path, 404, JSON_HEAD, json.dumps({**error, "more": 1}).encode()),
        ("GET", path, 404, JSON_HEAD, json.dumps({**error, "promptId": 1}).encode()),
        ("GET", path, 404, JSON_HEAD, json.dumps({"code": error["code"], "error": "x"}).encode()),
        ("GET", path, 400, JSON_HEAD, good),
        ("GET", path, 404, {**JSON_HEAD, "retry-after": "5"}, good),
        ("GET", path, 404, {"content-type": "text/html"}, good),
        ("GET", path, 418, JSON_HEAD, b"{}"),
        ("GET", path, 200, JSON_HEAD, b"{"),
        ("GET", "/session/s/status", 404, JSON_HEAD, good),
        ("GET", "/nowhere", 200, JSON_HEAD, b"{}"),
        ("GET", "/session/s/events", 200, {"content-type": "text/event-stream"}, b""),
        ("DELETE", "/session/s", 204, {}, b"{}"),
    ]
    for drift in drifts:
        with pytest.raises(DriftError):
            check_answer(*drift)


def test_the_checks_see_an_event_that_is_not_promised() -> None:
    data = {"sessionId": "s", "promptId": "p", "stopReason": "end_turn"}
    event = {"id": 1, "v": 1, "type": "turn_complete", "promptId": "p", "data": data, "_meta": {"serverTimestamp": 1}}
    check_event(event)
    for drift in (
        {**event, "type": "turn_over"},
        {**event, "id": 0},
        {**event, "more": 1},
        {**event, "data": {**data, "stopReason": "tired"}},
        {name: value for name, value in event.items() if name != "promptId"},
    ):
        with pytest.raises(DriftError):
            check_event(drift)
