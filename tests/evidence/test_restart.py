"""E6, E8: the process dies. What ends with it, what does not, and what is held where nobody can say."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from governor.core.claims import ClaimState
from governor.core.evidence import OnFall
from tests.evidence import falsehoods
from tests.evidence.bench import POLL_S, governed
from tests.evidence.lab import Model

if TYPE_CHECKING:
    from tests.evidence.bench import Bench, Sent
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model("work", instances=3), Model("second", instances=2), Model("third", instances=2)]
LONG_MS = 60_000
"""Longer than any test: such work ends only with its process."""


async def test_kill_ends_broken_claims_when_another_process_answers_and_not_before(lab: Lab) -> None:
    """E6, E8: kill -9 while one call is broken and one open, with and without metrics. Both are held while nothing
    answers, both end with the first reading of another process, and that is one restart."""
    async with (
        governed(lab, "work", slots=2, direct=True) as bench,
        governed(lab, "second", slots=2, direct=True, metrics=True) as with_metrics,
    ):
        calls: list[tuple[Bench, Sent, Sent]] = []
        for each in (bench, with_metrics):
            assert await each.call() == 200
            calls.append((each, await each.broken(LONG_MS), await each.executing(each.submit(LONG_MS))))
        await lab.kill_server_alone()
        for each, _, opened in calls:
            await each.is_broken(opened)
            await each.refusals(2)
            assert each.states == {ClaimState.RECONCILING: 2}
        await lab.restart()
        for each, broken, opened in calls:
            await each.freed(broken, seconds=POLL_S + 2)
            await each.freed(opened, seconds=POLL_S + 2)
            assert each.proof(broken) == each.proof(opened) == "process_ended"
            assert await each.call() == 200
            totals = each.statistics.ledger_totals
            assert (totals.restarts, totals.reloads, totals.unknown_falls) == (1, 0, 0)


async def test_kill_while_nothing_waits_is_found_before_the_next_delivery(lab: Lab) -> None:
    """E4, E6, ADR-0007: nobody looks while Triton restarts. The next call takes the new baseline first, so that its own
    break is provable by the new counter, with boot identity and without."""
    async with (
        governed(lab, "work", direct=True) as known,
        governed(lab, "second", direct=True, boot="none", on_fall=OnFall.HOLD) as unknown,
    ):
        for bench in (known, unknown):
            assert await bench.call() == 200
            await lab.wait_counted(bench.identity.key.model, 1)
            await bench.identity.take_reading()
        await known.settle()
        await lab.kill_server_alone()
        await lab.restart()
        for bench in (known, unknown):
            await bench.freed_by_the_end(await bench.broken(300))
            totals = bench.statistics.ledger_totals
            assert (totals.restarts + totals.unknown_falls, totals.proven_quiet, totals.baseline_missing) == (1, 1, 0)


async def test_answer_of_the_dead_process_does_not_make_the_new_target_unreachable(lab: Lab) -> None:
    """E5, E6: answered less than the settle time before the first reading of the new process; then a broken call that
    is shorter than what is left of it. The old answer can never come to the new counter."""
    async with governed(lab, direct=True, settle_s=10.0) as bench:
        assert await bench.call() == 200
        await lab.kill_server_alone()
        await lab.restart()
        await bench.freed_by_the_end(await bench.broken(100), seconds=2)


async def test_old_quiet_proof_does_not_make_the_new_target_unreachable(lab: Lab) -> None:
    """E5, E6: the same, and the last claim of the old process ended by its proof long before."""
    async with governed(lab, direct=True) as bench:
        await bench.freed_by_the_end(await bench.broken(100))
        await bench.settle()
        await lab.kill_server_alone()
        await lab.restart()
        await bench.freed_by_the_end(await bench.broken(100), seconds=2)


@pytest.mark.slow
async def test_connection_that_an_orphan_keeps_open_holds_its_credit_until_the_orphan_is_gone(lab: Lab) -> None:
    """E6: the server alone is killed, and a model process that a reload began still has its connections open. What was
    sent on one is never answered and never executes; its claim is open, so no restart ends it, until the orphan ends.
    A fresh connection is served by the new process meanwhile."""
    async with governed(lab, slots=2, direct=True, lane_idle_s=60.0) as bench:
        assert await bench.call() == 200
        await lab.reload("work")
        assert await bench.call() == 200
        await lab.kill_server_alone()
        lab.freeze_model_processes()
        await lab.restart()
        lost = await bench.delivered(bench.submit())
        assert await bench.call() == 200
        assert bench.statistics.ledger_totals.restarts == 1
        await bench.stays(lost, ClaimState.RUNNING, seconds=1.0)
        lab.end_predecessors()
        await bench.freed(lost)
        assert bench.proof(lost) == "process_ended"
        assert lab.work.of(lost.id) is None


async def test_kill_without_boot_identity_ends_what_the_operator_chose(lab: Lab) -> None:
    """E8: for each choice one broken call that a reading saw in its epoch, and one that none saw; then the counter
    falls. A second fall ends what readings have seen meanwhile, unless the operator holds everything."""
    held = ClaimState.QUARANTINED
    choices = {OnFall.RESTART: (None, None), OnFall.SEEN: (None, held), OnFall.HOLD: (held, held)}
    async with AsyncExitStack() as stack:
        benches = {
            choice: await stack.enter_async_context(
                governed(lab, model.name, slots=2, direct=True, boot="none", on_fall=choice, poll_s=60.0)
            )
            for choice, model in zip(choices, MODELS, strict=True)
        }
        calls: dict[OnFall, tuple[Sent, Sent]] = {}
        for choice, bench in benches.items():
            assert await bench.call() == 200
            seen = await bench.broken(LONG_MS)
            await bench.identity.take_reading()
            calls[choice] = seen, await bench.executing(bench.submit(LONG_MS))
        await lab.kill_server_alone()
        await lab.restart()
        for choice, bench in benches.items():
            seen, unseen = calls[choice]
            await bench.is_broken(unseen)
            await bench.identity.take_reading()
            assert (bench.state(seen), bench.state(unseen)) == choices[choice]
            if bench.free:
                assert await bench.call() == 200
            await lab.wait_counted(bench.identity.key.model, 1 if bench.free else 0)
            await bench.identity.take_reading()
        await lab.kill_server_alone()
        await lab.restart()
        for choice, bench in benches.items():
            await bench.identity.take_reading()
            assert bench.states == ({held: 2} if choice is OnFall.HOLD else {})


async def test_restart_is_found_although_the_new_counter_has_overtaken_the_old(lab: Lab) -> None:
    """E8: no reading succeeds until the governor's own calls have carried the new counter past the old one. Boot
    identity tells it; without it the times do, as long as they have not overtaken too; and where everything has, the
    claim is held, visibly, until the next fall."""
    async with (
        governed(lab, "work", slots=2) as by_boot,
        governed(lab, "second", slots=2, boot="none") as by_times,
        governed(lab, "third", slots=2, boot="none") as unknown,
    ):
        benches = {by_boot: 1, by_times: 900, unknown: 1}
        broken: dict[Bench, Sent] = {}
        for bench, old_ms in benches.items():
            assert await bench.call(old_ms) == 200
            broken[bench] = await bench.broken(LONG_MS)
            await bench.readings(1)
            assert bench.proxy is not None
            bench.proxy.falsehood = falsehoods.closed
        before = {bench: await lab.ends(bench.identity.key.model) for bench in benches}
        await lab.kill_server_alone()
        await lab.restart()
        for bench, new_ms in {by_boot: 1, by_times: 1, unknown: 150}.items():
            for _ in range(before[bench] + 2):
                assert await bench.call(new_ms) == 200
            await lab.wait_counted(bench.identity.key.model, before[bench] + 2)
            assert bench.proxy is not None
            bench.proxy.falsehood = None
        await by_boot.freed(broken[by_boot])
        await by_times.freed(broken[by_times])
        assert by_boot.statistics.ledger_totals.restarts == 1
        assert by_times.statistics.ledger_totals.unknown_falls == 1
        await unknown.readings(1)
        await unknown.stays(broken[unknown], ClaimState.RECONCILING, seconds=0.8)
        await lab.kill_server_alone()
        await lab.restart()
        await unknown.freed(broken[unknown])
        assert {bench.proof(sent) for bench, sent in broken.items()} == {"process_ended"}
