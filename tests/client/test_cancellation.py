"""The caller is cancelled at every moment of a prompt in turn: nothing leaks, and the count is right."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio

from governor.client import DaemonClient, DaemonUsageError
from tests.client.fake import SESSION, FakeServer, Respond, accept, chunk, complete, fake_server, tell
from tests.client.flavours import QUICK

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tests.client.fake import Request, Wire

STEPS_MAX = 1000
"""No prompt takes as many steps; one that does would never be swept to its end."""
QUIET_S = 0.15
"""A prompt that waits for its end takes no step for so long; then the sweep has come to its end."""


class AtStep(trio.abc.Instrument):
    """Does something once, right after the so-many-th step that any task takes."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        self.left = step
        self._act = act

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by trio after each step of each task."""
        del task
        self.left -= 1
        if self.left == 0:
            self._act()


class Counted(Coroutine[Any, Any, None]):
    """A coroutine that does something right before its so-many-th step."""

    def __init__(self, inner: Coroutine[Any, Any, None], step: int, act: Callable[[], object]) -> None:
        self._inner = inner
        self.left = step
        self._act = act

    def send(self, value: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self._act()
        return self._inner.send(value)

    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None, /) -> Any:
        return self._inner.throw(typ) if val is None else self._inner.throw(typ, val, tb)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        raise NotImplementedError


async def ask(client: DaemonClient, *, cancel_on_server: bool) -> None:
    async with client.stream(SESSION, "hello", cancel_on_server=cancel_on_server) as turn:
        async for _ in turn.text:
            pass


async def in_trio(client: DaemonClient, step: int, *, cancel_on_server: bool) -> bool:
    """Cancels after a step of any task; returns whether there was one."""
    with trio.CancelScope() as scope:
        instrument = AtStep(step, scope.cancel)
        trio.lowlevel.add_instrument(instrument)
        try:
            with trio.move_on_after(QUIET_S):
                await ask(client, cancel_on_server=cancel_on_server)
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return instrument.left <= 0


async def in_asyncio(client: DaemonClient, step: int, *, cancel_on_server: bool) -> bool:
    """The same by asyncio's own cancellation, before a step of the caller's task."""
    tasks: list[asyncio.Task[None]] = []
    counted = Counted(ask(client, cancel_on_server=cancel_on_server), step, lambda: tasks[0].cancel("at this step"))
    tasks.append(asyncio.get_running_loop().create_task(counted))
    await asyncio.wait(tasks, timeout=QUIET_S)
    tasks[0].cancel()
    await asyncio.wait(tasks)
    return counted.left <= 0


async def in_asyncio_by_scope(client: DaemonClient, step: int, *, cancel_on_server: bool) -> bool:
    """The same by a cancel scope of anyio."""
    scopes: list[anyio.CancelScope] = []

    async def scoped() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await ask(client, cancel_on_server=cancel_on_server)

    counted = Counted(scoped(), step, lambda: scopes[0].cancel() if scopes else None)
    task = asyncio.get_running_loop().create_task(counted)
    await asyncio.wait([task], timeout=QUIET_S)
    scopes[0].cancel()
    await task
    return counted.left <= 0


WAYS = (in_trio, in_asyncio, in_asyncio_by_scope)
each_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


async def settled(client: DaemonClient) -> None:
    """Nobody reads any events any more."""
    assert client._opened is not None
    with anyio.fail_after(5):
        while client._opened[0]._by_session:
            await anyio.sleep(0.001)


def sweep(way: Any, server: FakeServer, *, cancel_on_server: bool) -> int:
    """Cancels at one moment after the other; returns how many there were."""

    async def run() -> int:
        async with DaemonClient(server.url, retry=QUICK, max_pending_prompts_per_session=1) as client:
            for step in range(1, STEPS_MAX):
                happened = await way(client, step, cancel_on_server=cancel_on_server)
                assert client.pending_prompts_total == 0
                await settled(client)
                if not happened:
                    return step
        raise AssertionError("the sweep came to no end")

    steps = anyio.run(run, backend="trio" if way is in_trio else "asyncio")
    server.wait_connections(0)
    return steps


def numbered(then: Callable[[str], None]) -> Respond:
    """A 202 for each prompt, each with an id of its own."""
    numbers = itertools.count(1)

    def respond(request: Request, wire: Wire) -> None:
        prompt_id = f"p{next(numbers)}"
        accept(prompt_id)(request, wire)
        then(prompt_id)

    return respond


@each_way
def test_a_prompt_that_is_answered(way: Any) -> None:
    with fake_server(events=tell(chunk(1, "p1", "a"), chunk(2, "p1", "b"), complete(3, "p1"))) as server:
        assert sweep(way, server, cancel_on_server=False) > 5


@each_way
def test_a_prompt_that_waits(way: Any) -> None:
    with fake_server(events=tell()) as server:
        assert sweep(way, server, cancel_on_server=False) > 5


@each_way
def test_a_prompt_that_was_accepted_is_cancelled_at_the_server_if_that_was_asked_for(way: Any) -> None:
    """Also if the cancellation comes while the 202 is on its way."""
    accepted: list[str] = []
    with fake_server(prompt=numbered(accepted.append), events=tell()) as server:
        assert sweep(way, server, cancel_on_server=True) >= 3
        deleted = [line.rsplit("/", 1)[1] for line in server.seen if line.startswith("DELETE ")]
    assert accepted
    assert sorted(deleted) == sorted(accepted)


@each_way
def test_a_server_that_does_not_answer_holds_a_cancelled_caller_for_no_longer_than_a_moment(
    way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("governor.client.turn.LEAVE_S", 0.05)
    with fake_server(prompt=lambda _, wire: wire.wait_gone()) as server:
        assert sweep(way, server, cancel_on_server=True) >= 3


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("when", ["POST .*/prompt", "GET .*/events"])
def test_a_client_that_is_closed_ends_the_prompts_of_other_tasks(when: str, backend: str) -> None:
    """Also one whose 202 comes when the client is closed already."""
    closed = threading.Event()

    def late(request: Request, wire: Wire) -> None:
        if when.startswith("POST"):
            assert closed.wait(10)
        accept()(request, wire)

    async def run() -> None:
        async def ask_alone(client: DaemonClient) -> None:
            with pytest.raises(DaemonUsageError, match="closed"):
                await client.prompt(SESSION, "hello")
            assert client.pending_prompts_total == 0

        async with anyio.create_task_group() as tasks:
            async with DaemonClient(server.url) as client:
                tasks.start_soon(ask_alone, client)
                await anyio.to_thread.run_sync(server.wait_seen, when)
            closed.set()

    with fake_server(prompt=late, events=tell()) as server:
        anyio.run(run, backend=backend)
        server.wait_connections(0)
