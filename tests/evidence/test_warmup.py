"""Warm-up calls count like any others, at every load, in the statistics and in the metrics."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from governor.core.claims import ClaimState
from tests.evidence.bench import at_once, governed
from tests.evidence.lab import Model

if TYPE_CHECKING:
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model("warm", instances=2, warmups=3), Model("once", instances=1, warmups=1)]


async def test_baseline_of_a_warmed_up_model_is_its_warm_up_count(lab: Lab) -> None:
    """E4: the counter does not start at zero; a broken first call ends by its own end and no sooner."""
    assert await lab.ends("warm") == 6
    async with governed(lab, "warm") as bench:
        await bench.freed_by_the_end(await bench.broken(300))


async def test_warm_up_of_a_reload_is_not_the_end_of_the_old_work(lab: Lab) -> None:
    """E7: the new instance's warm-up counts while the old one executes a broken call: in the statistics, where it takes
    the new counter near the old one, and in the metrics, where one warm-up looks like the end of one call. So such a
    model's metrics prove nothing: the claim is quarantined, and stays beyond its end."""
    await at_once(
        partial(held_over_a_reload, lab, "warm", metrics=False), partial(held_over_a_reload, lab, "once", metrics=True)
    )


async def held_over_a_reload(lab: Lab, model: str, *, metrics: bool) -> None:
    async with governed(lab, model, metrics=metrics) as bench:
        assert await bench.call() == 200
        await bench.settle()
        broken = await bench.broken(3_000)
        await bench.settle()
        await lab.reload(model)
        await bench.becomes(broken, ClaimState.QUARANTINED)
        await lab.wait_ended([broken.id])
        await bench.stays(broken, ClaimState.QUARANTINED, seconds=0.5)


@pytest.mark.slow
async def test_first_warm_up_of_a_model_that_is_being_loaded_is_not_an_end(lab: Lab) -> None:
    """E7: a model is given a warm-up of two slow calls while a broken call executes. The metrics count the first while
    statistics and configuration are those of the old load, and nothing tells of a new one; so they are no proof for a
    call that no reload has touched. When it shows, the metrics of a model that warms up are none at all: it is held."""
    await have(lab, instances=1)
    async with governed(lab, "warm", metrics=True) as bench:
        for _ in range(4):
            assert await bench.call() == 200
        await bench.settle()
        broken = await bench.broken(6_000)
        await bench.settle()
        await have(lab, instances=1, warmups=2, warmup_ms=1_000)
        await bench.becomes(broken, ClaimState.QUARANTINED)
        assert lab.work.computing()
        await lab.wait_ended([broken.id])
        await bench.stays(broken, ClaimState.QUARANTINED, seconds=0.5)


@pytest.mark.slow
async def test_warm_up_of_another_instance_passes_for_an_end_and_shows_afterwards(lab: Lab) -> None:
    """E10: only the instance count changes, so the counters go on, and nothing tells the newcomer's warm-up from an
    end. The runbook names this case: the credit comes back early, and the true end shows as somebody else's call."""
    await have(lab, instances=1, warmups=1)
    async with governed(lab, "warm", judged=False) as bench:
        assert await bench.call() == 200
        await bench.settle()
        broken = await bench.broken(4_000)
        await have(lab, instances=2, warmups=1)
        await bench.freed(broken)
        assert lab.work.computing()
        await lab.wait_ended([broken.id])
        await bench.settle()
        await bench.identity.take_reading()
        assert bench.statistics.ledger_totals.contested == 1


async def have(lab: Lab, *, instances: int, warmups: int = 0, warmup_ms: int = 0) -> None:
    lab.lay_out(Model("warm", instances=instances, warmups=warmups, warmup_ms=warmup_ms))
    await lab.load("warm")
