"""The live state of `/admin/events` (A7, D13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from api.admin.views import state
from governor.recent import EVENTS_MAX
from tests.api.harness import service
from tests.api.operators import (
    AS_ADMIN,
    ID,
    TOKENS,
    break_call,
    call,
    look,
    watching,
)
from tests.shell.world import Fault

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock

    from api.views import View
    from governor.service import Governor


async def test_the_live_state_begins_with_the_whole_and_goes_on_with_changes(autojump_clock: MockClock) -> None:
    """D13: at once, in the shape of the list; nothing while only time passes."""
    async with service(tokens=TOKENS) as up, watching(up) as feed:
        assert await feed.until("state") == await look(up)
        began = trio.current_time()
        session = await up.new_session()
        changed = await feed.until("state")
        assert changed["sessions"]["live"] == 1
        assert trio.current_time() - began <= 0.3
        await up.prompt(session, "2")
        seen = [await feed.until("state")]
        while seen[-1]["identities"][0]["totals"]["answered"] < 1:
            seen.append(await feed.until("state"))
        assert len(seen) <= 2 * 4 + 3, "a few states a second at the most"
        assert any(one["identities"][0]["credits"]["free"] == 0 for one in seen)


async def test_a_listener_gets_four_states_a_second_at_the_most(autojump_clock: MockClock) -> None:
    """However much changes, and none of it is kept for a listener that does not read."""
    async with service(tokens=TOKENS) as up, watching(up) as feed, trio.open_nursery() as nursery:
        await feed.until("state")

        async def churn() -> None:
            while True:
                await call(up)
                await trio.sleep(0.05)

        nursery.start_soon(churn)
        began, seen = trio.current_time(), 0
        while trio.current_time() - began < 5:
            await feed.until("state")
            seen += 1
        assert 15 <= seen <= 21
        nursery.cancel_scope.cancel()


async def test_nothing_is_computed_while_nobody_listens(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """And for several listeners only once."""
    looks = []

    def counted(governor: Governor) -> View:
        looks.append(governor)
        return state(governor)

    monkeypatch.setattr("api.admin.stream.state", counted)
    async with service(tokens=TOKENS) as up:
        await trio.sleep(10)
        assert not looks
        async with watching(up) as one, watching(up) as two:
            await one.until("state")
            await two.until("state")
            await trio.sleep(5)
        assert 0 < len(looks) <= 25
        so_far = len(looks)
        await trio.sleep(10)
        assert len(looks) == so_far
        assert up.app.admin_feed.listeners == 0


async def test_readings_that_find_nothing_new_are_told_as_well(autojump_clock: MockClock) -> None:
    """Whoever looks at a poller sees that it gets answers, and when it waits for one; once a second will do."""
    async with service(tokens=TOKENS) as up, watching(up) as feed:
        await break_call(up)
        await trio.sleep(2)
        shown = [(await feed.until("state"))["identities"][0] for _ in range(6)]
        for _ in range(3):
            began = trio.current_time()
            state = (await feed.until("state"))["identities"][0]
            assert state["polling"]
            assert state["reading"]["ageMs"] <= 300
            assert trio.current_time() - began >= 0.5
        assert shown[-1]["reading"]["model"] == state["reading"]["model"]
        up.world.fault = Fault.HANGS
        while (state["readingWaitAgeMs"] or 0) < 500:
            state = (await feed.until("state"))["identities"][0]
        assert state["readingWaitAgeMs"] <= 1000


async def test_heartbeats_and_a_bounded_number_of_listeners(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS, limits={"heartbeat_interval_ms": 3000}) as up, watching(up) as feed:
        await feed.until("state")
        began = trio.current_time()
        assert await feed.events.next() == ": heartbeat"
        assert 2.9 <= trio.current_time() - began <= 3.4
        up.app.admin_feed.listeners = 16
        answer = await up.ask("GET", "/admin/events", headers=AS_ADMIN)
        assert (answer.status, answer.code) == (429, "subscriber_limit_exceeded")
        up.app.admin_feed.listeners = 1


async def test_the_live_state_ends_with_the_governor(autojump_clock: MockClock) -> None:
    """D13: it can hold no shutdown up; the last thing told is that it stops."""
    async with service(tokens=TOKENS) as up, watching(up) as feed:
        await feed.until("state")
        up.governor.drain()
        recent, final = await feed.next(), await feed.next()
        assert recent is not None
        assert recent[1]["events"][-1]["kind"] == "stopping"
        assert final is not None
        assert final[1]["draining"] is True
        assert await feed.next() is None


async def test_what_happens_is_told_as_it_happens(autojump_clock: MockClock) -> None:
    """Proofs, breaks, reloads, restarts, refusals: in order, each with its identity."""
    async with service(tokens=TOKENS) as up, watching(up) as feed:
        await call(up)
        await trio.sleep(2)
        await break_call(up, seconds=1)
        await trio.sleep(3)
        up.world.restart()
        await trio.sleep(3)
        await call(up)
        await trio.sleep(1)
        seen: list[dict[str, Any]] = []
        while not any(event["kind"] == "epoch_began" for event in seen):
            seen += (await feed.until("recent"))["events"]
        assert [event["kind"] for event in seen] == ["call_broken", "claims_proven", "epoch_began"]
        assert [event["id"] for event in seen] == [1, 2, 3]
        assert {event["identity"] for event in seen} == {ID}
        assert (seen[1]["proof"], seen[1]["claims"]) == ("quiet", [2])
        assert seen[2]["cause"] == "restart"


async def test_a_listener_that_comes_back_gets_what_it_missed(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        for number in range(3):
            up.governor.recent.note("claims_proven", "b/m", claims=[number])
        async with watching(up, **{"Last-Event-ID": "2"}) as feed:
            assert [event["id"] for event in (await feed.until("recent"))["events"]] == [3]
        async with watching(up, **{"Last-Event-ID": "77"}) as feed:
            assert len((await feed.until("recent"))["events"]) == 3, "ids of another process"


async def test_a_flood_is_one_event_and_the_ring_is_bounded(autojump_clock: MockClock) -> None:
    """What everybody does drives nothing else out; what is told already comes again with its new number."""
    async with service(tokens=TOKENS) as up, watching(up) as feed:
        recent = up.governor.recent
        for _ in range(500):
            recent.note("call_refused", "b/m", code="credit_queue_full")
        told = (await feed.until("recent"))["events"]
        assert [(event["kind"], event["count"]) for event in told] == [("call_refused", 500)]
        recent.note("call_refused", "b/m", code="credit_queue_full")
        again = (await feed.until("recent"))["events"]
        assert [(event["id"], event["count"]) for event in again] == [(1, 501)]
        for number in range(1000):
            recent.note("claims_proven", "b/m", claims=[number])
        assert len(recent.after(0)) == EVENTS_MAX
