"""Who may do what: every route that there is, with every token that there is (docs/security.md, "Tokens")."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from api.auth import is_admin_path, is_control_path
from tests.api.harness import Service, service
from tests.api.routes import routes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trio.testing import MockClock

API, ADMIN = "the-token-of-callers", "the-token-of-operators"
OPEN = {"/health", "/healthz", "/readyz"}
PAGE = {"/ui", "/ui/", "/ui/<asset>"}
"""The operators' page: files without a secret, open where there is a token for operators, and nowhere otherwise."""
CALLER = {"Authorization": f"Bearer {API}"}
OPERATOR = {"Authorization": f"Bearer {ADMIN}"}
NOBODYS: dict[str, str] = {}
ANOTHER = {"Authorization": "Bearer none-of-the-two-tokens"}


def routes(up: Service) -> set[tuple[str, str]]:
    """Every method and path of the application, a parameter being a name that exists nowhere."""
    found = {(method, path) for route_method, path in routes_of(up.app) for method in (route_method, "OPTIONS")}
    return {
        (method, re.sub(r"<memory:\w+>", "systemsharedmemory", path).replace("<anything:cwd>", "%2F"))
        for method, path in found
    }


def concrete(path: str) -> str:
    return re.sub(r"<\w+>", "1", path)


async def status(up: Service, method: str, path: str, headers: Mapping[str, str]) -> int:
    """Streams are let go as soon as their head is there: a GET becomes a HEAD where that is the same question."""
    answer = await up.ask("HEAD" if method == "GET" else method, concrete(path), headers=headers)
    return answer.status


async def test_every_route_is_closed_to_whoever_has_no_token_or_another(autojump_clock: MockClock) -> None:
    async with service(tokens={"api": API, "admin": ADMIN}) as up:
        walked = routes(up)
        assert len(walked) > 60
        for method, path in walked:
            for headers in (NOBODYS, ANOTHER):
                got = await status(up, method, path, headers)
                assert (got == 401) == (path not in OPEN | PAGE), (method, path, got)
        assert not up.world.wires, "nothing was called"


async def test_a_callers_token_opens_what_is_for_callers_and_no_more(autojump_clock: MockClock) -> None:
    async with service(tokens={"api": API, "admin": ADMIN}) as up:
        for method, path in routes(up):
            got = await status(up, method, path, CALLER)
            if is_admin_path(path):
                assert got == 401, (method, path, got)
            elif is_control_path(concrete(path)):
                assert got in {403, 200, 405}, (method, path, got)
                assert method == "OPTIONS" or got != 200, (method, path)
            else:
                assert got != 401, (method, path)


async def test_the_operators_token_opens_what_is_for_operators_and_no_more(autojump_clock: MockClock) -> None:
    async with service(tokens={"api": API, "admin": ADMIN}) as up:
        for method, path in routes(up):
            if method == "POST" and path in {"/admin/drain", "/admin/reload", "/admin/restart", "/admin/undrain"}:
                continue  # acts; that they are open is shown by their own tests
            got = await status(up, method, path, OPERATOR)
            opened = is_admin_path(path) or is_control_path(concrete(path)) or path in OPEN | PAGE
            assert (got != 401) == opened, (method, path, got)


async def test_without_an_operators_token_there_is_nothing_for_operators(autojump_clock: MockClock) -> None:
    async with service(tokens={"api": API}) as up:
        for method, path in routes(up):
            if (is_admin_path(path) or path in PAGE) and method != "HEAD":
                nowhere = await up.ask(method, "/no/such/route", headers=CALLER)
                here = await up.ask(method, concrete(path), headers=CALLER)
                assert (here.status, here.body) == (nowhere.status, nowhere.body) == (404, nowhere.body), (method, path)
            elif is_control_path(concrete(path)) and method not in {"OPTIONS", "HEAD"}:
                assert await status(up, method, path, CALLER) in {403, 405}, (method, path)


@pytest.mark.parametrize("prefix", ["//", "///", "/./", "/x/../", "/%2e/", "/%2F", "/admin/../"])
async def test_no_other_spelling_of_a_path_goes_around_the_gate(prefix: str, autojump_clock: MockClock) -> None:
    """The gate and the routes read a path in the same way, so that none is for operators to the one only."""
    async with service(tokens={"api": API, "admin": ADMIN}) as up:
        for path in (
            "admin/identities",
            "admin/drain",
            "admin",
            "ADMIN/identities",
            "admin/identities/",
            "admin%2Fdrain",
        ):
            spelt = f"{prefix}{path}"
            decoded = spelt.replace("%2F", "/").replace("%2e", ".")
            for method in ("GET", "POST"):
                answer = await up.ask(method, decoded, raw_path=spelt.encode(), headers=CALLER)
                assert answer.status in {401, 404, 405}, (method, spelt, answer.status)
        assert not up.governor.statistics().draining


async def test_a_token_is_asked_for_before_anything_is_read(autojump_clock: MockClock) -> None:
    """An unknown model, a malformed body, a full queue: nobody without a token learns of them."""
    async with service(tokens={"api": API}) as up:
        answers = [
            await up.ask("POST", "/v2/models/chat/infer", data=b"{}"),
            await up.ask("POST", "/v2/models/nothing/infer", data=b"{}"),
            await up.ask("POST", "/session/none/prompt", data=b"{"),
            await up.ask("GET", "/no/such/route"),
        ]
        assert len({(answer.status, answer.body) for answer in answers}) == 1
        assert answers[0].code == "unauthorized"
