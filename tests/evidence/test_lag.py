"""E4: the counter lags its answer. A baseline taken just after one would take that answer for the next call's end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import pytest

from governor.triton.outcomes import CallKind
from tests.evidence.bench import at_once, governed
from tests.evidence.lab import Model

if TYPE_CHECKING:
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model("known", instances=2), Model("unknown", instances=2)]


@pytest.mark.parametrize("rounds", [40, pytest.param(400, marks=pytest.mark.slow)])
async def test_late_count_of_a_streamed_answer_never_ends_the_broken_call_after_it(lab: Lab, rounds: int) -> None:
    """E4, E5: a streamed answer, right after it a 60 ms call that breaks, looked at as often as can be; over and over.
    Each call has a connection of its own: without boot identity that means a reading just after the answer."""
    await at_once(
        partial(answered_and_broken, lab, "known", "trace", rounds),
        partial(answered_and_broken, lab, "unknown", "none", rounds),
    )


async def answered_and_broken(lab: Lab, model: str, boot: Literal["trace", "none"], rounds: int) -> None:
    async with governed(lab, model, boot=boot, poll_s=0.01) as bench:
        for _ in range(rounds):
            assert await bench.call(kind=CallKind.GENERATE_STREAM) == 200
            bench.identity._lanes.close()
            await bench.freed_by_the_end(await bench.broken(60))
        totals = bench.statistics.ledger_totals
        assert (totals.proven_quiet, totals.contested) == (rounds, 0)
