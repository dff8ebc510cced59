"""E7: the model is loaded anew while a broken call executes. The old work goes on beside the new instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
import trio

from governor.core.claims import ClaimState
from governor.core.evidence import OnFall
from tests.evidence.bench import SETTLE_S, governed
from tests.evidence.lab import Model
from tests.evidence.work import until

if TYPE_CHECKING:
    from tests.evidence.bench import Bench
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model("work", instances=2)]
LONG_MS = 60_000

How = Literal["reload", "unload and load"]
both_ways = pytest.mark.parametrize("how", ["reload", "unload and load"])


async def load_anew(lab: Lab, how: How) -> None:
    if how == "reload":
        await lab.reload("work")
    else:
        await lab.unload("work")
        await lab.load("work")


@both_ways
async def test_metrics_free_the_credit_when_the_old_work_really_ends(lab: Lab, how: How) -> None:
    """E7: the statistics start anew and never show the end; the process's own counters do. Until then the next call
    waits, although the new instances are idle."""
    async with governed(lab, metrics=True) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(3_000)
        await trio.sleep(SETTLE_S)
        await load_anew(lab, how)
        after = bench.submit()
        await bench.readings(2)
        assert bench.state(broken) is ClaimState.RECONCILING
        await bench.freed_by_the_end(broken)
        assert bench.proof(broken) == "quiet"
        assert await after.status() == 200
        totals = bench.statistics.ledger_totals
        assert (totals.reloads, totals.restarts, totals.unknown_falls) == (1, 0, 0)


@both_ways
async def test_without_metrics_the_credit_is_held_visibly_until_the_process_ends(lab: Lab, how: How) -> None:
    """E7: nothing shows the end any more. The claim says so, stays beyond the end of its work, and ends by a restart
    that nobody polls for."""
    async with governed(lab, direct=True) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(2_000)
        await trio.sleep(SETTLE_S)
        await load_anew(lab, how)
        await bench.becomes(broken, ClaimState.QUARANTINED)
        await lab.wait_ended([broken.id])
        await bench.stays(broken, ClaimState.QUARANTINED, seconds=0.5)
        await lab.kill()
        await lab.restart()
        await bench.identity.look_again()
        assert bench.proof(broken) == "process_ended"
        assert await bench.call() == 200


async def test_reload_just_after_the_delivery_never_frees_the_credit_early(lab: Lab) -> None:
    """E7: delivered less than the settle time before the reload, so nobody can say which instance has the call; it
    may have to be held for ever, it never ends early."""
    async with governed(lab) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(1_500)
        await lab.reload("work")
        await until(lambda: bench.statistics.ledger_totals.reloads == 1, "the reload to be seen")
        await lab.wait_ended([broken.id])
        await trio.sleep(0.5)
        assert bench.held(broken)


async def test_reading_is_refused_while_the_model_is_unloaded_and_the_claim_stays(lab: Lab) -> None:
    """E9: status 400 is no reading; the poller goes on and finds the model when it is back."""
    async with governed(lab, metrics=True) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(2_500)
        await bench.readings(1)
        await lab.unload("work")
        await bench.refusals(2)
        assert "model_unavailable" in str(bench.statistics.last_reading_error)
        assert bench.states == {ClaimState.RECONCILING: 1}
        await lab.load("work")
        await bench.freed_by_the_end(broken)


async def test_process_counters_tell_a_reload_where_there_is_no_boot_identity(lab: Lab) -> None:
    """E7, E8: the process's counter went on, so the process did; even `restart` ends nothing then."""
    async with governed(lab, metrics=True, boot="none", on_fall=OnFall.RESTART) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(3_000)
        await trio.sleep(SETTLE_S)
        await lab.reload("work")
        await bench.freed_by_the_end(broken)
        totals = bench.statistics.ledger_totals
        assert (totals.reloads, totals.unknown_falls, totals.proven_quiet) == (1, 0, 1)


async def test_hold_keeps_what_nobody_can_explain(lab: Lab) -> None:
    """E8: neither boot identity nor metrics, `hold`: a reload looks like a restart, and nothing ends."""
    async with governed(lab, boot="none", on_fall=OnFall.HOLD) as bench:
        assert await bench.call() == 200
        await bench.settle()
        broken = await bench.broken(1_500)
        await bench.readings(1)
        await lab.reload("work")
        await bench.becomes(broken, ClaimState.QUARANTINED)
        await lab.wait_ended([broken.id])
        await bench.stays(broken, ClaimState.QUARANTINED, seconds=0.5)


@pytest.mark.parametrize("on_fall", [OnFall.RESTART, OnFall.SEEN], ids=lambda value: value.value)
async def test_operator_who_takes_every_fall_for_a_restart_gets_what_he_chose(lab: Lab, on_fall: OnFall) -> None:
    """E8, declared: without boot identity and metrics `restart` and `seen` take a reload for a restart, and the credit
    comes back while the old work goes on. The log says that it was a fall that nobody could explain."""
    async with governed(lab, boot="none", on_fall=on_fall, judged=False) as bench:
        assert await bench.call() == 200
        await bench.settle()
        broken = await bench.broken(2_500)
        await bench.readings(1)
        await lab.reload("work")
        await bench.freed(broken)
        assert lab.work.runs(broken.id)
        assert bench.proof(broken) == "process_ended"
        causes = [told["cause"] for told in bench.logs if told["event"] == "epoch_began"]
        assert causes == ["unknown_fall"]


async def test_open_call_is_answered_by_the_old_instance(lab: Lab) -> None:
    """E6, E7: an open claim goes through the reload as if there were none; its answer is its end."""
    async with governed(lab, slots=2, metrics=True) as bench:
        opened = await bench.executing(bench.submit(2_000))
        await lab.reload("work")
        await bench.freed_by_the_end(await broken_in_the_new_instance(bench))
        assert bench.state(opened) is ClaimState.RUNNING
        assert await opened.status() == 200


async def broken_in_the_new_instance(bench: Bench) -> Bench:
    return await bench.broken(300)
