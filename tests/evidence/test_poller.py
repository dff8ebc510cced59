"""E9: one poller for each identity, only while a claim waits, at its interval, whatever happens to its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.evidence.bench import POLL_S, governed
from tests.evidence.lab import Model

if TYPE_CHECKING:
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model("work", instances=4)]
WATCH_S = 2.0
EXPECTED = WATCH_S / POLL_S


async def test_one_poller_reads_four_times_a_second_however_often_connections_break(lab: Lab) -> None:
    """E9: three calls break one after the other while the readings' own connection is reset again and again. Together
    they are read about four times a second; after the last of them nobody reads."""
    async with governed(lab, slots=3) as bench:
        assert bench.proxy is not None
        broken = [await bench.broken(int((WATCH_S + 1.2) * 1000)) for _ in range(3)]
        before, resets = len(bench.proxy.readings), 0
        with trio.move_on_after(WATCH_S):
            while True:
                await trio.sleep(0.4)
                resets += bench.proxy.reset_readings()
        taken = len(bench.proxy.readings) - before
        assert resets >= 3
        assert EXPECTED * 0.6 <= taken <= EXPECTED + 2
        for sent in broken:
            await bench.freed_by_the_end(sent)
        assert not bench.statistics.polling
        await trio.sleep(0.1)
        ended = len(bench.proxy.readings)
        await trio.sleep(0.8)
        assert len(bench.proxy.readings) == ended


async def test_nobody_polls_for_open_calls(lab: Lab) -> None:
    """E2, E9: a caller that has left needs no evidence, and no reading: the answer is the proof."""
    async with governed(lab, slots=2) as bench:
        assert bench.proxy is not None
        assert await bench.call() == 200
        before = len(bench.proxy.readings)
        left = await bench.executing(bench.submit(1_200))
        left.call.abandon()
        await bench.freed(left)
        assert lab.work.ended(left.id)
        assert len(bench.proxy.readings) == before


async def test_poller_survives_a_backend_that_is_away(lab: Lab) -> None:
    """E9: refused connections are failed readings at the same pace, each counted; the poller is there when the
    backend is."""
    async with governed(lab, direct=True) as bench:
        assert await bench.call() == 200
        broken = await bench.broken(60_000)
        await lab.kill()
        await bench.refusals(1)
        failed = bench.statistics.totals.readings_failed
        await trio.sleep(1.0)
        assert 2 <= bench.statistics.totals.readings_failed - failed <= 5
        assert bench.held(broken)
        await lab.restart()
        await bench.freed(broken)


async def test_each_identity_has_its_own_poller(lab: Lab) -> None:
    """E9: one identity waits, the other does not; only the first is read for."""
    async with governed(lab, backend="one") as one, governed(lab, backend="other") as other:
        assert other.proxy is not None
        await one.freed_by_the_end(await one.broken(800))
        assert other.proxy.readings == []
