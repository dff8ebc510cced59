"""`/acp`: whatever happens in whatever order, each request has one response, and nobody leaves anything behind."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.api.acp import SSE, Acp, Messages, connect
from tests.api.harness import Events, Service, service
from tests.api.test_departures import Departing, picture

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

CLIENTS = 2
MOMENTS = 20
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""A failure is shown as it was found: to make it smaller takes minutes."""
STEPS = st.one_of(
    st.tuples(st.just("prompt"), st.integers(0, CLIENTS - 1), st.sampled_from(["0", "0.5", "4", "40"])),
    st.tuples(st.just("lost"), st.integers(0, CLIENTS - 1), st.integers(0, 30)),
    st.tuples(st.just("cancel"), st.integers(0, CLIENTS - 1)),
    st.tuples(st.just("drop"), st.integers(0, CLIENTS - 1), st.booleans()),
    st.tuples(st.just("reopen"), st.integers(0, CLIENTS - 1), st.booleans()),
    st.tuples(st.just("model"), st.integers(0, CLIENTS - 1)),
    st.tuples(st.just("bad"), st.integers(0, CLIENTS - 1)),
    st.tuples(st.just("rest"), st.just(0), st.sampled_from(["0", "4"])),
    st.tuples(st.just("wait"), st.just(0), st.sampled_from([0, 0.001, 0.5, 5])),
    st.tuples(st.just("delete"), st.integers(0, CLIENTS - 1)),
    st.tuples(st.just("close"), st.integers(0, CLIENTS - 1)),
)


@dataclass
class Reading:
    """Reads one stream until it ends."""

    exchange: Departing
    told: list[tuple[int | None, dict[str, Any]]]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)

    async def run(self) -> None:
        with self.scope:
            while self.exchange.status is None and not self.exchange.ended.is_set():
                await self.exchange._changed.wait()
            if self.exchange.status == 200:
                messages = Messages(Events(self.exchange), self.told)
                while await messages.next() is not None:
                    pass
        self.ended.set()

    async def end(self, *, loses: bool) -> None:
        if loses:
            self.scope.cancel()
        self.exchange.leave()
        await self.ended.wait()


@dataclass
class Client:
    """A client that reads its own stream all the time, and the session's when told to.

    Attributes:
        asked: ids of requests that were accepted for sure.
        maybe: ids of those of which it does not know.
        told: everything that it heard.
    """

    acp: Acp
    session_id: str
    nursery: trio.Nursery
    asked: list[int] = field(default_factory=list)
    maybe: list[int] = field(default_factory=list)
    told: list[tuple[int | None, dict[str, Any]]] = field(default_factory=list)
    reading: Reading | None = None
    broken: bool = False
    last_id: int = 0
    deleted: bool = False

    def open(self, headers: dict[str, str]) -> Reading:
        exchange = Departing(self.acp.up.app, "GET", "/acp", headers={**self.acp.headers, **SSE, **headers})
        reading = Reading(exchange, self.told)
        self.nursery.start_soon(exchange.run)
        self.nursery.start_soon(reading.run)
        return reading

    async def drop(self, *, loses: bool) -> None:
        """The session's stream ends, and what was under way is lost or not."""
        if self.reading is not None:
            await self.reading.end(loses=loses)
            self.reading = None
            self.broken = self.broken or loses

    async def reopen(self, *, claims: bool) -> None:
        """A new stream of the session; who may have lost something says what it has seen last."""
        await self.drop(loses=False)
        last = max((number for number, _ in self.told if number is not None), default=0)
        cursor = {"Last-Event-ID": str(last)} if claims or self.broken else {}
        self.reading = self.open({"Acp-Session-Id": self.session_id, **cursor})
        self.broken = self.broken and self.session_id not in self.acp.up.governor.sessions

    async def request(self, method: str, **params: object) -> None:
        """A request; one that is refused at once has had its answer."""
        request_id = next(self.acp.ids)
        message = {"jsonrpc": "2.0", "id": request_id, "method": method}
        answer = await self.acp.post({**message, "params": {"sessionId": self.session_id, **params}})
        self.last_id = request_id
        if answer.status == 202:
            self.asked.append(request_id)

    async def lose(self, moments: int) -> None:
        """A prompt whose `POST` breaks after so many steps of the scheduler."""
        request_id = next(self.acp.ids)
        params = {"sessionId": self.session_id, "prompt": [{"type": "text", "text": "1"}]}
        data = json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "session/prompt", "params": params}).encode()
        headers = {**self.acp.headers, "Content-Type": "application/json"}
        exchange = Departing(self.acp.up.app, "POST", "/acp", data=data, headers=headers)
        self.maybe.append(request_id)
        self.nursery.start_soon(exchange.run)
        for _ in range(moments):
            await trio.lowlevel.checkpoint()
        exchange.leave()
        await exchange.ended.wait()

    async def refused(self) -> None:
        """A prompt that is none: no event tells that its response was lost, so it may be."""
        await self.request("session/prompt", prompt=[])
        self.maybe += [self.asked.pop()] if self.asked[-1:] == [self.last_id] else []

    async def delete(self) -> None:
        """The client ends its connection."""
        self.deleted = True
        await self.acp.delete()

    async def wait(self, seconds: float) -> None:
        """Time passes."""
        await trio.sleep(seconds)

    def responses(self) -> Counter[int]:
        return Counter(message["id"] for _, message in self.told if "method" not in message)


ACTIONS: dict[str, Callable[..., Awaitable[object]]] = {
    "prompt": lambda client, text: client.request("session/prompt", prompt=[{"type": "text", "text": text}]),
    "lost": lambda client, moments: client.lose(moments),
    "cancel": lambda client: client.acp.notify("session/cancel", {"sessionId": client.session_id}),
    "drop": lambda client, loses: client.drop(loses=loses),
    "reopen": lambda client, claims: client.reopen(claims=claims),
    "model": lambda client: client.request("session/set_model", modelId="chat"),
    "bad": lambda client: client.refused(),
    "rest": lambda client, text: client.acp.up.prompt(client.session_id, text),
    "wait": lambda client, seconds: client.wait(seconds),
    "delete": lambda client: client.delete(),
    "close": lambda client: client.request("session/close"),
}


async def live(steps: Sequence[tuple[Any, ...]]) -> None:
    async with service(limits={"prompt_deadline_ms": 20_000}) as up, trio.open_nursery() as nursery:
        session_id = await up.new_session()
        clients = [Client(await connect(up), session_id, nursery) for _ in range(CLIENTS)]
        for client in clients:
            client.open({})
            await client.request("session/load")
            await client.reopen(claims=False)
        for action, number, *more in steps:
            await ACTIONS[action](clients[number], *more)
        for client in clients:
            await client.reopen(claims=True)
        await trio.sleep(30)  # everything has ended, by its deadline at the latest
        for client in clients:
            count = client.responses()
            assert set(count) <= {*client.asked, *client.maybe}
            assert max(count.values(), default=0) <= 1, count
            # Of a session that is gone, nobody can come back to the stream and say what was lost.
            if not client.deleted and not (client.broken and session_id not in up.governor.sessions):
                assert set(client.asked) <= set(count), (steps, client.told)
                in_order = [number for number, _ in client.told if number is not None]
                assert in_order == sorted(set(in_order)), "events come in order, each once"
        if session_id in up.governor.sessions:
            assert up.governor.sessions[session_id].pending_count == 0
        for client in clients:
            await client.acp.delete()
        await trio.testing.wait_all_tasks_blocked()
        assert len(up.app.acp) == 0
        for session in up.governor.sessions.values():
            assert (session.pending_count, session.log.subscriber_count) == (0, 0)
        nursery.cancel_scope.cancel()


@settings(max_examples=40, deadline=None, phases=PHASES)
@given(st.lists(STEPS, max_size=14))
def test_each_request_has_one_response_whatever_happens(steps: list[tuple[Any, ...]]) -> None:
    trio.run(live, steps, clock=trio.testing.MockClock(autojump_threshold=0))


# Whoever leaves, at whatever moment


async def no_connection(up: Service) -> tuple[Acp | None, str]:
    return None, ""


async def connected(up: Service) -> tuple[Acp, str]:
    acp = await connect(up)
    return acp, await acp.new_session()


def message(method: str, **params: object) -> Callable[[str], bytes]:
    def make(session_id: str) -> bytes:
        told = {"jsonrpc": "2.0", "id": "x", "method": method, "params": {"sessionId": session_id, **params}}
        return json.dumps(told).encode()

    return make


VISITS = [
    pytest.param("POST", False, message("initialize"), {}, id="initialize"),
    pytest.param("POST", True, message("session/new"), {}, id="session/new"),
    pytest.param("POST", True, message("session/prompt", prompt=[{"type": "text", "text": "1"}]), {}, id="prompt"),
    pytest.param("POST", True, message("session/load"), {}, id="session/load"),
    pytest.param("GET", True, None, {}, id="stream"),
    pytest.param("GET", True, None, {"Acp-Session-Id": "S", "Last-Event-ID": "0"}, id="session stream"),
    pytest.param("DELETE", True, None, {}, id="delete"),
]


async def visit(
    leaves_after: int | None,
    method: str,
    opened: bool,
    make: Callable[[str], bytes] | None,
    headers: dict[str, str],
) -> tuple[dict[str, object], bool]:
    """One request whose client leaves; long after it, everything that is there, and whether the answer was whole."""
    async with service() as up:
        acp, session_id = await connected(up) if opened else await no_connection(up)
        named = {name: value.replace("S", session_id) for name, value in headers.items()}
        sent = {**(acp.headers if acp is not None else {}), **named, **(SSE if method == "GET" else {})}
        data = make(session_id) if make is not None else b""
        exchange = Departing(
            up.app,
            method,
            "/acp",
            data=data,
            headers={**sent, **({"Content-Type": "application/json"} if data else {})},
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run)
            if leaves_after is None:
                await trio.sleep(50)
            for _ in range(leaves_after or 0):
                await trio.lowlevel.checkpoint()
            exchange.leave()
        if not opened and not exchange.complete:
            assert len(up.app.acp) == 0, "a connection of which nobody knows is none"
        await trio.sleep(130)
        assert len(up.app.acp) == 0
        return picture(up), exchange.complete


async def nobody() -> dict[str, object]:
    """What is there when nobody came."""
    async with service() as up:
        await trio.sleep(130)
        return picture(up)


@pytest.mark.parametrize(("method", "opened", "make", "headers"), VISITS)
def test_whoever_leaves_at_whatever_moment_leaves_nothing(
    method: str,
    opened: bool,
    make: Callable[[str], bytes] | None,
    headers: dict[str, str],
) -> None:
    """The connection lapses, its prompts are cancelled, its sessions go, and no task is left."""

    def run(leaves_after: int | None) -> tuple[dict[str, object], bool]:
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(partial(visit, leaves_after, method, opened, make, headers), clock=clock)

    untouched = trio.run(nobody, clock=trio.testing.MockClock(autojump_threshold=0))
    moments, complete = 0, False
    while moments < MOMENTS and not complete:
        after, complete = run(moments)
        assert after == untouched, moments
        moments += 1
    assert moments > 2, "the client really left in between"
