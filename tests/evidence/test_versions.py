"""Versions of one model that come and go while a broken call executes in one of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from governor.core.claims import ClaimState
from tests.evidence.bench import at_once, governed
from tests.evidence.lab import Model
from tests.evidence.work import until

if TYPE_CHECKING:
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model(name, instances=1, versions=(1, 2)) for name in ("plain", "measured")]


async def have_versions(lab: Lab, model: str, *versions: int) -> None:
    lab.lay_out(Model(model, instances=1, versions=versions))
    await lab.load(model)


async def test_added_version_hides_nothing(lab: Lab) -> None:
    """E5, E7: with and without metrics; the others keep their counters, so the end shows in the sum as before."""
    await at_once(partial(added, lab, "plain", metrics=False), partial(added, lab, "measured", metrics=True))


async def added(lab: Lab, model: str, *, metrics: bool) -> None:
    await have_versions(lab, model, 1, 2)
    async with governed(lab, model, slots=2, metrics=metrics) as bench:
        for version in ("1", "2"):
            assert await bench.submit(version=version).status() == 200
        broken = await bench.broken(2_500, version="2")
        await bench.readings(1)
        await have_versions(lab, model, 1, 2, 3)
        assert await bench.submit(version="3").status() == 200
        await bench.freed_by_the_end(broken)
        totals = bench.statistics.ledger_totals
        assert (totals.reloads, totals.restarts, totals.unknown_falls, totals.proven_quiet) == (1, 0, 0, 1)


async def test_removed_version_takes_the_end_with_it(lab: Lab) -> None:
    """E7: the sum falls at once and never shows the end; only the process's counters do. Without them it is held."""
    await at_once(partial(removed, lab, "plain", metrics=False), partial(removed, lab, "measured", metrics=True))


async def removed(lab: Lab, model: str, *, metrics: bool) -> None:
    await have_versions(lab, model, 1, 2)
    async with governed(lab, model, slots=2, metrics=metrics) as bench:
        for version in ("1", "1", "2", "2"):
            assert await bench.submit(version=version).status() == 200
        broken = await bench.broken(2_500, version="2")
        await bench.settle()
        await have_versions(lab, model, 1)
        await until(lambda: bench.statistics.ledger_totals.reloads == 1, "the removal to be seen")
        assert await bench.submit(version="1").status() == 200
        if metrics:
            await bench.freed_by_the_end(broken)
            assert bench.proof(broken) == "quiet"
        else:
            await lab.wait_ended([broken.id])
            await bench.settle()
            assert bench.state(broken) in {ClaimState.RECONCILING, ClaimState.QUARANTINED}
        totals = bench.statistics.ledger_totals
        assert (totals.reloads, totals.restarts, totals.unknown_falls) == (1, 0, 0)


async def test_one_version_added_and_one_removed_at_once(lab: Lab) -> None:
    """E7: the newcomer's calls do not pass for the end of the call that the other took with it."""
    await have_versions(lab, "measured", 1, 2)
    async with governed(lab, "measured", slots=2, metrics=True) as bench:
        for version in ("1", "2"):
            assert await bench.submit(version=version).status() == 200
        broken = await bench.broken(2_500, version="2")
        await bench.settle()
        await have_versions(lab, "measured", 1, 3)
        for _ in range(4):
            assert await bench.submit(version="3").status() == 200
        await bench.freed_by_the_end(broken)
