"""Uploads cut, delayed, left and broken at random: what is left of them afterwards, and what really ran (ADR-0018)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
import pytest
import trio

from governor.demo.ports import free_ports
from tests.e2e.simulated import simulated_triton
from tests.e2e.stack import running_governor
from tests.e2e.uploads import Caller, UploadProxy, calling
from tests.e2e.worklog import WorkLog

if TYPE_CHECKING:
    from tests.e2e.stack import Governor

SLOTS: Final = 2
"""The simulated model has four instances: a call too many would run, and show."""
CALLERS: Final = 5
TURNS: Final = 20
CONFIG: Final = """
[server]
port = {port}
[[backends]]
name = "triton"
url = "{url}"
[[models]]
name = "slow"
backend = "triton"
slots = {slots}
kind = "generate"
lane_idle_ms = 100
"""
LIVES: Final = {"whole": 8, "small": 12, "leaves": 5, "leaves late": 4, "broken": 4, "broken late": 1}


@dataclass
class Chaos:
    """Callers of one governor, and what became of their requests.

    Attributes:
        answered: requests that got 200.
        untold: requests whose answer nobody waited for, or whose connection was broken after they had begun.
        never: requests that were never sent whole, or broken before their end.
    """

    governor: Governor
    proxy: UploadProxy
    work: WorkLog
    answered: set[str] = field(default_factory=set)
    untold: set[str] = field(default_factory=set)
    never: set[str] = field(default_factory=set)
    small: int = 0

    async def caller(self, seed: int) -> None:
        """One request after the other, each with a life of its own."""
        dice = random.Random(seed)
        for turn in range(TURNS):
            life = dice.choices([*LIVES], [*LIVES.values()])[0]
            await trio.sleep(dice.uniform(0, 0.1))  # some find a free slot, some do not
            await self._live(life, f"{seed}-{turn}", dice)

    async def _live(self, life: str, execution: str, dice: random.Random) -> None:
        if life == "small":
            answer = await self.governor.generate("slow", f"{dice.uniform(0.02, 0.1):.3f} seconds")
            assert answer is not None
            assert answer.status_code == 200, answer.text
            self.small += 1
            return
        seconds = 0.3 if life == "broken late" else dice.uniform(0, 0.1)
        size = dice.randint(263_000, 1_500_000)
        async with calling(self.governor.url, f"{seconds:.3f} seconds", execution, size=size) as caller:
            if life in {"whole", "leaves late", "broken late"}:
                await _send(caller, 0, dice)
            else:
                await _send(caller, dice.choice([1, 2, 200, dice.randint(1, size)]), dice)
            await self._end(life, execution, caller, dice)

    async def _end(self, life: str, execution: str, caller: Caller, dice: random.Random) -> None:
        match life:
            case "whole":
                assert (await caller.reply()).status == 200
                self.answered.add(execution)
            case "leaves":
                self.never.add(execution)
                caller.leave(reset=dice.random() < 0.5)
            case "leaves late":
                self.untold.add(execution)
                await trio.sleep(dice.uniform(0, 0.1))
                caller.leave(reset=dice.random() < 0.5)
            case "broken":
                went_ahead = self.proxy.reset(execution)
                await caller.send(1)
                status = (await caller.reply()).status
                assert status == (503 if went_ahead else 200), (status, went_ahead)
                (self.never if went_ahead else self.answered).add(execution)
            case _:
                await self._break_what_runs(execution, caller)

    async def _break_what_runs(self, execution: str, caller: Caller) -> None:
        """Only once it has begun: bytes that are lost between the two would leave a claim that nothing can prove."""
        self.untold.add(execution)
        with trio.fail_after(20):
            while not any(each.id == execution for each in self.work.executions()):
                await trio.sleep(0.01)
        assert self.proxy.reset(execution)
        assert (await caller.reply()).status == 502


async def _send(caller: Caller, rest: int, dice: random.Random) -> None:
    """Sends all but the rest, cut and delayed at random."""
    end = len(caller.request) - rest
    for cut in sorted(dice.randint(0, end) for _ in range(dice.randint(0, 5))):
        await caller.send_to(cut)
        await trio.sleep(dice.choice([0, 0.01, 0.03, 0.1]))
    await caller.send_to(end)


def sockets_of(pid: int) -> int:
    """How many sockets a process has open."""
    return sum(str(each.readlink()).startswith("socket:") for each in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not tell what a process has open")
async def test_whatever_becomes_of_uploads_the_slots_are_free_and_nothing_ran_that_should_not(tmp_path: Path) -> None:
    """E1, E3: every credit comes back, never more than the slots run, and what ran is what was delivered."""
    [port] = free_ports(1)
    with simulated_triton(tmp_path / "work.jsonl") as triton_url:
        async with trio.open_nursery() as nursery:
            proxy: UploadProxy = await nursery.start(UploadProxy(int(triton_url.rsplit(":", 1)[1])).serve)
            config = CONFIG.format(port=port, url=proxy.url, slots=SLOTS)
            async with running_governor(config, port, tmp_path) as governor:
                await governor.generate("slow", "0.01 seconds")
                work = WorkLog(tmp_path / "work.jsonl", "slow")
                await trio.sleep(1)
                open_before = sockets_of(governor.process.pid)
                chaos = Chaos(governor, proxy, work)
                async with trio.open_nursery() as callers:
                    for seed in range(CALLERS):
                        callers.start_soon(chaos.caller, seed)
                await _all_is_as_before(governor, open_before)
                await _what_ran_was_delivered(chaos, triton_url)
            nursery.cancel_scope.cancel()


async def _all_is_as_before(governor: Governor, open_before: int) -> None:
    await governor.wait_metric("vig_free_slots", SLOTS, model="slow")
    await governor.wait_metric("vig_waiting_calls", 0, model="slow")
    text = (await governor.client.get("/metrics")).text
    claims = [line for line in text.splitlines() if line.startswith("vig_claims{")]
    assert claims
    assert all(line.endswith(" 0.0") for line in claims), claims
    with trio.fail_after(10):
        while sockets_of(governor.process.pid) > open_before:
            await trio.sleep(0.02)


async def _what_ran_was_delivered(chaos: Chaos, triton_url: str) -> None:
    assert all((chaos.answered, chaos.untold, chaos.never, chaos.small)), "too little happened to show anything"
    assert any(each in chaos.proxy.carried for each in chaos.never), "none that was left or broken had gone ahead"
    ran = [each.id for each in chaos.work.executions()]
    large = {each for each in ran if "-" in each and each.replace("-", "").isdigit()}
    assert len(ran) == len(set(ran)), "nothing ran twice"
    assert chaos.answered <= large <= chaos.answered | chaos.untold
    assert not large & chaos.never
    assert chaos.work.peak() == SLOTS
    governor = chaos.governor
    calls, undelivered = [
        await governor.metric(name, model="slow") for name in ("vig_calls_total", "vig_calls_undelivered_total")
    ]
    assert len(ran) + 1 == calls - undelivered, "the governor counted the deliveries as they were"
    async with httpx.AsyncClient() as client:
        stats = (await client.get(f"{triton_url}/v2/models/slow/stats")).json()["model_stats"][0]["inference_stats"]
    assert len(ran) + 1 == stats["success"]["count"] + stats["fail"]["count"]
