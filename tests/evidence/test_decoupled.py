"""E12: a decoupled model may count before its work ends. Its counter proves nothing, the end of its stream does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from governor.core.claims import ClaimState
from governor.triton.outcomes import CallKind
from tests.evidence.bench import governed
from tests.evidence.lab import Model

if TYPE_CHECKING:
    from tests.evidence.bench import Bench, Sent
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model("late", source="stream", instances=2), Model("stream", source="stream", instances=3)]


def stream(bench: Bench, *, responses: int, delay_ms: int) -> Sent:
    return bench.submit(kind=CallKind.GENERATE_STREAM, body={"N": responses, "DELAY_MS": delay_ms})


async def test_broken_call_of_a_thread_that_sends_late_is_held_until_its_process_ends(lab: Lab) -> None:
    """E12, E6: Triton counts it at once, while the thread works on; its metrics do the same. Quarantined, beyond its
    end; freed by a restart."""
    async with governed(lab, "late", direct=True, metrics=True) as bench:
        before = await lab.ends("late")
        broken = await bench.executing(stream(bench, responses=8, delay_ms=150))
        await bench.break_off(broken)
        await bench.becomes(broken, ClaimState.QUARANTINED)
        await lab.wait_counted("late", before + 1)
        assert not lab.work.ended(broken.id), "that is the trap: it is counted and works on"
        await lab.wait_ended([broken.id])
        await bench.stays(broken, ClaimState.QUARANTINED, seconds=0.7)
        await lab.kill()
        await lab.restart()
        await bench.identity.look_again()
        assert bench.proof(broken) == "process_ended"


@pytest.mark.parametrize("model", ["late", "stream"])
async def test_abandoned_stream_is_read_to_its_end_which_frees_the_credit(lab: Lab, model: str) -> None:
    """E1, E2, D11: the caller leaves after the first piece; the next call waits until the work has ended."""
    async with governed(lab, model) as bench:
        first = stream(bench, responses=8, delay_ms=100)
        await first.call.next_chunk()
        first.call.abandon()
        assert bench.state(first) is ClaimState.TIMED_OUT
        assert await stream(bench, responses=1, delay_ms=1).status() == 200
        assert lab.work.ended(first.id)
        assert not bench.held(first)


async def test_broken_call_of_a_decoupled_model_is_quarantined_at_the_first_reading(lab: Lab) -> None:
    """E12: recognised by Triton's own configuration, before anything is delivered."""
    async with governed(lab, "stream") as bench:
        broken = await bench.executing(stream(bench, responses=3, delay_ms=100))
        await bench.break_off(broken)
        await bench.becomes(broken, ClaimState.QUARANTINED)
        await bench.stays(broken, ClaimState.QUARANTINED, seconds=0.5)
        assert not bench.statistics.polling
