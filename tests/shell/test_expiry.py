"""Sessions that nobody uses are closed in time, and looking for them costs nothing by those that are not due (A5)."""

from __future__ import annotations

import gc
import weakref

import pytest
import trio

from governor.config import LimitsConfig
from governor.expiry import Expiry
from governor.session import Session
from tests.shell.harness import ask, service

IDLE_S, DETACHED_S = 1800, 60


class Watched(dict[str, Session]):
    """The living sessions; counts how often one is looked up, and cannot be walked."""

    looks = 0

    def get(self, *args: object) -> Session | None:  # type: ignore[override]
        self.looks += 1
        return super().get(*args)  # type: ignore[call-overload,no-any-return]

    def values(self) -> object:  # type: ignore[override]
        raise AssertionError("all sessions were walked")

    __iter__ = items = values  # type: ignore[assignment]


async def test_a_session_is_looked_at_once_in_the_shorter_time_however_many_there_are() -> None:
    async with service() as governed:
        sessions = Watched()
        limits = LimitsConfig(session_idle_timeout_ms=IDLE_S * 1000, session_detached_timeout_ms=DETACHED_S * 1000)
        closed: list[tuple[str, str]] = []
        expiry = Expiry(sessions, lambda: limits, lambda *what: closed.append(what))
        for _ in range(500):
            session = governed.governor.create_session()
            sessions[session.id] = session
            expiry.watch(session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expiry.run)
            await trio.sleep(10 * DETACHED_S + 5)
            assert 4_500 <= sessions.looks <= 5_000, "one look a minute each"
            nursery.cancel_scope.cancel()
        assert not closed


@pytest.mark.parametrize("left_after_s", [0, 1, 59, 60, 61, 100, 1000])
async def test_the_time_of_a_detached_session_counts_from_its_detachment(left_after_s: float) -> None:
    """Whenever that falls between two looks."""
    async with service() as governed:
        session = governed.governor.create_session()
        client = session.clients.register()
        await trio.sleep(left_after_s)
        session.clients.unregister(client)
        session.touch()
        await trio.sleep(DETACHED_S)
        assert not session.closed
        await trio.sleep(4)
        assert session.closed


@pytest.mark.parametrize("used_after_s", [0, 30, 59.5, 61, 1799])
async def test_the_time_of_an_idle_session_counts_from_its_last_use(used_after_s: float) -> None:
    async with service() as governed:
        session = governed.governor.create_session()
        await trio.sleep(used_after_s)
        session.touch()
        await trio.sleep(IDLE_S)
        assert not session.closed
        await trio.sleep(4)
        assert session.closed


async def test_an_id_that_is_used_again_and_again_is_not_watched_again_and_again() -> None:
    async with service() as governed:
        sessions = Watched()
        expiry = Expiry(sessions, LimitsConfig, lambda *_: None)
        for number in range(100):
            session = sessions["mine"] = governed.governor.create_session(session_id="mine")
            expiry.watch(session)
            if number < 99:
                governed.governor.close_session("mine")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expiry.run)
            await trio.sleep(DETACHED_S + 5)
            assert sessions.looks == 100
            await trio.sleep(DETACHED_S)
            assert sessions.looks == 101
            nursery.cancel_scope.cancel()


async def test_shorter_times_hold_as_soon_as_they_are_in_force() -> None:
    async with service() as governed:
        session = governed.governor.create_session()
        await trio.sleep(20)
        limits = governed.governor.config.limits.model_copy(update={"session_idle_timeout_ms": 10_000})
        governed.governor.reconfigure(governed.governor.config.model_copy(update={"limits": limits}))
        await trio.sleep(4)
        assert session.closed


async def test_a_closed_session_takes_no_memory_until_the_collector_comes() -> None:
    """Its log may hold megabytes."""
    async with service() as governed:
        gc.collect()
        gc.disable()
        try:
            session = governed.governor.create_session()
            ask(session, "1")
            await trio.sleep(5)
            seen = weakref.ref(session), weakref.ref(session.log)
            governed.governor.close_session(session.id)
            del session
            await trio.sleep(1)
            assert [each() for each in seen] == [None, None]
        finally:
            gc.enable()
