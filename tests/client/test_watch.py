"""One stream for all the prompts of a session (C3): what happens in the very moment in which something else does."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
import trio
import trio.testing

from governor.client import DaemonStreamError
from governor.client.events import AgentMessageChunk, TurnComplete
from governor.client.shapes import PromptAccepted
from governor.client.waiters import Waiters
from governor.client.watch import Watch

if TYPE_CHECKING:
    from governor.client.cursor import Cursor
    from governor.client.events import DaemonEvent
    from governor.client.source import EventSource
    from governor.client.watch import Watches

EPOCH = "e"


def piece(event_id: int, prompt_id: str) -> DaemonEvent:
    return AgentMessageChunk(
        type="session_update",
        id=event_id,
        prompt_id=prompt_id,
        data={},
        variant="agent_message_chunk",
        text=f"<{event_id}>",
    )


def end(event_id: int, prompt_id: str) -> DaemonEvent:
    return TurnComplete(type="turn_complete", id=event_id, prompt_id=prompt_id, data={}, stop_reason="end_turn")


class Source:
    """A session's log, read from a place; of what is read the test says when it comes."""

    def __init__(self, log: list[DaemonEvent | Exception]) -> None:
        self.log = log
        self.place = 0
        self.may_read = trio.Semaphore(0)

    async def next(self) -> DaemonEvent:
        await self.may_read.acquire()
        event = self.log[self.place]
        self.place += 1
        if isinstance(event, Exception):
            raise event
        return event

    def go_to(self, cursor: Cursor) -> None:
        self.place = cursor.last_id or 0

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Owner:
    """The other sessions' watches are in the same nursery."""

    def __init__(self, nursery: trio.Nursery, source: Source) -> None:
        self.nursery = nursery
        self.source = source

    def start(self, watch: Watch, cursor: Cursor) -> Source:
        self.source.go_to(cursor)
        self.nursery.start_soon(watch.run, cast("EventSource", self.source))
        return self.source

    def forget(self, watch: Watch) -> None:
        """There is one only."""


def watch_of(nursery: trio.Nursery, source: Source) -> Watch:
    return Watch(cast("Watches", Owner(nursery, source)), "s", Waiters(max_answer_bytes=10_000))


async def test_an_event_that_came_with_the_wish_to_read_again_is_read_in_its_order() -> None:
    """Else a prompt would begin with it, and pass over all that was told of it before."""
    source = Source([piece(1, "first"), piece(2, "first"), piece(3, "first"), end(4, "first"), end(5, "second")])
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            watch = watch_of(nursery, source)
            watch.waiters.begin_post()
            watch.waiters.begin_post()
            second = watch.accepted(PromptAccepted(prompt_id="second", last_event_id=2, event_epoch=EPOCH))
            await trio.testing.wait_all_tasks_blocked()
            source.may_read.release()  # its reader has the third event, and has not run yet
            first = watch.accepted(PromptAccepted(prompt_id="first", last_event_id=0, event_epoch=EPOCH))
            for _ in source.log:
                source.may_read.release()
            watch.end_post()
            watch.end_post()
        assert [event.id for event in iter(first.take, None)] == [1, 2, 3, 4]
        assert [event.id for event in iter(second.take, None)] == [5]
        assert first.result().text == "<1><2><3>"


async def test_a_fault_in_reading_reaches_who_waits_and_no_other_session(caplog: pytest.LogCaptureFixture) -> None:
    """The watches of all sessions are tasks of one nursery, which an exception would end."""
    source = Source([piece(1, "p"), ZeroDivisionError("a fault")])
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            watch = watch_of(nursery, source)
            watch.waiters.begin_post()
            waiter = watch.accepted(PromptAccepted(prompt_id="p", last_event_id=0, event_epoch=EPOCH))
            watch.end_post()
            source.may_read.release()
            source.may_read.release()
    assert waiter.settled
    with pytest.raises(DaemonStreamError, match=r"Reading events failed: ZeroDivisionError\('a fault'\)"):
        waiter.result()
    assert "reading the events of session s failed" in caplog.text
