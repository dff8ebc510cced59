"""An operator at work on a governor in front of a real Triton (A7, E11)."""

from __future__ import annotations

import signal
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

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

TOKEN = "operators-own-secret"
AS_ADMIN = {"Authorization": f"Bearer {TOKEN}"}
TRANSIT_S = 0.3
"""A call that got its credit just before slots were taken away may begin to execute so much later."""


@dataclass(slots=True)
class Operator:
    """The person on call, with the admin token and the configuration file."""

    governor: Governor
    file: Path

    async def identity(self, model: str) -> dict[str, Any]:
        """What is seen of one model."""
        answer = await self.governor.client.get(f"/admin/identities/triton:{model}", headers=AS_ADMIN)
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    async def act(self, path: str, **body: object) -> dict[str, Any]:
        """One act that must succeed."""
        answer = await self.governor.client.post(f"/admin/{path}", json=body, headers=AS_ADMIN)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def set_slots(self, slots: int) -> None:
        """Edits the file and sends SIGHUP, as `systemctl reload` does; returns once it is in force."""
        lines = self.file.read_text().splitlines()
        at = lines.index('name = "slow"') + 2
        lines[at] = f"slots = {slots}"
        self.file.write_text("\n".join(lines))
        self.governor.process.send_signal(signal.SIGHUP)
        with trio.fail_after(10):
            while (await self.identity("slow"))["credits"]["slots"] != slots:
                await trio.sleep(0.02)


@asynccontextmanager
async def on_call(
    triton: RealTriton, folder: Path, *, url: str | None = None, slots: int = 1
) -> AsyncIterator[Operator]:
    [port] = free_ports(1)
    config = governor_config(port=port, triton_url=url or triton.url, metrics_url=None)
    config = config.replace(
        'name = "slow"\nbackend = "triton"\nslots = 1', f'name = "slow"\nbackend = "triton"\nslots = {slots}'
    )
    config += f'[tokens]\nadmin = "{TOKEN}"\n'
    async with running_governor(config, port, folder) as governor:
        yield Operator(governor, folder / "governor.toml")


async def test_slots_halved_and_doubled_under_load(triton: RealTriton, shared_folder: Path, tmp_path: Path) -> None:
    """No call is lost, and by the model's own log no more ever ran than there were slots."""
    work = WorkLog(shared_folder / "work.jsonl", "slow")
    async with on_call(triton, tmp_path, slots=4) as operator, trio.open_nursery() as callers:
        statuses: list[int] = []

        async def call(text: str) -> None:
            answer = await operator.governor.generate("slow", text)
            assert answer is not None
            statuses.append(answer.status_code)

        for number in range(28):
            callers.start_soon(partial(call, f"{0.15 + number % 3 / 20} seconds"))
        in_force = [(0.0, 4)]
        for seen, slots in ((6, 2), (10, 4), (18, 1)):
            await work.wait_started(seen, seconds=30)
            asked_at = time.time()
            await operator.set_slots(slots)
            in_force.append((asked_at if slots == 4 else time.time() + TRANSIT_S, slots))
        await work.wait_started(20, seconds=30)
        before = time.time()
        await operator.set_slots(4)
        in_force.append((before, 4))
        await work.wait_ended(28, seconds=60)
    assert statuses == [200] * 28
    assert too_many(work, in_force) == []
    assert work.peak() == 4


def too_many(work: WorkLog, in_force: list[tuple[float, int]]) -> list[tuple[float, int, int]]:
    """Starts at which more ran than there were slots: when, how many, of how many."""
    executions = work.executions()
    found = []
    for execution in executions:
        at = execution.start_s
        running = sum(1 for other in executions if other.start_s <= at and (other.end_s is None or other.end_s > at))
        slots = [slots for since, slots in in_force if since <= at][-1]
        if running > slots:
            found.append((at, running, slots))
    return found


async def test_the_way_from_a_hanging_prompt_to_a_cleared_slot(triton: RealTriton, tmp_path: Path) -> None:
    """The runbook's path: a decoupled model's connection broke, nothing can prove the end, and callers wait.

    The state says which claim, whose and why; a stale command is refused; the forced restart reports the claim, and
    the next call is answered.
    """
    async with trio.open_nursery() as nursery:
        proxy = await nursery.start(Proxy(int(triton.url.rsplit(":", 1)[1])).serve)
        async with on_call(triton, tmp_path, url=f"http://127.0.0.1:{proxy.port}") as operator:
            governor = operator.governor
            session = await governor.session("storyteller")
            broken = (await governor.prompt(session, "Once upon a time")).json()["promptId"]
            with trio.fail_after(10):
                while not (shown := await operator.identity("storyteller"))["states"]["running"]:
                    await trio.sleep(0.02)
            await trio.sleep(0.3)
            assert proxy.reset_calls() == 1
            assert (await governor.terminal(session, broken)).data["code"] == "backend_connection_lost"
            with trio.fail_after(10):
                while not (shown := await operator.identity("storyteller"))["states"]["quarantined"]:
                    await trio.sleep(0.05)
            waiting = (await governor.prompt(session, "And then")).json()["promptId"]
            (claim,) = shown["claims"]
            assert claim["serves"] == {"sessionId": session, "promptId": broken}
            assert "decoupled" in claim["quarantined"]
            ready = (await governor.client.get("/readyz")).json()
            assert ready["problems"][0].startswith("triton/storyteller: the only slot is held")
            order = {"identity": "triton:storyteller", "reason": "its log shows the end"}
            stale = await governor.client.post(
                "/admin/restart", json={**order, "expectedEpoch": shown["epoch"] + 1}, headers=AS_ADMIN
            )
            assert (stale.status_code, stale.json()["code"]) == (409, "epoch_changed")
            (result,) = (await operator.act("restart", **order, expectedEpoch=shown["epoch"]))["results"]
            assert [(one["id"], one["state"]) for one in result["forgottenClaims"]] == [(claim["id"], "quarantined")]
            assert (await governor.terminal(session, waiting)).data["stopReason"] == "end_turn"
            assert await governor.metric("vig_released_unproven_total", model="storyteller") == 1
            assert (await operator.identity("storyteller"))["credits"] == {"slots": 1, "free": 1, "held": 0}
            entries = (await governor.client.get("/admin/audit", headers=AS_ADMIN)).json()["entries"]
            assert [(entry["act"], entry["result"]) for entry in entries] == [
                ("restart", "done"),
                ("restart", "refused"),
            ]
        nursery.cancel_scope.cancel()
