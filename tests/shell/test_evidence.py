"""What proves the end of a broken call, and what does not (E6, E7, E9, E10, E12)."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import trio
from structlog.testing import capture_logs

from governor.core.claims import ClaimState
from governor.core.evidence import OnFall
from governor.errors import ConnectionLostError
from tests.shell.harness import POLL_S, Bench, body_within, identity_bench, until
from tests.shell.world import Break, Fault, Plan, decoupled_facts

MARGIN_S = 0.05


async def warm_up(bench: Bench) -> None:
    """One call, so that the counter stands above zero and a fall can be seen; then it settles."""
    await body_within(bench.submit("0.01"), 10)
    await trio.sleep(1.1)


async def take_reading(bench: Bench) -> None:
    """A reading now, applied at once."""
    bench.identity.apply(bench.identity.begin_reading(), await bench.world.ports[0].read())


async def break_one(bench: Bench, seconds: float, *, key: str = "k", **plan: float) -> None:
    """A call whose connection breaks 0.1 s after its delivery while it executes for so many seconds."""
    text = f"{seconds} broken by {key}"
    bench.world.plans[text] = Plan(seconds=seconds, breaks=Break.AFTER_DELIVERY, **plan)  # type: ignore[arg-type]  # times
    with pytest.raises(ConnectionLostError):
        await body_within(bench.submit(text, key=key), 100)


# A restart.


@pytest.mark.parametrize("boots", [True, False])
async def test_a_restart_ends_the_broken_claims_of_the_dead_process_once(boots: bool) -> None:
    """E6: within one poll interval, one restart however long the poller looks on."""
    async with identity_bench(slots=2, boots=boots) as bench:
        await warm_up(bench)
        await break_one(bench, 100)
        await trio.sleep(1)
        assert bench.states == {ClaimState.RECONCILING: 1}
        bench.world.restart()
        assert await until(lambda: bench.free == 2, 1) <= POLL_S + MARGIN_S
        await break_one(bench, 3, key="after")
        await until(lambda: bench.free == 2, 10)
        totals = bench.identity.statistics().ledger_totals
        assert totals.proven_process_ended == 1
        assert (totals.restarts, totals.unknown_falls) == ((1, 0) if boots else (0, 1))


async def test_a_restart_whose_counter_has_overtaken_the_old_one_is_still_found() -> None:
    """E8: by the boot identity alone."""
    async with identity_bench() as bench:
        await warm_up(bench)
        await break_one(bench, 100)
        bench.world.restart()
        for _ in range(50):
            bench.world.foreign_call()
        assert await until(lambda: bench.free == 1, 1) <= POLL_S + MARGIN_S


async def test_an_open_claim_never_ends_by_a_restart() -> None:
    """E6: the old process finishes what it has on open connections while the new one answers the readings."""
    async with identity_bench(slots=2) as bench:
        await warm_up(bench)
        open_call = bench.submit("5", key="open")
        await break_one(bench, 0.5, key="broken")
        bench.world.replace()
        await until(lambda: bench.free == 1, 1)
        assert bench.states == {ClaimState.RUNNING: 1}
        assert await body_within(open_call, 10) == b'{"text_output": "ok"}'
        assert bench.free == 2
        assert bench.identity.statistics().ledger_totals.restarts == 1


async def test_calls_cut_off_by_a_kill_end_with_their_process() -> None:
    """E6: a kill breaks the connection and ends the work; the credit comes back once the next process answers."""
    async with identity_bench() as bench:
        await warm_up(bench)
        call = bench.submit("100")
        await trio.sleep(1)
        bench.world.kill()
        with pytest.raises(ConnectionLostError):
            await body_within(call, 1)
        await trio.sleep(5)
        assert bench.states == {ClaimState.RECONCILING: 1}, "no reading, no proof: the server may be anywhere"
        bench.world.start()
        assert await until(lambda: bench.free == 1, 1) <= POLL_S + MARGIN_S


@pytest.mark.parametrize(
    ("on_fall", "left"),
    [(OnFall.RESTART, {}), (OnFall.SEEN, {}), (OnFall.HOLD, {ClaimState.QUARANTINED: 1})],
)
async def test_without_boot_identity_the_operator_says_what_a_fall_means(
    on_fall: OnFall, left: dict[ClaimState, int]
) -> None:
    """E8: for a claim that a reading saw before the fall."""
    async with identity_bench(boots=False, on_fall=on_fall) as bench:
        await warm_up(bench)
        await break_one(bench, 100)
        await trio.sleep(1)
        bench.world.restart()
        await trio.sleep(POLL_S + MARGIN_S)
        assert bench.states == left


async def test_a_restart_closes_the_idle_connections_to_the_process_before_it() -> None:
    """E6: a model process can outlive its server and keep them open, and what is sent on them is never answered."""
    async with identity_bench(slots=3) as bench:
        for _ in range(2):
            bench.submit("1")
        await until(lambda: bench.world.open_lanes == 2 and bench.free == 3, 2)
        bench.world.reload()
        await bench.identity.take_reading()
        assert bench.world.open_lanes == 2, "a reload is no reason"
        bench.world.restart()
        await bench.identity.take_reading()
        assert bench.world.open_lanes == 0


# A reload.


async def test_a_reload_is_no_restart_the_old_work_keeps_its_credit() -> None:
    """E7: without process counters nothing shows the old work's end: the claim is quarantined and stays."""
    async with identity_bench(slots=2) as bench:
        await warm_up(bench)
        await break_one(bench, 6)
        await trio.sleep(2)
        bench.world.reload()
        await until(lambda: bench.states == {ClaimState.QUARANTINED: 1}, POLL_S + MARGIN_S)
        await body_within(bench.submit("1 in the new load"), 10)
        await trio.sleep(20)
        assert not bench.world.alive
        assert bench.states == {ClaimState.QUARANTINED: 1}
        bench.world.restart()
        await bench.identity.look_again()
        assert bench.free == 2
        assert bench.world.high_water == 2


async def test_process_counters_prove_the_end_that_a_reload_hid() -> None:
    """E7, D4: `/metrics` goes on counting over a reload."""
    async with identity_bench(slots=2, metrics=True) as bench:
        await warm_up(bench)
        await break_one(bench, 6)
        await trio.sleep(2)
        bench.world.reload()
        (execution,) = bench.world.executing
        await until(lambda: bench.free == 2, 10)
        assert execution.ended_s is not None
        assert trio.current_time() - execution.ended_s <= POLL_S + MARGIN_S


async def test_a_call_in_the_new_load_is_proven_by_the_new_counter() -> None:
    """E7: old work beside it that nobody can prove holds its own credit and no other."""
    async with identity_bench(slots=3) as bench:
        await warm_up(bench)
        await break_one(bench, 20, key="old")
        await trio.sleep(2)
        bench.world.reload()
        await until(lambda: bench.states == {ClaimState.QUARANTINED: 1}, 1)
        await break_one(bench, 2, key="new")
        await until(lambda: bench.free == 2, 2 + POLL_S + MARGIN_S)
        assert len(bench.world.executing) == 1


# The poller.


async def test_one_poller_reads_four_times_a_second_while_claims_wait_and_never_otherwise() -> None:
    """E9: however many claims wait; it ends with the last one, and its connection with it."""
    async with identity_bench(slots=3) as bench:
        await warm_up(bench)
        await trio.sleep(100)
        assert len(bench.world.readings) == 1
        assert not bench.identity.statistics().polling
        async with trio.open_nursery() as callers:
            for key in "abc":
                callers.start_soon(partial(break_one, bench, 5, key=key))
        began_s, began = trio.current_time(), len(bench.world.readings)
        await trio.sleep(4)
        assert bench.identity.statistics().polling
        assert 15 <= len(bench.world.readings) - began <= 17
        times = [at_s for at_s in bench.world.readings if at_s >= began_s]
        assert min(after - before for before, after in pairwise(times)) >= POLL_S - 1e-6
        await until(lambda: bench.free == 3, 3)
        polled = len(bench.world.readings)
        await trio.sleep(100)
        assert len(bench.world.readings) == polled
        assert not bench.identity.statistics().polling
        assert not bench.world.ports[0].connected


async def test_readings_of_one_identity_never_overlap() -> None:
    """A reading that another overtakes tells nothing: the poller's and those before deliveries take turns."""
    async with identity_bench(slots=4, boots=False) as bench:
        bench.world.read_s = 0.3
        async with trio.open_nursery() as callers:
            for number in range(12):
                callers.start_soon(partial(break_one, bench, 0.4, key=str(number)))
                await trio.sleep(0.1)
        await until(lambda: bench.free == 4, 10)
        assert bench.world.asked_at_once == 1
        assert bench.identity.statistics().ledger_totals.stale_readings == 0


@pytest.mark.parametrize("fault", list(Fault))
async def test_the_poller_survives_every_failed_reading(fault: Fault) -> None:
    """E9: the claims stay as they are, the fault is shown, and the first good reading goes on."""
    async with identity_bench() as bench:
        await warm_up(bench)
        await break_one(bench, 2)
        bench.world.fault = fault
        before = len(bench.world.readings)
        await trio.sleep(5)
        assert bench.states == {ClaimState.RECONCILING: 1}
        statistics = bench.identity.statistics()
        assert statistics.totals.readings_failed >= 4
        assert statistics.last_reading_error is not None
        assert len(bench.world.readings) - before <= 21
        bench.world.fault = None
        assert await until(lambda: bench.free == 1, 2) <= 1 + POLL_S + MARGIN_S
        assert bench.identity.statistics().last_reading_error is None


async def test_the_same_fault_is_logged_once() -> None:
    """E9: four readings a second must not fill the log while a server is away for a night."""
    async with identity_bench() as bench:
        await warm_up(bench)
        await break_one(bench, 2)
        bench.world.fault = Fault.REFUSED
        with capture_logs() as logs:
            await trio.sleep(60)
        assert len([line for line in logs if line["event"] == "reading_failed"]) == 1


async def test_a_fault_that_changes_its_words_is_logged_once_for_each_kind() -> None:
    """E9: the endpoint of a server that is away may refuse a connection now and hang up on one then."""
    async with identity_bench() as bench:
        await warm_up(bench)
        await break_one(bench, 2)
        with capture_logs() as logs:
            for _ in range(10):
                for fault in (Fault.REFUSED, Fault.LOST):
                    bench.world.fault = fault
                    await trio.sleep(2)
            bench.world.fault = None
            await trio.sleep(2)
        told = [(line["event"], line.get("code")) for line in logs if line["event"].startswith("reading")]
    kinds = [("reading_failed", "backend_unavailable"), ("reading_failed", "backend_connection_lost")]
    assert told == [*kinds, ("readings_resumed", None)]


# Somebody else calls.


async def test_a_foreign_caller_is_shown_and_stops_quiet_proofs() -> None:
    """E10: a counter above everything of ours: no proof by it while something of ours may run."""
    async with identity_bench(slots=2) as bench:
        await warm_up(bench)
        await break_one(bench, 2)
        with capture_logs() as logs:
            bench.world.foreign_call()
            bench.world.foreign_call()
            await until(lambda: bench.identity.statistics().ledger.contested, POLL_S + MARGIN_S)
        assert [line["event"] for line in logs if line["log_level"] == "error"] == ["identity_contested"]
        await trio.sleep(10)
        assert bench.states == {ClaimState.RECONCILING: 1}, "its end cannot be told from somebody else's"
        assert bench.identity.statistics().ledger_totals.contested == 1
        bench.world.restart()
        await until(lambda: bench.free == 2, 1)
        await body_within(bench.submit("1"), 10)
        assert not bench.identity.statistics().ledger.contested, "before it, a clean baseline was read"


async def test_a_foreign_caller_seen_while_nothing_of_ours_runs_is_shown_too() -> None:
    """E10: the very reading that finds it is a clean baseline, but the operator must hear of it."""
    async with identity_bench(boots=False) as bench:
        await warm_up(bench)
        bench.world.foreign_call()
        await trio.sleep(5)  # the lane is closed, so the next call reads first
        with capture_logs() as logs:
            await body_within(bench.submit("1"), 10)
        assert [line["event"] for line in logs if line["log_level"] == "error"] == ["identity_contested"]
        assert bench.identity.statistics().ledger_totals.contested == 1
        await trio.sleep(2)
        await break_one(bench, 1)
        await until(lambda: bench.free == 1, 2)


# Models whose counter is no proof.


async def test_a_decoupled_model_s_counter_proves_nothing() -> None:
    """E12: it counts early; a broken claim is quarantined at the first reading and only a restart ends it."""
    async with identity_bench() as bench:
        bench.world.reload(decoupled_facts())
        await break_one(bench, 5, counted_after_s=0.01)
        await until(lambda: bench.states == {ClaimState.QUARANTINED: 1}, 2 * POLL_S)
        assert bench.world.executing
        polled = len(bench.world.readings)
        await trio.sleep(60)
        assert bench.states == {ClaimState.QUARANTINED: 1}
        assert len(bench.world.readings) == polled, "E9: the poller has nothing to wait for"
        bench.world.restart()
        await bench.identity.look_again()
        assert bench.free == 1


async def test_a_decoupled_model_s_answer_is_proof_all_the_same() -> None:
    """D11: the end of the open stream."""
    async with identity_bench() as bench:
        bench.world.reload(decoupled_facts())
        await body_within(bench.submit("3"), 10)
        assert bench.free == 1


@pytest.mark.parametrize("known_by", ["a reading before the call", "the poller after the break"])
async def test_a_model_that_became_decoupled_is_treated_as_such_at_once(known_by: str) -> None:
    """E12: neither the call for whose sake the reload was noticed, nor one delivered just before that, may be taken
    for one whose end is counted when it happens."""
    async with identity_bench(slots=2) as bench:
        world = bench.world
        await warm_up(bench)
        await take_reading(bench)
        if known_by == "a reading before the call":
            await trio.sleep(5)
            world.boots = False  # a fresh connection without a stamp: a reading is taken before the delivery
        world.reload(decoupled_facts())
        await break_one(bench, 5, counted_after_s=0.6)
        while world.executing:
            assert bench.free == 1, "the claim ended while its work executes"
            await trio.sleep(0.05)


async def test_facts_asked_for_before_a_reload_was_seen_are_not_believed_after_it() -> None:
    """E12: the question was on its way while the model became another one."""
    async with identity_bench(slots=2) as bench:
        world = bench.world
        await warm_up(bench)
        await take_reading(bench)
        bench.identity.facts = None
        world.facts_s = 2.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.identity.know_facts)
            await trio.sleep(1)
            world.reload(decoupled_facts())
            await take_reading(bench)
        assert (await bench.identity.know_facts()).decoupled
