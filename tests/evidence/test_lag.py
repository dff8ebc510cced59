"""E4: the counter lags its answer. A baseline taken just after one would take that answer for the next call's end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from governor.triton.outcomes import CallKind
from tests.evidence.bench import governed
from tests.evidence.lab import Model

if TYPE_CHECKING:
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model("work", instances=2)]


@pytest.mark.parametrize("boot", ["trace", "none"])
async def test_late_count_of_a_streamed_answer_never_ends_the_broken_call_after_it(
    lab: Lab, boot: Literal["trace", "none"]
) -> None:
    """E4, E5: a streamed answer, right after it a 60 ms call that breaks, looked at as often as can be; a hundred
    times. Each call has a connection of its own: without boot identity that means a reading just after the answer."""
    async with governed(lab, boot=boot, poll_s=0.01, lane_idle_s=0.0) as bench:
        for _ in range(100):
            assert await bench.call(kind=CallKind.GENERATE_STREAM) == 200
            await bench.freed_by_the_end(await bench.broken(60))
        totals = bench.statistics.ledger_totals
        assert (totals.proven_quiet, totals.contested) == (100, 0)
