"""E8: the number in the trace settings that tells one process from the next, and what there is without it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from governor.core.claims import ClaimState
from tests.evidence.bench import governed
from tests.evidence.lab import Lab, Model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from governor.demo.install import Installation

pytestmark = pytest.mark.real_triton

MODELS = [Model("work", instances=2), Model("other", instances=1)]


@asynccontextmanager
async def lab_with(
    installation: Installation, folder: Path, *arguments: str, server_id: str | None = None
) -> AsyncIterator[Lab]:
    lab = Lab(installation, folder, [Model("work", instances=1)], extra_args=arguments, server_id=server_id)
    try:
        await lab.be_idle()
        yield lab
    finally:
        lab.end_now()


async def boot_of(lab: Lab, model: str = "work", **options: str) -> str | None:
    """What a fresh governor takes the process for."""
    async with governed(lab, model, **options) as bench:  # type: ignore[arg-type]  # one of its literals
        assert await bench.call() == 200
        return bench.statistics.ledger.boot


async def test_second_governor_adopts_the_number_of_the_first(lab: Lab) -> None:
    """E8: each governor life that finds a number leaves it, so that a governor's restart looks like none of Triton's;
    each model has a number of its own."""
    first = await boot_of(lab)
    assert first is not None
    assert first.startswith("trace:")
    assert await boot_of(lab) == first
    assert await boot_of(lab, "other") != first


async def test_number_is_kept_over_reload_and_unload_and_lost_with_the_process(lab: Lab) -> None:
    """E7, E8: that is what tells the two apart."""
    first = await boot_of(lab)
    await lab.reload("work")
    assert await boot_of(lab) == first
    await lab.unload("work")
    await lab.load("work")
    assert await boot_of(lab) == first
    await lab.kill()
    await lab.restart()
    second = await boot_of(lab)
    assert second is not None
    assert second.startswith("trace:")
    assert second != first


async def test_many_fresh_connections_at_once_agree_on_one_number(lab: Lab) -> None:
    """E8: connections that all find none must not each write one: the later would look like a restart."""
    await lab.kill()
    await lab.restart()
    async with governed(lab, slots=8) as bench:
        calls = [bench.submit(100) for _ in range(8)]
        assert [await sent.status() for sent in calls] == [200] * 8
        boot = bench.statistics.ledger.boot
        assert boot is not None
        assert boot.startswith("trace:")
        assert bench.statistics.ledger_totals.restarts == 0
        assert {lane.boot for _, lane in bench.identity._lanes._free} == {boot}


async def test_tracing_that_is_on_is_left_alone(installation: Installation, tmp_path: Path) -> None:
    """E8: the number has a meaning then. The server's own id takes its place, or nothing does; once tracing is off
    the number is to be had."""
    tracing = [f"--trace-config=triton,file={tmp_path / 'trace.json'}", "--trace-config=level=TIMESTAMPS"]
    async with lab_with(installation, tmp_path, *tracing, "--trace-config=rate=1000000") as lab:
        path = "/v2/models/work/trace/setting"
        before = await lab.get(path)
        assert before["trace_level"] == ["TIMESTAMPS"]
        assert await boot_of(lab, boot="trace") is None
        assert await boot_of(lab, boot="auto") == f"id:{lab.triton.server_id}"
        assert await lab.get(path) == before
        await lab.post(path, {"trace_level": ["OFF"]})
        assert str(await boot_of(lab, boot="trace")).startswith("trace:")


async def test_restricted_trace_api_gives_no_boot_identity(installation: Installation, tmp_path: Path) -> None:
    """E8: without the API nothing is written, and an id that every process shares identifies none. The operator's
    choice decides; by default an unseen call is quarantined when the counter falls."""
    restricted = "--http-restricted-api=trace:secret=word"
    async with lab_with(installation, tmp_path, restricted, server_id="triton") as lab:
        assert await boot_of(lab, boot="auto") is None
        assert await boot_of(lab, boot="id") == "id:triton", "the operator says that it is unique"
        async with governed(lab, direct=True) as bench:
            assert await bench.call() == 200
            await lab.wait_counted("work", 3)
            await bench.identity.look_again()
            opened = await bench.executing(bench.submit(60_000))
            await lab.kill()
            await lab.restart()
            await bench.becomes(opened, ClaimState.QUARANTINED)
            assert bench.statistics.ledger_totals.unknown_falls == 1


async def test_unique_id_tells_a_restart_where_the_trace_api_is_restricted(
    installation: Installation, tmp_path: Path
) -> None:
    """E8: `auto` takes an id that holds a UUID; another one is another process."""
    restricted = "--http-restricted-api=trace:secret=word"
    async with lab_with(installation, tmp_path, restricted) as lab, governed(lab, direct=True) as bench:
        assert await bench.call() == 200
        first = bench.statistics.ledger.boot
        assert first == f"id:{lab.triton.server_id}"
        broken = await bench.broken(60_000)
        await lab.kill()
        await lab.restart()
        await bench.freed(broken)
        assert bench.proof(broken) == "process_ended"
        assert bench.statistics.ledger.boot == f"id:{lab.triton.server_id}" != first
