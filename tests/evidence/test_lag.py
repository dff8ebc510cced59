"""E4: the counter lags its answer. A baseline taken just after one would take that answer for the next call's end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import pytest

from governor.triton.outcomes import CallKind
from tests.evidence.bench import at_once, governed
from tests.evidence.lab import Model

if TYPE_CHECKING:
    from governor.errors import JsonValue
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [
    Model("known", instances=2),
    Model("unknown", instances=2),
    Model("bulk", source="bulk", instances=2),
]


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


async def test_count_that_waits_for_a_large_answer_of_the_same_batch_never_ends_a_broken_call(lab: Lab) -> None:
    """E4, E5: two calls are merged into a batch. The first is answered, and neither is counted before the second's
    large answer is written, some 0.3 s later. In between the counters are read and a call is delivered and broken:
    the two late counts are not its end."""
    async with governed(lab, "bulk", slots=3, boot="none", poll_s=0.02, settle_s=1.0) as bench:
        before = await lab.ends("bulk")
        small = await bench.delivered(bench.submit(body=bulk_body(delay_ms=1, size=1)))
        large = bench.submit(body=bulk_body(delay_ms=1, size=1_000_000))
        assert await small.status() == 200
        bench.identity._lanes.close()
        broken = await bench.executing(bench.submit(body=bulk_body(delay_ms=1_000, size=1)))
        assert bench.statistics.ledger.model_high == before, "that is the trap: it was read while the count was to come"
        await bench.break_off(broken)
        await bench.freed(large)
        await lab.wait_counted("bulk", before + 2)
        assert lab.work.runs(broken.id)
        await bench.freed_by_the_end(broken)


def bulk_body(*, delay_ms: int, size: int) -> dict[str, JsonValue]:
    values = {"DELAY_MS": delay_ms, "N": size}
    return {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [1, 1], "data": [value]} for name, value in values.items()
        ]
    }
