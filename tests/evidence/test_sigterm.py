"""E6: a Triton that shuts down in good order, and another one after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.evidence.bench import governed
from tests.evidence.lab import Model

if TYPE_CHECKING:
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model("work", instances=1)]
"""Triton takes a second to end each instance."""


async def test_sigterm_answers_what_is_open_and_counts_what_is_broken(lab: Lab) -> None:
    """E1, E5, E6: a Triton that shuts down finishes its work. The open call ends by its answer, the broken one by the
    old process's own counter; the new process is one restart and ends nothing."""
    async with governed(lab, slots=2, direct=True, lane_idle_s=0.2) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(1_200)
        await bench.readings(1)
        opened = await bench.delivered(bench.submit(200))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lab.terminate)
            assert await opened.status() == 200
            await bench.freed(broken)
        assert bench.proof(broken) == "quiet"
        await lab.restart()
        await bench.freed_by_the_end(await bench.broken(800))
        totals = bench.statistics.ledger_totals
        assert (totals.restarts, totals.proven_quiet, totals.proven_process_ended) == (1, 2, 0)
