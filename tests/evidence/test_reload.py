"""E7: the model is loaded anew while a broken call executes. The old work goes on beside the new instances."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import pytest

from governor.core.claims import ClaimState
from governor.core.evidence import OnFall
from tests.evidence.bench import at_once, governed
from tests.evidence.lab import Model
from tests.evidence.work import until

if TYPE_CHECKING:
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model(name, instances=2) for name in ("a", "b", "c", "d")]

How = Literal["reload", "unload and load"]


async def load_anew(lab: Lab, model: str, how: How) -> None:
    if how == "reload":
        await lab.reload(model)
    else:
        await lab.unload(model)
        await lab.load(model)


async def test_old_work_holds_its_credit_until_it_really_ends(lab: Lab) -> None:
    """E7: a reload, and an unload with a load after it. The statistics start anew and never show the end.

    With metrics the process's own counters do. Without, the claim says that nothing can prove it, stays beyond the
    end of its work, and ends by a restart that nobody polls for.
    """
    await at_once(
        partial(freed_by_metrics, lab, "a", "reload"),
        partial(freed_by_metrics, lab, "b", "unload and load"),
        partial(held_without_metrics, lab, "c", "reload"),
        partial(held_without_metrics, lab, "d", "unload and load"),
    )


async def freed_by_metrics(lab: Lab, model: str, how: How) -> None:
    async with governed(lab, model, metrics=True) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(4_000)
        await bench.settle()
        await load_anew(lab, model, how)
        after = bench.submit()
        await bench.freed_by_the_end(broken)
        assert bench.proof(broken) == "quiet"
        assert await after.status() == 200
        totals = bench.statistics.ledger_totals
        assert (totals.reloads, totals.restarts, totals.unknown_falls) == (1, 0, 0)


async def held_without_metrics(lab: Lab, model: str, how: How) -> None:
    async with governed(lab, model) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(4_000)
        await bench.settle()
        await load_anew(lab, model, how)
        await bench.becomes(broken, ClaimState.QUARANTINED)
        await lab.wait_ended([broken.id])
        await bench.stays(broken, ClaimState.QUARANTINED, seconds=0.5)


async def test_quarantined_claim_ends_with_its_process(lab: Lab) -> None:
    """E6, E7: nobody polls for it; a look at the backend that is back finds another process."""
    async with governed(lab, "a", direct=True) as bench:
        assert await bench.call() == 200
        await bench.settle()
        broken = await bench.broken(60_000)
        await bench.settle()
        await lab.reload("a")
        await bench.becomes(broken, ClaimState.QUARANTINED)
        assert not bench.statistics.polling
        await lab.kill()
        await lab.restart()
        await bench.identity.look_again()
        assert bench.proof(broken) == "process_ended"
        assert await bench.call() == 200


async def test_reload_that_nobody_can_explain_ends_what_the_operator_chose(lab: Lab) -> None:
    """E8: without boot identity. With metrics the process's counter went on, and even `restart` ends nothing. Without
    them `hold` keeps the claim; `restart` and `seen` take the reload for a restart, which is declared, logged, and
    gives the credit back while the old work goes on."""
    await at_once(
        partial(explained_by_metrics, lab, "a"),
        partial(held, lab, "b"),
        partial(taken_for_a_restart, lab, "c", OnFall.RESTART),
        partial(taken_for_a_restart, lab, "d", OnFall.SEEN),
    )


async def explained_by_metrics(lab: Lab, model: str) -> None:
    async with governed(lab, model, metrics=True, boot="none", on_fall=OnFall.RESTART) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(4_000)
        await bench.settle()
        await lab.reload(model)
        await bench.freed_by_the_end(broken)
        totals = bench.statistics.ledger_totals
        assert (totals.reloads, totals.unknown_falls, totals.proven_quiet) == (1, 0, 1)


async def held(lab: Lab, model: str) -> None:
    async with governed(lab, model, boot="none", on_fall=OnFall.HOLD) as bench:
        assert await bench.call() == 200
        await bench.settle()
        broken = await bench.broken(4_000)
        await bench.readings(1)
        await lab.reload(model)
        await bench.becomes(broken, ClaimState.QUARANTINED)
        await lab.wait_ended([broken.id])
        await bench.stays(broken, ClaimState.QUARANTINED, seconds=0.5)


async def taken_for_a_restart(lab: Lab, model: str, on_fall: OnFall) -> None:
    async with governed(lab, model, boot="none", on_fall=on_fall, judged=False) as bench:
        assert await bench.call() == 200
        await bench.settle()
        broken = await bench.broken(4_000)
        await bench.readings(1)
        await lab.reload(model)
        await bench.freed(broken)
        assert lab.work.runs(broken.id)
        assert bench.proof(broken) == "process_ended"
        causes = [told["cause"] for told in bench.logs if told["event"] == "epoch_began"]
        assert causes == ["unknown_fall"]


async def test_reload_just_after_the_delivery_never_frees_the_credit_early(lab: Lab) -> None:
    """E7: delivered less than the settle time before the reload, so nobody can say which instance has the call; it
    may have to be held for ever, it never ends early."""
    async with governed(lab, "a") as bench:
        before = await lab.ends("a")
        assert await bench.call() == 200
        await lab.wait_counted("a", before + 1)
        broken = await bench.broken(2_000)
        await bench.identity.take_reading()
        await lab.reload("a")
        await until(lambda: bench.statistics.ledger_totals.reloads == 1, "the reload to be seen")
        await lab.wait_ended([broken.id])
        await bench.settle()
        assert bench.held(broken)


async def test_reading_is_refused_while_the_model_is_unloaded_and_the_claim_stays(lab: Lab) -> None:
    """E9: status 400 is no reading; the poller goes on and finds the model when it is back."""
    async with governed(lab, "a", metrics=True) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(2_000)
        await bench.readings(1)
        await lab.unload("a")
        await bench.refusals(2)
        assert "model_unavailable" in str(bench.statistics.last_reading_error)
        assert bench.states == {ClaimState.RECONCILING: 1}
        await lab.load("a")
        await bench.freed_by_the_end(broken)


async def test_open_call_is_answered_by_the_old_instance(lab: Lab) -> None:
    """E5 to E7: an open claim goes through the reload as if there were none; its answer is its end. A call broken in
    the new instance meanwhile is quiet only when nothing of ours is left, the open one included."""
    async with governed(lab, "a", slots=2, metrics=True) as bench:
        for _ in range(3):
            assert await bench.call() == 200
        await bench.settle()
        await bench.identity.take_reading()
        opened = await bench.executing(bench.submit(2_500))
        await lab.reload("a")
        broken = await bench.broken(200)
        await lab.wait_ended([broken.id])
        await bench.readings(2)
        assert bench.states == {ClaimState.RUNNING: 1, ClaimState.RECONCILING: 1}
        assert await opened.status() == 200
        await bench.freed(broken)
