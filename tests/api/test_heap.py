"""What start-up made is not walked for cycles again, nor are the sessions that live."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import trio

from api.heap import SESSIONS_STEP, settle_heap, settle_sessions

if TYPE_CHECKING:
    from trio.testing import MockClock


def test_the_collector_is_spared_what_start_up_made() -> None:
    made: list[list[int]] = [[] for _ in range(1000)]
    try:
        settle_heap()
        assert gc.get_freeze_count() > len(made)
        assert not any(each is made for each in gc.get_objects())
    finally:
        gc.unfreeze()


class Thing:
    """May be part of a cycle."""

    mine: Thing


def cycle() -> weakref.ref[Thing]:
    """Garbage that only the collector finds."""
    thing = Thing()
    thing.mine = thing
    return weakref.ref(thing)


async def test_sessions_that_live_are_not_walked_again_and_what_was_missed_is_found_when_they_are_gone(
    autojump_clock: MockClock,
) -> None:
    sessions = 0
    gc.collect()
    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle_sessions, lambda: sessions)
            made = Thing()
            sessions = SESSIONS_STEP - 1
            await trio.sleep(5)
            assert any(each is made for each in gc.get_objects()), "it is not worth it"
            sessions = 10 * SESSIONS_STEP
            await trio.sleep(5)
            assert not any(each is made for each in gc.get_objects())
            made.mine = made
            missed = weakref.ref(made)
            del made
            later = Thing()
            for sessions in (SESSIONS_STEP, 10 * SESSIONS_STEP):  # noqa: B007  # told by the closure
                await trio.sleep(5)
            assert any(each is later for each in gc.get_objects()), "no more of them than before"
            gc.collect()
            assert missed() is not None
            garbage = cycle()
            sessions = SESSIONS_STEP // 2
            await trio.sleep(5)
            assert missed() is None
            assert garbage() is None
            assert not any(each is later for each in gc.get_objects())
            nursery.cancel_scope.cancel()
    finally:
        gc.enable()
        gc.unfreeze()
