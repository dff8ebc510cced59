"""Every error has the shape of one, and no input takes the service with it: protocol 1.5, A9, T2."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from api.errors import error_response, header_fields
from governor import errors
from governor.errors import GovernorError
from tests.api.harness import service

if TYPE_CHECKING:
    from trio.testing import MockClock

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "data",
    [b"{", b"nope", b'{"a": NaN}', b'{"a": Infinity}', b"\xff\xfe", b'"\xff"', b"[" * 100_000, b"1" * 5000, b"{}{}"],
    ids=["open", "word", "nan", "infinity", "utf16", "latin1", "deep", "long number", "two"],
)
async def test_a_body_that_says_it_is_json_and_is_not_gets_400(data: bytes, autojump_clock: MockClock) -> None:
    async with service() as up:
        for content_type in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"):
            answer = await up.ask("POST", "/session", data=data, headers={"Content-Type": content_type})
            assert (answer.status, answer.code) == (400, "invalid_json")
            assert answer.json["error"] == "Invalid JSON in request body"
        assert not up.governor.sessions


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (b"", JSON),
        (b"  \n", JSON),
        (b"[1]", JSON),
        (b"5", JSON),
        (b"null", JSON),
        (b'"text"', JSON),
        (b'{"sessionScope": "both"}', {}),
        (b'{"sessionScope": "both"}', {"Content-Type": "text/plain"}),
        (b"\xef\xbb\xbf{}", JSON),
        (b'{"__proto__": {"sessionScope": "both"}, "constructor": 1}', JSON),
    ],
)
async def test_what_is_no_json_object_counts_as_an_empty_one(
    data: bytes, headers: dict[str, str], autojump_clock: MockClock
) -> None:
    async with service() as up:
        assert (await up.ask("POST", "/session", data=data, headers=headers)).status == 200


async def test_a_compressed_json_body_is_refused(autojump_clock: MockClock) -> None:
    async with service() as up:
        answer = await up.ask("POST", "/session", data=b"\x1f\x8b", headers={**JSON, "Content-Encoding": "gzip"})
        assert (answer.status, answer.code) == (415, "unsupported_content_encoding")


async def test_a_body_over_the_limit_is_a_413_on_every_route(autojump_clock: MockClock) -> None:
    limits = {"max_body_bytes": 1000, "max_prompt_bytes": 1000}
    async with service(limits=limits) as up:
        for path in ("/session", "/session/x/prompt", "/v2/models/chat/infer", "/no/such/route"):
            answer = await up.ask("POST", path, data=b" " * 1001, headers=JSON)
            assert (answer.status, answer.code) == (413, "body_too_large"), path
            assert answer.json["limit"] == 1000
        assert (await up.ask("POST", "/session", data=b" " * 1000, headers=JSON)).status == 200
        assert not up.world.wires


@pytest.mark.parametrize("path", ["/", "/x", "/session/", "/session//prompt", "/Health", "/v2/x", "/é"])
async def test_an_unknown_route_is_a_404(path: str, autojump_clock: MockClock) -> None:
    async with service() as up:
        for method in ("GET", "POST", "DELETE", "BREW"):
            answer = await up.ask(method, path)
            assert (answer.status, answer.code) == (404, "not_found"), method


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/session", "OPTIONS, POST"),
        ("PUT", "/session/x/prompt", "OPTIONS, POST"),
        ("POST", "/session/x/events", "GET, HEAD, OPTIONS"),
        ("PATCH", "/session/x", "DELETE, OPTIONS"),
        ("POST", "/health", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_is_a_405_that_names_the_right_ones(
    method: str, path: str, allowed: str, autojump_clock: MockClock
) -> None:
    async with service() as up:
        answer = await up.ask(method, path)
        assert (answer.status, answer.code) == (405, "method_not_allowed")
        assert answer.headers["allow"] == allowed


async def test_a_fault_of_ours_is_a_500_that_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    async with service() as up:
        monkeypatch.setattr(up.governor, "create_session", broken)
        monkeypatch.setattr(up.governor, "model", broken)
        for path in ("/session", "/v2/models/chat/infer"):
            answer = await up.ask("POST", path, data=b'{"sessionScope": "thread"}', headers=JSON)
            assert (answer.status, answer.code) == (500, "internal_error"), path
            assert answer.json["error"] == "Internal server error"
        assert (await up.ask("GET", "/health")).status == 200


def every_error() -> list[type[GovernorError]]:
    found, unseen = [], [GovernorError]
    while unseen:
        kind = unseen.pop()
        found.append(kind)
        unseen.extend(kind.__subclasses__())
    return found


def test_every_error_of_the_tree_has_a_code_and_a_status() -> None:
    kinds = every_error()
    assert len(kinds) > len(vars(errors)["__annotations__"] or {}) + 25
    for kind in kinds:
        assert kind.code.replace("_", "").isalnum(), kind
        assert kind.code == kind.code.lower(), kind
        assert 400 <= kind.status < 600, kind
        if issubclass(kind, errors.RefusedError):
            assert kind.retry_after_s is not None, kind


def test_an_error_that_names_a_wait_says_so_in_its_head() -> None:
    error = errors.PromptQueueFullError("s", 5, 5)
    assert ("Retry-After", "5") in header_fields(error)
    response = error_response(error)
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "5"
    assert response.content_type == "application/json"
    json.dumps(error.body())
