"""One slot, four instances behind it: a call too many would really execute beside the first and show."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from governor.demo.ports import free_ports
from tests.e2e.proxy import Proxy
from tests.e2e.stack import Governor, governor_config, running_governor
from tests.e2e.worklog import WorkLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from governor.demo.triton import RealTriton

pytestmark = pytest.mark.real_triton

POLL_S = 0.25
MARGIN_S = 0.5
"""Time for a metrics request, a poll that had just been sent, and a busy machine."""


@asynccontextmanager
async def governed(triton: RealTriton, folder: Path, *, url: str | None = None) -> AsyncIterator[Governor]:
    [port] = free_ports(1)
    config = governor_config(port=port, triton_url=url or triton.url, metrics_url=triton.metrics_url)
    async with running_governor(config, port, folder) as governor:
        yield governor


async def free_again_s(governor: Governor, work: WorkLog) -> float:
    """Waits for the credit; returns how long after the last work's end it was back (up to the polling step)."""
    await governor.wait_metric("vig_free_slots", 1, model="slow")
    last_end_s = max(e.end_s for e in work.executions() if e.end_s is not None)
    return time.time() - last_end_s


async def test_abandoned_call_holds_its_slot_until_its_work_ends(
    triton: RealTriton, shared_folder: Path, tmp_path: Path
) -> None:
    """E2: a 3 s call abandoned after 0.5 s; the second call starts when the first's work has ended."""
    work = WorkLog(shared_folder / "work.jsonl", "slow")
    async with governed(triton, tmp_path) as governor:
        assert await governor.generate("slow", "3 seconds", give_up_s=0.5) is None
        await governor.wait_metric("vig_claims", 1, model="slow", state="timed_out")
        second = await governor.generate("slow", "0.2 seconds")
        assert second is not None
        assert second.status_code == 200
        await work.wait_ended(2)
    first, then = work.executions()
    assert first.end_s is not None
    assert then.start_s >= first.end_s
    assert work.peak() == 1


async def test_flood_of_abandoned_calls_never_runs_beside_another(
    triton: RealTriton, shared_folder: Path, tmp_path: Path
) -> None:
    """E1, E2: six 3 s calls abandoned after 0.15 s each. Those that never got a credit never execute."""
    work = WorkLog(shared_folder / "work.jsonl", "slow")
    async with governed(triton, tmp_path) as governor:
        for _ in range(6):
            await governor.generate("slow", "3 seconds", give_up_s=0.15)
        after = await governor.generate("slow", "0.1 seconds")
        assert after is not None
        assert after.status_code == 200
        assert await free_again_s(governor, work) < POLL_S + MARGIN_S
    assert work.peak() == 1
    assert len(work.executions()) == 2


async def test_deadline_ends_the_prompt_for_its_caller_only(
    triton: RealTriton, shared_folder: Path, tmp_path: Path
) -> None:
    """S6: a deadline of 1 s on a 3 s call; the next prompt starts its turn at once and its work afterwards."""
    work = WorkLog(shared_folder / "work.jsonl", "slow")
    async with governed(triton, tmp_path) as governor:
        session = await governor.session("slow")
        first = (await governor.prompt(session, "3 seconds", deadlineMs=1000)).json()["promptId"]
        ended = await governor.terminal(session, first)
        assert (ended.type, ended.data["code"]) == ("turn_error", "prompt_deadline_exceeded")
        assert await governor.metric("vig_claims", model="slow", state="timed_out") == 1
        second = (await governor.prompt(session, "0.2 seconds")).json()["promptId"]
        assert (await governor.terminal(session, second)).type == "turn_complete"
        assert await free_again_s(governor, work) < POLL_S + MARGIN_S
    assert work.peak() == 1
    assert len(work.executions()) == 2


async def test_cancelled_prompt_goes_on_for_the_gpu(triton: RealTriton, shared_folder: Path, tmp_path: Path) -> None:
    """S3, E2: cancel of a running prompt, then another prompt."""
    work = WorkLog(shared_folder / "work.jsonl", "slow")
    async with governed(triton, tmp_path) as governor:
        session = await governor.session("slow")
        first = (await governor.prompt(session, "2 seconds")).json()["promptId"]
        await work.wait_started(1)
        assert (await governor.client.post(f"/session/{session}/cancel", json={})).status_code == 204
        ended = await governor.terminal(session, first)
        assert (ended.type, ended.data["stopReason"]) == ("turn_complete", "cancelled")
        second = (await governor.prompt(session, "0.2 seconds")).json()["promptId"]
        assert (await governor.terminal(session, second)).data["stopReason"] == "end_turn"
    assert work.peak() == 1
    assert len(work.executions()) == 2


async def test_reset_connection_holds_the_slot_until_the_counter_proves_quiet(
    triton: RealTriton, shared_folder: Path, tmp_path: Path
) -> None:
    """E5: the governor's own connection to Triton is reset in mid-call; the caller gets an error at once, the
    credit comes back when the statistics show the end, within one poll interval of it."""
    work = WorkLog(shared_folder / "work.jsonl", "slow")
    async with trio.open_nursery() as nursery:
        proxy = await nursery.start(Proxy(int(triton.url.rsplit(":", 1)[1])).serve)
        url = f"http://127.0.0.1:{proxy.port}"
        async with governed(triton, tmp_path, url=url) as governor, trio.open_nursery() as callers:
            answers: list[int] = []

            async def call(text: str) -> None:
                answer = await governor.generate("slow", text)
                assert answer is not None
                answers.append(answer.status_code)

            callers.start_soon(partial(call, "2 seconds"))
            await work.wait_started(1)
            assert proxy.reset_calls() == 1
            await governor.wait_metric("vig_claims", 1, model="slow", state="reconciling")
            with trio.fail_after(1):
                while answers != [502]:
                    await trio.sleep(0.01)
            callers.start_soon(partial(call, "0.1 seconds"))
            await governor.wait_metric("vig_waiting_calls", 1, model="slow")
            assert await governor.metric("vig_free_slots", model="slow") == 0
            await work.wait_ended(1)
            await work.wait_ended(2)
            assert await free_again_s(governor, work) < POLL_S + MARGIN_S
            assert await governor.metric("vig_execution_reconciled_total", model="slow") == 1
        assert answers == [502, 200]
        nursery.cancel_scope.cancel()
    first, second = work.executions()
    assert first.end_s is not None
    assert 0 <= second.start_s - first.end_s < POLL_S + MARGIN_S
    assert work.peak() == 1
