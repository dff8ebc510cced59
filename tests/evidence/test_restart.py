"""E6, E8: the process dies. What ends with it, what does not, and what is held where nobody can say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from governor.core.claims import ClaimState
from governor.core.evidence import OnFall
from tests.evidence import falsehoods
from tests.evidence.bench import POLL_S, Bench, governed
from tests.evidence.lab import Model
from tests.evidence.work import until

if TYPE_CHECKING:
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model("work", instances=3)]
LONG_MS = 60_000
"""Longer than any test: such work ends only with its process."""


@pytest.mark.parametrize("metrics", [False, True], ids=["statistics", "metrics"])
async def test_kill_ends_broken_claims_when_another_process_answers_and_not_before(lab: Lab, metrics: bool) -> None:
    """E6, E8: kill -9 while one call is broken and one open. Both are held while nothing answers, both end with the
    first reading of another process, and that is one restart."""
    async with governed(lab, slots=2, direct=True, metrics=metrics) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(LONG_MS)
        opened = await bench.executing(bench.submit(LONG_MS))
        await lab.kill_server_alone()
        await bench.is_broken(opened)
        await bench.refusals(3)
        assert bench.states == {ClaimState.RECONCILING: 2}
        await lab.restart()
        await bench.freed(broken, seconds=POLL_S + 2)
        await bench.freed(opened, seconds=POLL_S + 2)
        assert bench.proof(broken) == bench.proof(opened) == "process_ended"
        assert await bench.call() == 200
        totals = bench.statistics.ledger_totals
        assert (totals.restarts, totals.reloads, totals.unknown_falls) == (1, 0, 0)


async def test_kill_while_nothing_waits_is_found_before_the_next_delivery(lab: Lab) -> None:
    """E4, E6: nobody looks while Triton restarts; the next call takes the new baseline first, so that its own break
    is provable by the new counter."""
    async with governed(lab, direct=True) as bench:
        assert await bench.call() == 200
        await bench.settle()
        await lab.kill_server_alone()
        await lab.restart()
        await bench.freed_by_the_end(await bench.broken(400))
        totals = bench.statistics.ledger_totals
        assert (totals.restarts, totals.proven_quiet, totals.baseline_missing) == (1, 1, 0)


@pytest.mark.parametrize(
    ("on_fall", "seen_state", "unseen_state"),
    [
        (OnFall.RESTART, None, None),
        (OnFall.SEEN, None, ClaimState.QUARANTINED),
        (OnFall.HOLD, ClaimState.QUARANTINED, ClaimState.QUARANTINED),
    ],
    ids=lambda value: getattr(value, "value", str(value)),
)
async def test_kill_without_boot_identity_ends_what_the_operator_chose(
    lab: Lab, on_fall: OnFall, seen_state: ClaimState | None, unseen_state: ClaimState | None
) -> None:
    """E8: one broken call that a reading saw in its epoch, one that none saw; then the counter falls."""
    async with governed(lab, slots=2, direct=True, boot="none", on_fall=on_fall, poll_s=3.0) as bench:
        assert await bench.call() == 200
        seen = await bench.broken(LONG_MS)
        await bench.readings(1)
        unseen = await bench.executing(bench.submit(LONG_MS))
        await lab.kill_server_alone()
        await lab.restart()
        await bench.is_broken(unseen)
        await until(lambda: bench.statistics.ledger_totals.unknown_falls == 1, "the fall to be seen")
        assert (bench.state(seen), bench.state(unseen)) == (seen_state, unseen_state)
        if bench.free:
            assert await bench.call() == 200
            await lab.wait_counted("work", 1)
            await bench.identity.look_again()
        await lab.kill_server_alone()
        await lab.restart()
        await bench.identity.look_again()
        held = on_fall is OnFall.HOLD
        assert bench.states == ({ClaimState.QUARANTINED: 2} if held else {}), "a second fall ends what it had seen"


async def test_sigterm_answers_what_is_open_and_counts_what_is_broken(lab: Lab) -> None:
    """E1, E5, E6: a Triton that shuts down finishes its work. The open call ends by its answer, the broken one by the
    old process's own counter; the new process is one restart and ends nothing."""
    async with governed(lab, slots=2, direct=True, lane_idle_s=0.2) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(1_500)
        await bench.readings(1)
        opened = await bench.executing(bench.submit(2_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lab.terminate)
            assert await opened.status() == 200
            await bench.freed_by_the_end(broken)
        assert bench.proof(broken) == "quiet"
        await lab.restart()
        await bench.freed_by_the_end(await bench.broken(1_500))
        totals = bench.statistics.ledger_totals
        assert (totals.restarts, totals.proven_quiet, totals.proven_process_ended) == (1, 2, 0)


async def test_restart_is_found_although_the_new_counter_has_overtaken_the_old(lab: Lab) -> None:
    """E8: no reading succeeds until the governor's own calls have carried the new counter past the old one."""
    async with governed(lab, slots=2) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(LONG_MS)
        await overtake(lab, bench)
        await bench.freed(broken)
        assert bench.proof(broken) == "process_ended"
        assert bench.statistics.ledger_totals.restarts == 1


async def test_overtaken_counter_is_found_by_its_times_where_there_is_no_boot_identity(lab: Lab) -> None:
    """E8: the count has overtaken the old one, the time spent on it has not: that is a fall too."""
    async with governed(lab, slots=2, boot="none") as bench:
        assert await bench.call(800) == 200
        broken = await bench.broken(LONG_MS)
        await overtake(lab, bench)
        await bench.freed(broken)
        assert bench.proof(broken) == "process_ended"
        assert bench.statistics.ledger_totals.unknown_falls == 1


async def test_claim_is_held_where_everything_has_overtaken_and_nothing_tells_the_process(lab: Lab) -> None:
    """E8: neither boot identity nor any number tells of the restart. The claim is held, visibly, until the next."""
    async with governed(lab, slots=2, boot="none") as bench:
        assert await bench.call() == 200
        broken = await bench.broken(LONG_MS)
        await overtake(lab, bench, delay_ms=150)
        await bench.readings(1)
        await bench.stays(broken, ClaimState.RECONCILING, seconds=1.5)
        await lab.kill_server_alone()
        await lab.restart()
        await bench.freed(broken)
        assert bench.statistics.ledger_totals.unknown_falls == 1


async def overtake(lab: Lab, bench: Bench, *, delay_ms: int = 1) -> None:
    """A restart that no reading sees before the governor's calls have moved the new counter past the old bound."""
    assert bench.proxy is not None
    before = await lab.ends("work")
    bench.proxy.falsehood = falsehoods.closed
    await lab.kill_server_alone()
    await lab.restart()
    for _ in range(before + 2):
        assert await bench.call(delay_ms) == 200
    await lab.wait_counted("work", before + 2)
    bench.proxy.falsehood = None

