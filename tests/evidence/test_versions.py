"""Versions of one model that come and go while a broken call executes in one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from governor.core.claims import ClaimState
from tests.evidence.bench import SETTLE_S, governed
from tests.evidence.lab import Model
from tests.evidence.work import until

if TYPE_CHECKING:
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model("twins", instances=1, versions=(1, 2))]

with_and_without_metrics = pytest.mark.parametrize("metrics", [False, True], ids=["statistics", "metrics"])


async def have_versions(lab: Lab, *versions: int) -> None:
    lab.lay_out(Model("twins", instances=1, versions=versions))
    await lab.load("twins")


@pytest.fixture
async def two_versions(lab: Lab) -> None:
    await have_versions(lab, 1, 2)


@with_and_without_metrics
async def test_added_version_hides_nothing(lab: Lab, two_versions: None, metrics: bool) -> None:
    """E5, E7: the others keep their counters, so the end shows in the sum as before."""
    async with governed(lab, "twins", slots=2, metrics=metrics) as bench:
        for version in ("1", "2"):
            assert await bench.submit(version=version).status() == 200
        broken = await bench.broken(2_000, version="2")
        await bench.readings(1)
        await have_versions(lab, 1, 2, 3)
        assert await bench.submit(version="3").status() == 200
        await bench.freed_by_the_end(broken)
        totals = bench.statistics.ledger_totals
        assert (totals.reloads, totals.restarts, totals.unknown_falls, totals.proven_quiet) == (1, 0, 0, 1)


@with_and_without_metrics
async def test_removed_version_takes_the_end_with_it(lab: Lab, two_versions: None, metrics: bool) -> None:
    """E7: the sum falls at once and never shows the end; only the process's counters do. Without them it is held."""
    async with governed(lab, "twins", slots=2, metrics=metrics) as bench:
        for version in ("1", "1", "2", "2"):
            assert await bench.submit(version=version).status() == 200
        broken = await bench.broken(2_500, version="2")
        await trio.sleep(SETTLE_S)
        await have_versions(lab, 1)
        await until(lambda: bench.statistics.ledger_totals.reloads == 1, "the removal to be seen")
        assert await bench.submit(version="1").status() == 200
        if metrics:
            await bench.freed_by_the_end(broken)
            assert bench.proof(broken) == "quiet"
        else:
            await lab.wait_ended([broken.id])
            await trio.sleep(0.7)
            assert bench.states in ({ClaimState.RECONCILING: 1}, {ClaimState.QUARANTINED: 1})
        totals = bench.statistics.ledger_totals
        assert (totals.reloads, totals.restarts, totals.unknown_falls) == (1, 0, 0)


async def test_one_version_added_and_one_removed_at_once(lab: Lab, two_versions: None) -> None:
    """E7: the newcomer's calls do not pass for the end of the call that the other took with it."""
    async with governed(lab, "twins", slots=2, metrics=True) as bench:
        for version in ("1", "2"):
            assert await bench.submit(version=version).status() == 200
        broken = await bench.broken(2_500, version="2")
        await trio.sleep(SETTLE_S)
        await have_versions(lab, 1, 3)
        for _ in range(4):
            assert await bench.submit(version="3").status() == 200
        await bench.freed_by_the_end(broken)
