"""A client that disconnects at every possible moment of every route leaves the service as if it had not been there.

What a command changed before its client left stays changed, as a whole; what was made for the client alone goes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from api.guard import Guard
from api.hardened import ClientGoneError
from tests.api.harness import AsgiExchange, Service, service

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.session import Session

MOMENTS_MAX = 60
TEXT = {"prompt": [{"type": "text", "text": "1"}]}


@dataclass(slots=True, eq=False)
class Departing(AsgiExchange):
    """A client that is gone is told so, as the server does it."""

    async def _send(self, message: Any) -> None:
        if self._gone.is_set():
            raise ClientGoneError("gone")
        await AsgiExchange._send(self, message)


def tasks_below(task: trio.lowlevel.Task) -> int:
    return 1 + sum(tasks_below(child) for nursery in task.child_nurseries for child in nursery.child_tasks)


def picture(up: Service) -> dict[str, object]:
    """Everything that a client could leave behind."""
    guard = up.app.asgi_app
    assert isinstance(guard, Guard)
    root = trio.lowlevel.current_root_task()
    assert root is not None
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
        "tasks": tasks_below(root),
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

    def __str__(self) -> str:
        return f"{self.method} {self.path}{' busy' * self.busy}{' late' * self.late}"


ROUTES = [
    Route("GET", "/health"),
    Route("GET", "/capabilities"),
    Route("GET", "/daemon/status"),
    Route("GET", "/metrics"),
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
    Route("GET", "/session/S/turns/current"),
    Route("GET", "/session/S/events"),
    Route("GET", "/session/S/events", headers={"Last-Event-ID": "0"}, busy=True),
    Route("GET", "/session/S/status"),
    Route("PATCH", "/session/S/metadata", {"displayName": "named"}),
    Route("POST", "/session/S/heartbeat", {}),
    Route("POST", "/session/S/model", {"modelId": "chat"}),
    Route("POST", "/session/S/detach", {}),
    Route("DELETE", "/session/S"),
    Route("POST", "/v2/models/chat/generate", {"text_input": "1"}),
    Route("GET", "/nowhere"),
]


Outcome = tuple[dict[str, object], bool, int]


async def visit(route: Route, leaves_after: int | None, *, comes: bool = True) -> Outcome:
    """One request in a fresh service; the client leaves after so many steps of the scheduler, or stays.

    Returns:
        Everything that is there long after it, whether the answer was complete, and how many executions the model had
        for it.
    """
    async with service() as up:
        session = up.governor.sessions[await up.new_session()]
        if route.busy:
            await up.prompt(session.id, "2 busy")
        complete = False
        if comes:
            async with trio.open_nursery() as nursery:
                data = json.dumps(route.body).encode() if route.body is not None else b""
                headers = {"Content-Type": "application/json", **(route.headers or {})}
                exchange = Departing(
                    up.app, route.method, route.path.replace("/S", f"/{session.id}"), data=data, headers=headers
                )
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


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_whoever_leaves_at_whatever_moment_leaves_nothing(route: Route) -> None:
    def run(leaves_after: int | None, *, comes: bool = True) -> Outcome:
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(partial(visit, route, leaves_after, comes=comes), clock=clock)

    untouched, _, _ = run(None, comes=False)
    stayed, _, _ = run(None)
    moments = 0
    for moments in range(MOMENTS_MAX):
        after, complete, executions = run(moments)
        if complete and not route.path.endswith("/events"):
            assert after == stayed, moments
            break
        if route.made_for_the_client:
            assert after == untouched, moments
        else:
            assert after in (untouched, stayed), moments
        if route.path.endswith("/prompt"):
            assert executions == 0, "of a prompt whose caller has no 202, the model hears nothing"
    assert moments > 2, "the client really left in between"
