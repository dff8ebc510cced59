"""A slot is free when the work has ended, not when the caller left: with `slots` credits never more than `slots`
calls execute at once, and each credit is back within one poll interval after the work really ended (E1, E2, E5)."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from governor.core.claims import ClaimState
from governor.errors import BackendUnavailableError, ConnectionLostError
from governor.triton.outcomes import CallKind
from tests.shell.harness import POLL_S, Bench, body_within, identity_bench, until
from tests.shell.world import Break, Plan

MARGIN_S = 0.05
"""For the counter's lag, the reading itself and the step of `until`."""


async def back_after_work(bench: Bench) -> float:
    """Waits for the end of all work and then for all credits; returns how long the credits took, in seconds."""
    await until(lambda: not bench.world.alive, 60)
    last_end_s = max(execution.ended_s or 0 for execution in bench.world.executions)
    await until(lambda: bench.free == bench.identity.settings.slots, 2)
    return trio.current_time() - last_end_s


async def leave_after(bench: Bench, text: str, seconds: float, *, key: str = "k") -> None:
    """A caller with little patience."""
    with trio.move_on_after(seconds):
        await body_within(bench.submit(text, key=key), 3600)


async def test_an_abandoned_call_keeps_its_credit_until_its_work_ends() -> None:
    """E2: a 3 s call left after 0.5 s; the next starts after the first one's end, and no reading is needed."""
    async with identity_bench() as bench:
        await leave_after(bench, "3", 0.5)
        assert bench.states == {ClaimState.TIMED_OUT: 1}
        assert await body_within(bench.submit("1 next"), 10) == b'{"text_output": "ok"}'
        first, second = bench.world.executions
        assert first.ended_s is not None
        assert second.started_s is not None
        assert 0 <= second.started_s - first.ended_s <= MARGIN_S
        assert bench.world.high_water == 1
        assert len(bench.world.readings) == 1, "the baseline alone: the late answer is the proof"


async def test_a_flood_of_abandoned_calls_executes_one_by_one() -> None:
    """Six 3 s calls, each left after 0.15 s: the one that had started runs alone, those that waited never run."""
    async with identity_bench() as bench:
        for _ in range(6):
            await leave_after(bench, "3", 0.15)
        assert await back_after_work(bench) <= MARGIN_S
        assert bench.world.high_water == 1
        assert len(bench.world.executions) == 1, "five were taken out of the queue and never delivered"
        assert bench.identity.statistics().waiting == 0


async def test_a_flood_over_several_slots_never_exceeds_them() -> None:
    """Twenty callers who come and leave at different times, three slots."""
    async with identity_bench(slots=3) as bench:
        async with trio.open_nursery() as callers:
            for number in range(20):
                callers.start_soon(leave_after, bench, "1", 0.1 + number / 3)
                await trio.sleep(0.07)
        assert await back_after_work(bench) <= MARGIN_S
        assert bench.world.high_water == 3
        assert len(bench.world.executions) > 10


@pytest.mark.parametrize("breaks", [Break.AFTER_DELIVERY, Break.MID_ANSWER])
@pytest.mark.parametrize("boots", [True, False])
async def test_a_broken_call_keeps_its_credit_until_the_counter_shows_its_end(breaks: Break, boots: bool) -> None:
    """E5: the connection dies in mid-call, the work goes on; the next call starts within one poll interval after
    its end, never before."""
    async with identity_bench(boots=boots) as bench:
        bench.world.plans["broken"] = Plan(seconds=2, breaks=breaks, texts=("a", "b", "c"))
        with pytest.raises(ConnectionLostError):
            await body_within(bench.submit("broken", kind=CallKind.GENERATE_STREAM), 10)
        assert bench.states == {ClaimState.RECONCILING: 1}
        await body_within(bench.submit("1 next"), 10)
        first, second = bench.world.executions
        assert first.ended_s is not None
        assert second.started_s is not None
        assert 0 <= second.started_s - first.ended_s <= POLL_S + MARGIN_S
        assert bench.world.high_water == 1
        assert bench.identity.statistics().ledger_totals.proven_quiet == 1


async def test_every_kind_of_end_in_a_row_never_lets_two_execute() -> None:
    """Answers, abandoned calls, breaks before and after delivery and in mid-answer, refusals by the model."""
    async with identity_bench() as bench:
        world = bench.world
        world.plans |= {
            "before": Plan(seconds=1, breaks=Break.BEFORE_DELIVERY),
            "after": Plan(seconds=1, breaks=Break.AFTER_DELIVERY),
            "mid": Plan(seconds=1, breaks=Break.MID_ANSWER),
            "failed": Plan(seconds=1, status=500, counts=(0, 1), texts=("boom",)),
            "uncounted": Plan(seconds=0.1, status=500, counts=(0, 0), texts=("bad",)),
        }
        for text in ["1", "after", "failed", "before", "mid", "after", "1", "mid", "before", "after", "uncounted"]:
            with trio.move_on_after(0.5):
                with suppress(ConnectionLostError, BackendUnavailableError):
                    await body_within(bench.submit(text), 3600)
        assert await back_after_work(bench) <= POLL_S + MARGIN_S
        assert world.high_water == 1
        assert bench.states == {}


async def test_a_break_while_others_execute_frees_only_when_all_of_ours_is_quiet() -> None:
    """E5: the counter proves quiet, not a single call: a broken call waits for its healthy neighbours' answers."""
    async with identity_bench(slots=2) as bench:
        bench.world.plans["broken"] = Plan(seconds=2, breaks=Break.AFTER_DELIVERY)
        async with trio.open_nursery() as callers:
            callers.start_soon(body_within, bench.submit("1"), 10)
            with pytest.raises(ConnectionLostError):
                await body_within(bench.submit("broken"), 10)
            for _ in range(4):
                callers.start_soon(body_within, bench.submit("1 more"), 30)
        assert await back_after_work(bench) <= POLL_S + MARGIN_S
        assert bench.world.high_water == 2


async def test_after_the_call_limit_only_evidence_frees_the_credit() -> None:
    """`call_limit_ms`: the governor gives its own connection up; the work goes on, and so does the claim."""
    async with identity_bench(call_limit_s=2.0) as bench:
        with pytest.raises(ConnectionLostError, match="2 s"):
            await body_within(bench.submit("5"), 100)
        assert bench.states == {ClaimState.RECONCILING: 1}
        assert bench.world.executing
        assert await back_after_work(bench) <= POLL_S + MARGIN_S
        assert bench.world.high_water == 1


async def test_the_call_limit_does_not_count_what_comes_before_the_call() -> None:
    """Connecting has bounds of its own, and a call that was never sent breaks no connection (E3)."""
    async with identity_bench(call_limit_s=2.0) as bench:
        bench.world.connect_s = 3.0
        await body_within(bench.submit("1"), 100)
        assert len(bench.world.executions) == 1
        assert bench.free == 1


@pytest.mark.parametrize("honoured", [True, False])
async def test_disconnect_on_abandon_gives_the_connection_up_and_waits_for_evidence(honoured: bool) -> None:
    """D1: a model that honours it stops early; one that does not runs on, and the credit with it."""
    async with identity_bench() as bench:
        bench.world.plans["stream"] = Plan(seconds=6, texts=("a", "b", "c"), stops_when_left=honoured)
        call = bench.submit("stream", kind=CallKind.GENERATE_STREAM, disconnect_on_abandon=True)
        await call.next_chunk()
        call.abandon()
        await trio.sleep(0.1)
        assert bench.states == {ClaimState.RECONCILING: 1}
        assert bench.world.open_lanes == 0
        assert await back_after_work(bench) <= POLL_S + MARGIN_S
        (execution,) = bench.world.executions
        assert execution.ended_s is not None
        assert execution.started_s is not None
        assert execution.ended_s - execution.started_s == pytest.approx(4 if honoured else 6)


@pytest.mark.parametrize("disconnect", [True, False])
async def test_leaving_before_delivery_frees_the_credit_at_once(disconnect: bool) -> None:
    """E3: who leaves while the request still leaves the machine has sent nothing that executes."""
    async with identity_bench() as bench:
        bench.world.plans["upload"] = Plan(seconds=5, deliver_s=3)
        call = bench.submit("upload", kind=CallKind.GENERATE_STREAM, disconnect_on_abandon=disconnect)
        await trio.sleep(1)
        call.abandon()
        await until(lambda: bench.free == 1, 0.05)
        assert bench.world.executions == []
        assert bench.identity.statistics().totals.undelivered == 1
