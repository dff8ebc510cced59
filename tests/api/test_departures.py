"""A client that disconnects at every possible moment of every route leaves the service as if it had not been there.

What a command changed before its client left stays changed, as a whole; what was made for the client alone goes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from api.guard import Guard
from api.hardened import ClientGoneError
from api.openapi import OPERATIONS
from tests.api.harness import AsgiExchange, Service, service
from tests.shell.harness import tasks_at_work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.session import Session

MOMENTS_MAX = 60
TEXT = {"prompt": [{"type": "text", "text": "1"}]}


@dataclass(slots=True, eq=False)
class Departing(AsgiExchange):
    """A client that is gone is told so, as the server does it.

    Attributes:
        cut_after: the client leaves after so many bytes of its body, which come one by one.
    """

    cut_after: int | None = None
    _given: int = 0

    async def _receive(self) -> Any:
        if self.cut_after is None:
            return await AsgiExchange._receive(self)
        await trio.lowlevel.checkpoint()
        if self._given < self.cut_after:
            self._given += 1
            return {"type": "http.request", "body": self.data[self._given - 1 : self._given], "more_body": True}
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._gone.is_set():
            raise ClientGoneError("gone")
        await AsgiExchange._send(self, message)


def picture(up: Service) -> dict[str, object]:
    """Everything that a client could leave behind."""
    guard = up.app.asgi_app
    assert isinstance(guard, Guard)
    return {
        "sessions": sorted(
            (
                len(session.clients),
                sum(session.clients._registrations.values()),
                session.pending_count,
                session.log.subscriber_count,
                len(session._places),
                session.display_name or "",
                session.served.config.name,
            )
            for session in up.governor.sessions.values()
        ),
        "in flight": guard.in_flight,
        "free": up.free,
        "acp": up.app.acp.statistics(),
        "draining": (up.governor.draining, up.governor.entrance.closed),
        "tasks": tasks_at_work(),
    }


@dataclass(frozen=True)
class Route:
    """A request.

    Attributes:
        made_for_the_client: what it makes goes, if the client did not get the whole answer.
        busy: the session has a running prompt.
        late: the client does not leave before that prompt has ended.
    """

    method: str
    path: str
    body: object = None
    headers: Mapping[str, str] | None = None
    made_for_the_client: bool = False
    busy: bool = False
    late: bool = False

    @property
    def streams(self) -> bool:
        """The answer has no end of its own."""
        return self.path.endswith("/events")

    @property
    def passes(self) -> bool:
        """Once everything has ended, it has changed nothing, even for a client that stayed."""
        answers = self.path.startswith("/v2/") or self.path.endswith("/generate")
        return not self.late and (self.method == "GET" or answers)

    def __str__(self) -> str:
        return f"{self.method} {self.path}{' busy' * self.busy}{' late' * self.late}"


ADMIN_TOKEN = "0123456789abcdef"
OPERATOR = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
OF_TRITON = [
    ("GET", "/v2"),
    ("GET", "/v2/health/live"),
    ("GET", "/v2/health/ready"),
    ("GET", "/v2/models/chat"),
    ("GET", "/v2/models/chat/versions/1"),
    ("GET", "/v2/models/chat/config"),
    ("GET", "/v2/models/chat/versions/1/config"),
    ("GET", "/v2/models/chat/ready"),
    ("GET", "/v2/models/chat/versions/1/ready"),
    ("GET", "/v2/models/chat/stats"),
    ("GET", "/v2/models/chat/versions/1/stats"),
    ("GET", "/v2/models/stats"),
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/chat/load"),
    ("POST", "/v2/repository/models/chat/unload"),
    ("GET", "/v2/models/chat/trace/setting"),
    ("POST", "/v2/models/chat/trace/setting"),
    ("GET", "/v2/trace/setting"),
    ("POST", "/v2/trace/setting"),
    ("GET", "/v2/logging"),
    ("POST", "/v2/logging"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("GET", "/v2/systemsharedmemory/region/r/status"),
    ("POST", "/v2/systemsharedmemory/region/r/register"),
    ("POST", "/v2/systemsharedmemory/region/r/unregister"),
    ("POST", "/v2/systemsharedmemory/unregister"),
]
OF_OPERATORS = [
    ("GET", "/admin/identities"),
    ("GET", "/admin/identities/b:m"),
    ("GET", "/admin/events"),
    ("POST", "/admin/restart"),
    ("POST", "/admin/identities/b:m/claims/1/release"),
    ("POST", "/admin/drain"),
    ("POST", "/admin/undrain"),
    ("POST", "/admin/reload"),
    ("GET", "/admin/audit"),
]
ROUTES = [
    Route("GET", "/health"),
    Route("GET", "/health", busy=True),
    Route("GET", "/healthz"),
    Route("GET", "/readyz"),
    Route("GET", "/capabilities"),
    Route("GET", "/openapi.json"),
    *(Route("GET", path) for path in ("/ui", "/ui/", "/ui/main.js")),
    Route("GET", "/daemon/status"),
    Route("GET", "/metrics"),
    *(Route(method, path, {} if method == "POST" else None) for method, path in OF_TRITON),
    *(Route(method, path, {} if method == "POST" else None, OPERATOR) for method, path in OF_OPERATORS),
    Route("POST", "/acp", INITIALIZE, made_for_the_client=True),
    Route("GET", "/acp", headers={"Accept": "text/event-stream"}),
    Route("DELETE", "/acp"),
    Route("GET", "/workspace///sessions"),
    Route("POST", "/session", {}, made_for_the_client=True),
    Route("POST", "/session", {"sessionScope": "thread"}, made_for_the_client=True),
    Route("POST", "/session/S/load", {}, made_for_the_client=True),
    Route("POST", "/session/S/resume", {}, made_for_the_client=True),
    Route("POST", "/session/S/branch", {"name": "branched"}, made_for_the_client=True),
    Route("POST", "/session/S/branch", {"name": "branched"}, made_for_the_client=True, busy=True),
    Route("POST", "/session/S/branch", {"name": "branched"}, made_for_the_client=True, busy=True, late=True),
    Route("POST", "/session/S/prompt", TEXT),
    Route("POST", "/session/S/prompt", TEXT, busy=True),
    Route("POST", "/session/S/generate", {"prompt": "1"}),
    Route("POST", "/session/S/generate", {"prompt": "1"}, busy=True),
    Route("POST", "/session/S/cancel", {}, busy=True),
    Route("GET", "/session/S/pending-prompts", busy=True),
    Route("DELETE", "/session/S/pending-prompts/x"),
    Route("DELETE", "/session/S/pending-prompts/P", busy=True),
    Route("GET", "/session/S/turns/current"),
    Route("GET", "/session/S/turns/P", busy=True),
    Route("GET", "/session/S/events"),
    Route("GET", "/session/S/events", headers={"Last-Event-ID": "0"}, busy=True),
    Route("GET", "/session/S/status"),
    Route("PATCH", "/session/S/metadata", {"displayName": "named"}),
    Route("POST", "/session/S/heartbeat", {}),
    Route("POST", "/session/S/model", {"modelId": "chat"}),
    Route("POST", "/session/S/detach", {}),
    Route("DELETE", "/session/S"),
    *(
        Route("POST", f"/v2/models/chat{version}/{kind}", {"text_input": "1"})
        for version in ("", "/versions/1")
        for kind in ("infer", "generate", "generate_stream")
    ),
    Route("GET", "/nowhere"),
]


Outcome = tuple[dict[str, object], bool, int]


async def scene(up: Service, route: Route) -> tuple[Session, str, str]:
    """What a request is about: the session, the id of its busy prompt, and the path with both in it."""
    session = up.governor.sessions[await up.new_session()]
    prompt_id = str((await up.prompt(session.id, "2 busy")).json["promptId"]) if route.busy else "none"
    named = {"S": session.id, "P": prompt_id}
    return session, prompt_id, re.sub(r"/([SP])(?=/|$)", lambda part: f"/{named[part[1]]}", route.path)


def departing(up: Service, route: Route, path: str, **more: Any) -> Departing:
    data = json.dumps(route.body).encode() if route.body is not None else b""
    headers = {"Content-Type": "application/json", **(route.headers or {})}
    return Departing(up.app, route.method, path, data=data, headers=headers, **more)


async def visit(route: Route, leaves_after: int | None, *, comes: bool = True) -> Outcome:
    """One request in a fresh service; the client leaves after so many steps of the scheduler, or stays.

    Returns:
        Everything that is there long after it, whether the answer was complete, and how many executions the model had
        for it.
    """
    async with service(tokens={"admin": ADMIN_TOKEN}) as up:
        session, _, path = await scene(up, route)
        complete = False
        if comes:
            async with trio.open_nursery() as nursery:
                exchange = departing(up, route, path)
                nursery.start_soon(exchange.run)
                await leave(exchange, session, leaves_after, late=route.late)
            complete = exchange.complete
        await trio.sleep(100)
        return picture(up), complete, len(up.world.executions) - route.busy


async def leave(exchange: AsgiExchange, session: Session, leaves_after: int | None, *, late: bool) -> None:
    if leaves_after is None:
        await trio.sleep(50)
    elif late:
        stream = session.subscribe(after_id=None, epoch=None)
        while (frame := await stream.next_frame()) is not None and b"turn_complete" not in frame.data:
            pass
        stream.close()
    for _ in range(leaves_after or 0):
        await trio.lowlevel.checkpoint()
    exchange.leave()


@pytest.mark.parametrize("route", [route for route in ROUTES if not route.passes], ids=str)
def test_whoever_leaves_at_whatever_moment_leaves_nothing(route: Route) -> None:
    def run(leaves_after: int | None, *, comes: bool = True) -> Outcome:
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(partial(visit, route, leaves_after, comes=comes), clock=clock)

    untouched, _, _ = run(None, comes=False)
    stayed, _, _ = run(None)
    moments = 0
    for moments in range(MOMENTS_MAX):
        after, complete, executions = run(moments)
        if complete and not route.streams:
            assert after == stayed, moments
            break
        if route.made_for_the_client:
            assert after == untouched, moments
        else:
            assert after in (untouched, stayed), moments
        if route.path.endswith("/prompt"):
            assert executions == 0, "of a prompt whose caller has no 202, the model hears nothing"
    # Trio runs what is ready in any order, so an answer may come after as little as two steps.
    assert moments > (0 if route.late else 1), "the client really left in between"


@pytest.mark.parametrize("route", [route for route in ROUTES if route.passes], ids=str)
async def test_whoever_asks_for_what_passes_leaves_nothing(
    route: Route, autojump_clock: trio.testing.MockClock
) -> None:
    """As above, one client after the other in one service, which is each time as it was."""
    async with service(tokens={"admin": ADMIN_TOKEN}) as up:
        _, _, path = await scene(up, route)
        await trio.sleep(10)
        untouched = picture(up)
        moments = 0
        for moments in range(MOMENTS_MAX):
            async with trio.open_nursery() as nursery:
                exchange = departing(up, route, path)
                nursery.start_soon(exchange.run)
                for _ in range(moments):
                    await trio.lowlevel.checkpoint()
                exchange.leave()
            await trio.sleep(10)
            assert picture(up) == untouched, moments
            if exchange.complete and not route.streams:
                break
        assert moments > 1, "the client really left in between"


@pytest.mark.parametrize("route", [route for route in ROUTES if route.body is not None and not route.late], ids=str)
async def test_whoever_leaves_in_the_middle_of_its_body_has_asked_for_nothing(
    route: Route, autojump_clock: trio.testing.MockClock
) -> None:
    """After each byte of it, be it the last but one: nothing is done, and nothing is left."""
    async with service(tokens={"admin": ADMIN_TOKEN}) as up:
        session, _, path = await scene(up, route)
        await trio.sleep(10)
        untouched, told = picture(up), session.log.last_id
        size = len(json.dumps(route.body))
        for sent in range(size):
            exchange = departing(up, route, path, cut_after=sent)
            exchange.leave()
            await exchange.run()
            assert exchange.status is None or exchange.status >= 400, sent
        await trio.sleep(10)
        assert picture(up) == untouched
        assert session.log.last_id == told
        assert len(up.world.executions) == route.busy


def test_every_route_is_visited() -> None:
    """By the OpenAPI document, which has every route of the application."""
    visited = {f"{route.method} {re.sub('/[SP](?=/|$)', '/x', route.path)}" for route in ROUTES}
    missed = [
        f"{operation.method} {operation.path}"
        for operation in OPERATIONS
        if not any(re.fullmatch(f"{operation.method} {as_pattern(operation.path)}", path) for path in visited)
    ]
    assert not missed, "add them to ROUTES above"


def as_pattern(template: str) -> str:
    return re.sub(r"\\{(\w+)\\}", lambda name: ".+" if name[1] == "cwd" else "[^/]+", re.escape(template))
