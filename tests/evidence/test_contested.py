"""E10: somebody else calls the model. It is said, and nothing is proven until the counter is clean again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from governor.core.claims import ClaimState
from tests.evidence.bench import governed
from tests.evidence.lab import Model

if TYPE_CHECKING:
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model("work", instances=4)]


async def test_foreign_calls_are_said_and_prove_nothing(lab: Lab) -> None:
    """E10: the counter stands above everything that is ours; the broken call is held beyond its end until its
    process is gone, and after that a clean baseline works as ever."""
    async with governed(lab, slots=2, direct=True) as bench:
        assert await bench.call() == 200
        await lab.foreign_calls("work", 4)
        broken = await bench.broken(1_000)
        await bench.readings(2)
        assert bench.contested()
        assert bench.statistics.ledger_totals.contested == 1
        assert bench.logged("identity_contested") == 1
        await lab.wait_ended([broken.id])
        await bench.stays(broken, ClaimState.RECONCILING, seconds=0.8)
        await lab.kill()
        await lab.restart()
        await bench.freed(broken)
        assert bench.proof(broken) == "process_ended"
        await bench.settle()
        await bench.freed_by_the_end(await bench.broken(300))
        assert not bench.contested()


async def test_idle_and_settled_takes_a_clean_baseline(lab: Lab) -> None:
    """E10: found while a call of ours is open, so nothing is proven. Once it is answered and settled the next call
    takes a new baseline before its delivery, and its break is provable."""
    async with governed(lab, slots=2, boot="none") as bench:
        opened = await bench.executing(bench.submit(1_200))
        await lab.foreign_calls("work", 4)
        assert await bench.call() == 200
        assert bench.contested()
        assert await opened.status() == 200
        await bench.settle()
        await bench.freed_by_the_end(await bench.broken(300))
        assert not bench.contested()
        assert bench.statistics.ledger_totals.contested == 1


async def test_foreign_calls_before_the_first_look_are_part_of_the_baseline(lab: Lab) -> None:
    """E4: whoever called before does not matter."""
    await lab.foreign_calls("work", 3)
    async with governed(lab) as bench:
        await bench.freed_by_the_end(await bench.broken(300))
        assert bench.statistics.ledger_totals.contested == 0
