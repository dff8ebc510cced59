"""Who gets in to `/admin`, and who does not (A7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from api.guard import Guard
from tests.api.harness import AsgiExchange, service
from tests.api.operators import (
    ADMIN,
    API,
    AS_ADMIN,
    ID,
    TOKENS,
    identity,
)
from tests.shell.world import Plan

if TYPE_CHECKING:
    from trio.testing import MockClock


PATHS = [
    ("GET", "/admin"),
    ("GET", "/admin/"),
    ("GET", "/admin/identities"),
    ("GET", f"/admin/identities/{ID}"),
    ("GET", "/admin/events"),
    ("GET", "/admin/audit"),
    ("POST", "/admin/restart"),
    ("POST", f"/admin/identities/{ID}/claims/1/release"),
    ("GET", "/admin/nothing"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_without_an_admin_token_there_is_no_such_route(method: str, path: str, autojump_clock: MockClock) -> None:
    """A7: nothing tells it from a path that never existed."""
    async with service() as up:
        unknown = await up.ask(method, "/nothing-here", body={})
        for headers in ({}, AS_ADMIN):
            answer = await up.ask(method, path, body={}, headers=headers)
            assert (answer.status, answer.json) == (unknown.status, unknown.json) == (404, unknown.json)


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_every_wrong_token_gets_one_answer(method: str, path: str, autojump_clock: MockClock) -> None:
    """Missing, malformed, wrong, or the token of callers: nothing says which, nor whether the route exists."""
    wrong = [None, "", ADMIN, f"Basic {ADMIN}", f"Bearer {API}", f"Bearer {ADMIN[:-1]}", f"Bearer {ADMIN} x", "Bearer"]
    async with service(tokens={"admin": ADMIN, "api": API}) as up:
        answers = []
        for value in wrong:
            headers = {} if value is None else {"Authorization": value}
            answers.append(await up.ask(method, path, body={}, headers=headers))
        assert {answer.status for answer in answers} == {401}
        assert len({(answer.body, tuple(sorted(answer.headers.items()))) for answer in answers}) == 1
        assert up.app.operations.audit.before(None, 10) == []


async def test_the_admin_token_opens_admin_and_nothing_else(autojump_clock: MockClock) -> None:
    async with service(tokens={"admin": ADMIN, "api": API}) as up:
        assert (await up.ask("GET", "/admin/identities", headers=AS_ADMIN)).status == 200
        assert (await up.ask("GET", "/capabilities", headers=AS_ADMIN)).status == 401
        assert (await up.ask("GET", "/capabilities", headers={"Authorization": f"Bearer {API}"})).status == 200
        assert (await up.ask("GET", "/healthz")).status == 200


async def test_a_path_that_only_looks_like_admin_is_a_callers(autojump_clock: MockClock) -> None:
    async with service(tokens={"admin": ADMIN, "api": API}) as up:
        for path in ("/administrator", "/admins/identities", "/x/admin/identities", "/ADMIN/identities"):
            assert (await up.ask("GET", path, headers=AS_ADMIN)).status == 401, path
            assert (await up.ask("GET", path, headers={"Authorization": f"Bearer {API}"})).status == 404, path


async def test_the_gate_takes_no_path_for_another_than_the_routes_do(autojump_clock: MockClock) -> None:
    """Routing passes over further slashes at the beginning; the token of callers must open nothing by that."""
    for tokens in ({"admin": ADMIN, "api": API}, {"api": API}):
        async with service(tokens=tokens) as up:
            for path in ("//admin/identities", "///admin/identities", "/admin//identities", "/admin/identities/"):
                answer = await up.ask("GET", path, headers={"Authorization": f"Bearer {API}"})
                assert answer.status in {401, 404}, path
                assert "identities" not in answer.json, path


async def test_what_did_not_pass_the_gate_opens_nothing(autojump_clock: MockClock) -> None:
    """The routes ask the gate and do not trust the path."""
    async with service(tokens=TOKENS) as up:
        guard: Any = up.app.asgi_app
        behind = guard.app._app  # the gate is left out
        exchange = AsgiExchange(Guard(behind, max_body_bytes=100, max_in_flight=1), "GET", "/admin/identities")
        exchange.headers = AS_ADMIN
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run)
            assert (await exchange.whole()).code == "unauthorized"
            nursery.cancel_scope.cancel()


async def test_operators_get_in_when_everything_is_full(autojump_clock: MockClock) -> None:
    """Who has to find out why must not be refused because of it; a wrong token still opens nothing."""
    async with service(tokens=TOKENS, server={"max_in_flight": 1}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.append(Plan(seconds=60, body=b"{}"))
        nursery.start_soon(AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}").run)
        await trio.sleep(1)
        assert (await up.ask("GET", "/capabilities")).code == "too_many_requests_in_flight"
        assert (await identity(up))["credits"]["held"] == 1
        assert (await up.ask("GET", "/admin/identities")).status == 401
        nursery.cancel_scope.cancel()
