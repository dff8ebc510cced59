"""What is delivered, and what is known before it is (E3, E4, ADR-0007)."""

from __future__ import annotations

import pytest
import trio

from governor.core.claims import ClaimState
from governor.errors import BackendError, BackendUnavailableError, ConnectionLostError
from tests.shell.harness import POLL_S, body_within, identity_bench, until
from tests.shell.world import Break, Fault, Plan, ensemble_facts


async def test_an_undelivered_call_never_executes_and_frees_its_credit_at_once() -> None:
    """E3: the connection breaks before the last byte."""
    async with identity_bench() as bench:
        bench.world.plans["cut"] = Plan(seconds=5, breaks=Break.BEFORE_DELIVERY)
        with pytest.raises(BackendUnavailableError):
            await body_within(bench.submit("cut"), 10)
        assert bench.free == 1
        assert bench.world.executions == []
        totals = bench.identity.statistics().totals
        assert (totals.undelivered, totals.broken) == (1, 0)


async def test_a_refused_connection_frees_the_credit_at_once() -> None:
    """E3: nothing can have left."""
    async with identity_bench() as bench:
        bench.world.kill()
        with pytest.raises(BackendUnavailableError):
            await body_within(bench.submit("1"), 10)
        assert bench.free == 1
        assert bench.identity.statistics().totals.undelivered == 1


async def test_an_undelivered_call_leaves_no_trace_in_what_quiet_means() -> None:
    """E3: after calls that never left, a broken one is still proven by its own end."""
    async with identity_bench() as bench:
        bench.world.plans["cut"] = Plan(breaks=Break.BEFORE_DELIVERY)
        bench.world.plans["broken"] = Plan(seconds=1, breaks=Break.AFTER_DELIVERY)
        for _ in range(3):
            with pytest.raises(BackendUnavailableError):
                await body_within(bench.submit("cut"), 10)
        with pytest.raises(ConnectionLostError):
            await body_within(bench.submit("broken"), 10)
        await until(lambda: bench.free == 1, 1 + POLL_S)


@pytest.mark.parametrize("boots", [True, False])
async def test_a_baseline_is_read_before_the_first_delivery(boots: bool) -> None:
    """E4: the reading is answered before the first byte of the first call leaves."""
    async with identity_bench(boots=boots) as bench:
        await body_within(bench.submit("1"), 10)
        assert bench.world.order("reading", "delivered") == ["reading", "delivered"]


async def test_concurrent_first_calls_share_one_attempt_to_get_a_baseline() -> None:
    """E4: eight calls at once, one question about the model and one reading."""
    async with identity_bench(slots=8) as bench:
        bench.world.read_s = 0.2
        async with trio.open_nursery() as callers:
            for _ in range(8):
                callers.start_soon(body_within, bench.submit("1"), 10)
        assert len(bench.world.readings) == 1
        assert len(bench.world.times("facts")) == 1
        assert bench.world.order("reading", "delivered") == ["reading"] + 8 * ["delivered"]


async def test_concurrent_first_calls_share_its_failure_too() -> None:
    """E12: a server that does not tell what its model is must not be asked once for each call that waits."""
    async with identity_bench(slots=8) as bench:
        bench.world.fact_faults.append(Fault.HANGS)
        calls = [bench.submit("1") for _ in range(8)]
        for call in calls:
            with pytest.raises(BackendUnavailableError):
                await body_within(call, 10)
        assert len(bench.world.times("facts")) == 1
        assert bench.world.executions == []


async def test_concurrent_first_calls_without_boot_identity_share_two() -> None:
    """ADR-0007: a reading that was begun before a connection was opened says nothing about what it leads to; all
    that came meanwhile share the next one."""
    async with identity_bench(slots=8, boots=False) as bench:
        bench.world.read_s = 0.2
        async with trio.open_nursery() as callers:
            for _ in range(8):
                callers.start_soon(body_within, bench.submit("1"), 10)
                await trio.sleep(0.02)
        assert len(bench.world.readings) == 2
        assert bench.world.readings[-1] > max(bench.world.times("connect"))


async def test_a_warm_lane_needs_no_reading() -> None:
    """The hot path: once there is a baseline, calls on open connections cost no further reading."""
    async with identity_bench() as bench:
        for _ in range(20):
            await body_within(bench.submit("0.5"), 10)
        assert len(bench.world.readings) == 1
        assert len(bench.world.times("connect")) == 1


async def test_without_a_baseline_a_broken_claim_awaits_one_and_is_proven_by_it() -> None:
    """E4: the statistics fail while the call is sent; the claim waits, and later readings prove it."""
    async with identity_bench() as bench:
        bench.world.fault = Fault.REFUSED
        bench.world.plans["broken"] = Plan(seconds=3, breaks=Break.AFTER_DELIVERY)
        with pytest.raises(ConnectionLostError):
            await body_within(bench.submit("broken"), 10)
        await trio.sleep(1)
        assert bench.states == {ClaimState.AWAITING_BASELINE: 1}
        assert bench.identity.statistics().ledger_totals.baseline_missing == 1
        bench.world.fault = None
        await until(lambda: bench.states == {ClaimState.RECONCILING: 1}, POLL_S + 0.05)
        await until(lambda: bench.free == 1, 3)
        assert not bench.world.executing
        assert bench.identity.statistics().ledger_totals.proven_quiet == 1


async def test_without_knowing_the_model_nothing_is_delivered() -> None:
    """E12: a counter whose meaning is unknown is no evidence, so nothing is sent that could need it."""
    async with identity_bench() as bench:
        bench.world.fact_faults.append(Fault.MALFORMED)
        with pytest.raises(BackendError):
            await body_within(bench.submit("1"), 10)
        assert bench.world.executions == []
        assert bench.free == 1
        await body_within(bench.submit("1"), 10)


async def test_a_lost_question_about_the_model_is_no_lost_call() -> None:
    """E3: the caller is told that its call never left, and so may send it again."""
    async with identity_bench() as bench:
        bench.world.fact_faults.append(Fault.LOST)
        with pytest.raises(BackendUnavailableError):
            await body_within(bench.submit("1"), 10)


async def test_a_restart_between_two_calls_is_seen_before_the_second_is_delivered() -> None:
    """ADR-0007: a fresh connection to another process is followed by a reading first."""
    for boots in (True, False):
        async with identity_bench(boots=boots) as bench:
            await body_within(bench.submit("1"), 10)
            bench.world.restart()
            await body_within(bench.submit("1"), 10)
            assert bench.world.order("reading", "delivered", "started")[1:] == [
                "reading",
                "delivered",
                "started",
                "reading",
                "delivered",
            ]


async def test_no_call_is_sent_to_a_process_that_is_known_to_be_replaced() -> None:
    """E6: both idle connections lead to the old process, which something keeps open; both calls look at the model
    before they are sent, and the look shows that another process answers now."""
    async with identity_bench(slots=2) as bench:
        for _ in range(2):
            bench.submit("1")
        await until(lambda: bench.world.open_lanes == 2 and bench.free == 2, 5)
        bench.world.replace()
        bench.identity.facts = None
        for call in [bench.submit("1"), bench.submit("1")]:
            await body_within(call, 10)
        assert [execution.process is bench.world.process for execution in bench.world.executions] == [
            False,
            False,
            True,
            True,
        ]


async def test_a_reconnect_to_a_known_process_needs_no_reading() -> None:
    """ADR-0007: the stamp says that it is the same one."""
    async with identity_bench() as bench:
        await body_within(bench.submit("1"), 10)
        bench.world.break_connections()
        await body_within(bench.submit("1"), 10)
        assert len(bench.world.times("connect")) == 2
        assert len(bench.world.readings) == 1


async def test_a_restart_while_a_call_waits_for_its_baseline_is_not_delivered_into_unseen() -> None:
    """E4, E6: the connection dies while the reading is under way; the one that replaces it leads to another process,
    so the claim must carry that process's identity and stand under that process's baseline."""
    async with identity_bench(slots=2) as bench:
        world = bench.world
        world.plans["broken"] = Plan(seconds=2, breaks=Break.AFTER_DELIVERY)
        world.read_late_s.append(0.5)
        call = bench.submit("broken")
        await until(lambda: len(world.readings) == 1, 1)
        await trio.sleep(0.1)
        world.restart()  # the reading of the old process has been taken and is on its way
        with pytest.raises(ConnectionLostError):
            await body_within(call, 10)
        (execution,) = world.executions
        assert world.process is not None
        assert execution.process is world.process
        before = [seen.what for seen in world.seen if seen.what in {"started", "reading", "delivered"}]
        assert before == ["started", "reading", "started", "reading", "delivered"]
        while bench.free < 2:
            assert (world.executing == set()) or bench.free == 1, "the claim ended while its work executes"
            await trio.sleep(0.01)
        assert execution.ended_s is not None
        assert trio.current_time() - execution.ended_s <= POLL_S + 0.05


async def test_a_connection_replaced_in_the_last_moment_names_the_process_that_got_the_call() -> None:
    """E8: it dies after everything was looked at; by the old process's name the claim would end with that process,
    while its work executes in the new one."""
    async with identity_bench(slots=2) as bench:
        world, ledger = bench.world, bench.identity._ledger
        await body_within(bench.submit("0.1"), 10)
        await trio.sleep(1.1)
        dispatch = ledger.dispatch

        def replaced(claim_id: int, boot: str | None = None) -> None:
            dispatch(claim_id, boot)
            world.restart()

        world.plans["broken"] = Plan(seconds=3, breaks=Break.AFTER_DELIVERY)
        ledger.dispatch = replaced  # type: ignore[method-assign]  # the same, at an unlucky moment
        call = bench.submit("broken")
        with pytest.raises(ConnectionLostError):
            await body_within(call, 10)
        ledger.dispatch = dispatch  # type: ignore[method-assign]  # as it was
        while world.executing:
            assert bench.free == 1, "the claim ended while its work executes"
            await trio.sleep(0.05)
        await until(lambda: bench.free == 2, POLL_S + 0.05)


async def test_connections_that_die_one_after_the_other_end_the_call_undelivered() -> None:
    """E4: each death is looked at, and there is an end to it."""
    async with identity_bench(boots=False) as bench:
        world = bench.world
        take_reading = bench.identity.take_reading

        async def deadly() -> None:
            await take_reading()
            world.break_connections()

        bench.identity.take_reading = deadly  # type: ignore[method-assign]  # the same, and connections die of it
        with pytest.raises(BackendUnavailableError, match="3 connections"):
            await body_within(bench.submit("1"), 10)
        assert world.executions == []
        assert len(world.times("connect")) == 3
        assert bench.free == 1


async def test_a_model_that_became_an_ensemble_is_counted_like_one_before_the_next_delivery() -> None:
    """E12: the reading that notices the reload is followed by the question what the model is now, and by a baseline
    in the new unit."""
    async with identity_bench(boots=False) as bench:
        world = bench.world
        for _ in range(2):
            await body_within(bench.submit("0.1"), 10)
            await trio.sleep(5)
        world.reload(ensemble_facts())
        await body_within(bench.submit("0.1"), 10)
        after = world.order("reloaded", "facts", "reading", "delivered")
        assert after[after.index("reloaded") + 1 :] == ["reading", "facts", "reading", "delivered"]


async def test_calls_that_share_a_baseline_from_before_a_restart_take_their_own() -> None:
    """ADR-0007: the shared reading was taken from the process that died meanwhile."""
    async with identity_bench(slots=2) as bench:
        world = bench.world
        world.read_late_s.append(0.5)
        # Over before the first poll: a baseline taken by that poll would contain its end and never see it.
        world.plans["broken"] = Plan(breaks=Break.MID_ANSWER)
        world.lag_s = 0.0
        first = bench.submit("1")
        await until(lambda: len(world.readings) == 1, 1)
        await trio.sleep(0.1)
        world.restart()
        second = bench.submit("broken", key="other")
        async with trio.open_nursery() as callers:
            callers.start_soon(body_within, first, 10)
            with pytest.raises(ConnectionLostError):
                await body_within(second, 10)
        await until(lambda: not world.alive, 10)
        await until(lambda: bench.free == 2, POLL_S + 0.05)


async def test_a_call_abandoned_before_it_was_sent_is_never_sent() -> None:
    """While it waits for a credit, for a connection, for the baseline."""
    async with identity_bench() as bench:
        world = bench.world
        world.connect_s = world.read_s = 0.2
        running = bench.submit("1")
        waiting = bench.submit("1 waiting")
        waiting.abandon()
        await body_within(running, 10)
        for moment_s in (0.0, 0.1, 0.3):
            await trio.sleep(5)  # the lane is closed: the next call connects
            world.restart()  # and needs a reading
            call = bench.submit("1 abandoned")
            await trio.sleep(moment_s)
            call.abandon()
            await until(lambda: bench.free == 1, 1)
        assert [execution.text for execution in world.executions] == ["1"]
        assert bench.identity.statistics().waiting == 0


async def test_a_hanging_connection_attempt_ends_with_the_lane_s_limit() -> None:
    """E3: nothing was delivered, the credit is back."""
    async with identity_bench() as bench:
        bench.world.connects_hang = True
        with pytest.raises(BackendUnavailableError):
            await body_within(bench.submit("1"), 10)
        assert bench.free == 1


async def test_uncounted_errors_never_make_the_target_unreachable() -> None:
    """E5: answers that may or may not have been counted put the bound in doubt; once the counter has settled, a
    reading before the next delivery ends the doubt."""
    async with identity_bench() as bench:
        bench.world.plans["uncounted"] = Plan(seconds=0.1, status=500, counts=(0, 0), texts=("no",))
        bench.world.plans["broken"] = Plan(seconds=1, breaks=Break.AFTER_DELIVERY)
        for _ in range(5):
            await body_within(bench.submit("uncounted"), 10)
        await trio.sleep(1.1)
        with pytest.raises(ConnectionLostError):
            await body_within(bench.submit("broken"), 10)
        await until(lambda: bench.free == 1, 1 + POLL_S)


async def test_an_ensemble_s_answers_weigh_what_its_counter_adds() -> None:
    """E12: also for an answer that arrives when a reload has made the model unknown for a moment: taken for a plain
    model's, it would leave room for a neighbour's end that has not happened."""
    async with identity_bench(slots=3) as bench:
        world = bench.world
        world.reload(ensemble_facts())
        world.plans["broken"] = Plan(seconds=8, breaks=Break.AFTER_DELIVERY)
        await body_within(bench.submit("1 warm up"), 10)
        await trio.sleep(1.1)
        long = bench.submit("2 answered later", key="a")
        with pytest.raises(ConnectionLostError):
            await body_within(bench.submit("broken", key="b"), 10)
        bench.identity.facts = None  # as a reading that saw a reload leaves it
        world.fact_faults.extend(20 * [Fault.REFUSED])
        await body_within(long, 10)
        world.fact_faults.clear()
        while world.executing:
            assert bench.free <= 2, "the claim ended while its work executes"
            await trio.sleep(0.01)
        await until(lambda: bench.free == 3, 2.0)
