"""What start-up made is not walked for cycles again, nor are the sessions that live; freed memory is kept."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING

import pytest
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


PAGES_OF_ANSWERS = """
import resource, sys
from api.heap import keep_freed_memory

print(keep_freed_memory() if sys.argv[1] == "keep" else False)
for round in range(20):
    if round == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [b"x" * (2**20 - 64) for _ in range(16)]
    del pieces
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
"""Ten answers of 16 MiB, in pieces as they come, after ten others."""


def pages_of_answers(keep: str, **environment: str) -> tuple[bool, int]:
    """Whether the allocator was told to keep memory, and how many pages the system handed out."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PAGES_OF_ANSWERS, keep]
    done = subprocess.run(command, env={**known, **environment}, capture_output=True, text=True, check=True, timeout=60)
    kept, pages = done.stdout.split()
    return kept == "True", int(pages)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator can be told")
def test_answers_use_the_memory_of_those_before_them() -> None:
    """ADR-0019: without it, each of ten answers of 4096 pages takes most of them anew."""
    kept, pages = pages_of_answers("keep")
    assert kept
    assert pages < 4096
    _, pages = pages_of_answers("as it is")
    assert pages > 10 * 2048


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator can be told")
def test_who_sets_the_allocator_s_own_variables_is_heeded() -> None:
    kept, _ = pages_of_answers("keep", MALLOC_ARENA_MAX="2")
    assert not kept
