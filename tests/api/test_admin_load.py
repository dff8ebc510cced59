"""Operators act under load: real sockets on both sides, and a simulated Triton whose own record is the judge (A7)."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trio

from api.main import serve
from governor.config import BackendConfig, Config, LimitsConfig, ModelConfig, ServerConfig, TokensConfig
from governor.simulator import Endpoint, SimulatedTriton, demo_models, simulated_triton
from governor.simulator.faults import ResetAfterBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ADMIN = {"Authorization": "Bearer admin-0123456789ab"}
TRANSIT_S = 0.25
"""A call that got its credit just before slots were taken away may begin to execute so much later."""
PATIENCE_S = 60.0
SESSIONS, PROMPTS_EACH = 20, 10


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of tests are nobody else's."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def config_for(triton: SimulatedTriton, *, slow: int, storyteller: int) -> Config:
    return Config(
        server=ServerConfig(port=0),
        limits=LimitsConfig(max_pending_prompts_per_session=PROMPTS_EACH),
        tokens=TokensConfig(admin="admin-0123456789ab"),
        backends=(BackendConfig(name="sim", url=triton.url, metrics_url=triton.metrics_url),),
        models=(
            ModelConfig(name="slow", backend="sim", slots=slow, kind="generate"),
            ModelConfig(
                name="storyteller",
                backend="sim",
                slots=storyteller,
                kind="generate_stream",
                parameters={"max_tokens": 5},
            ),
        ),
    )


@dataclass(slots=True)
class Load:
    """Clients that hear everything of their sessions.

    Attributes:
        terminals: how each prompt ended, for its caller; one entry for each terminal event.
        models: the model of each prompt.
    """

    client: httpx.AsyncClient
    nursery: trio.Nursery
    terminals: dict[str, list[str]] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)

    async def session(self, model: str, texts: list[str]) -> None:
        """A session with a listener and its prompts."""
        answer = await self.client.post("/session", json={"modelServiceId": model, "sessionScope": "thread"})
        session = answer.json()["sessionId"]
        await self.nursery.start(self._listen, session)
        for text in texts:
            body = {"prompt": [{"type": "text", "text": text}]}
            answer = await self.client.post(f"/session/{session}/prompt", json=body)
            assert answer.status_code == 202, answer.text
            self.models[answer.json()["promptId"]] = model

    async def _listen(self, session: str, *, task_status: trio.TaskStatus[None]) -> None:
        async with self.client.stream("GET", f"/session/{session}/events", timeout=PATIENCE_S) as stream:
            task_status.started()
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    if event["type"] in {"turn_complete", "turn_error"}:
                        data = event["data"]
                        told = data["stopReason"] if event["type"] == "turn_complete" else data["code"]
                        self.terminals.setdefault(data["promptId"], []).append(told)

    async def all_ended(self, count: int) -> None:
        """Waits for that many terminal events, and then for any that should not come."""
        with trio.fail_after(PATIENCE_S):
            while sum(map(len, self.terminals.values())) < count:
                await trio.sleep(0.02)
        await trio.sleep(0.3)

    def ends(self, model: str) -> list[str]:
        """How the prompts of a model ended."""
        return [end for prompt, ends in self.terminals.items() if self.models[prompt] == model for end in ends]


@dataclass(slots=True)
class Up:
    """A governor in front of a simulated Triton."""

    triton: SimulatedTriton
    client: httpx.AsyncClient
    load: Load
    nursery: trio.Nursery
    next_config: list[Config]

    async def identity(self, model: str) -> dict[str, Any]:
        """What operators see of a model."""
        answer = await self.client.get(f"/admin/identities/sim:{model}", headers=ADMIN)
        shown: dict[str, Any] = answer.json()
        return shown

    async def act(self, path: str, **body: object) -> dict[str, Any]:
        """One act that must succeed."""
        answer = await self.client.post(f"/admin/{path}", json=body, headers=ADMIN)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told


@asynccontextmanager
async def up_and_running(*, slow: int, storyteller: int) -> AsyncIterator[Up]:
    """More instances than slots: a call too many would really execute beside the others, and show."""
    sources = [replace(source, config=replace(source.config, instances=16)) for source in demo_models()]
    async with simulated_triton(sources) as triton, trio.open_nursery() as nursery:
        first = config_for(triton, slow=slow, storyteller=storyteller)
        configs: list[Config] = []
        urls = await nursery.start(partial(serve, first, load=lambda: configs.pop(0)))
        limits = httpx.Limits(max_connections=SESSIONS + 10)
        async with httpx.AsyncClient(base_url=urls[0], timeout=PATIENCE_S, limits=limits) as client:
            with trio.fail_after(PATIENCE_S):
                while (await client.get("/readyz")).status_code != 200:
                    await trio.sleep(0.02)
            async with trio.open_nursery() as clients:
                yield Up(triton, client, Load(client, clients), clients, configs)
                clients.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def test_a_forced_restart_under_load_is_exact_and_nobody_else_notices() -> None:
    """200 prompts over 20 sessions and two identities. Each gets one terminal event; the report has what was broken."""
    async with up_and_running(slow=4, storyteller=6) as up:
        before = await up.identity("slow")
        reset = ResetAfterBody()
        up.triton.faults.add(reset, endpoint=Endpoint.GENERATE_STREAM, model="storyteller", times=3)
        for number in range(SESSIONS):
            model, text = ("storyteller", "a story") if number % 2 else ("slow", "0.05 seconds")
            up.nursery.start_soon(up.load.session, model, [text] * PROMPTS_EACH)
        with trio.fail_after(PATIENCE_S):
            while (seen := await up.identity("storyteller"))["states"]["quarantined"] < 3:
                await trio.sleep(0.02)
        while (pending := (await up.identity("slow"))["sessions"]["pendingPrompts"]) == 0:
            await trio.sleep(0.02)
        broken = [claim["id"] for claim in seen["claims"] if claim["releasable"]]
        told = await up.act("restart", identity="sim:storyteller", reason="rehearsal", expectedEpoch=seen["epoch"])
        (result,) = told["results"]
        assert [claim["id"] for claim in result["forgottenClaims"]] == broken
        assert result["provenClaims"] == 0
        assert result["openClaims"] <= 3, "the three slots that were not stuck"
        assert pending > 0, "the other identity was at work meanwhile"
        await up.load.all_ended(SESSIONS * PROMPTS_EACH)
        assert {len(ends) for ends in up.load.terminals.values()} == {1}
        assert len(up.load.terminals) == SESSIONS * PROMPTS_EACH
        assert up.load.ends("slow") == ["end_turn"] * 100
        ends = up.load.ends("storyteller")
        assert (ends.count("backend_connection_lost"), ends.count("end_turn")) == (3, 97)
        after, storyteller = await up.identity("slow"), await up.identity("storyteller")
        assert after["epoch"] <= before["epoch"] + 1, "its first baseline, and no other epoch"
        assert after["totals"]["releasedUnproven"] == after["totals"]["restarts"] == 0
        assert storyteller["totals"]["releasedUnproven"] == 3
        assert storyteller["credits"] == {"slots": 6, "free": 6, "held": 0}
        assert up.triton.world.worklog.highest_concurrency("slow") == 4


async def test_slots_halved_and_doubled_under_load_by_the_record_of_the_backend() -> None:
    """200 prompts: none is lost, and at every start of an execution no more run than there are slots."""
    async with up_and_running(slow=8, storyteller=1) as up:
        now = up.triton.world.unix_now
        in_force = [InForce(8, 0.0)]
        for number in range(SESSIONS):
            texts = [f"0.{5 + (number + each) % 9:02} seconds" for each in range(PROMPTS_EACH)]
            up.nursery.start_soon(up.load.session, "slow", texts)
        for count in (4, 8, 4, 2, 8):
            lines = len(up.triton.world.worklog.lines)
            with trio.fail_after(PATIENCE_S):
                while len(up.triton.world.worklog.lines) < lines + 60:
                    await trio.sleep(0.01)
            up.next_config.append(config_for(up.triton, slow=count, storyteller=1))
            in_force.append(InForce(count, now()))
            told = await up.act("reload")
            assert [change["after"] for change in told["changes"]] == [count]
            in_force[-2].until = now() + TRANSIT_S
        await up.load.all_ended(SESSIONS * PROMPTS_EACH)
        assert up.load.ends("slow") == ["end_turn"] * (SESSIONS * PROMPTS_EACH)
        assert _too_many(up.triton, in_force) == []
        assert up.triton.world.worklog.highest_concurrency("slow") == 8, "the slots were used"
        assert (await up.identity("slow"))["credits"] == {"slots": 8, "free": 8, "held": 0}


@dataclass(slots=True)
class InForce:
    """So many slots, from the moment at which the reload was asked for to the one at which the next was answered."""

    slots: int
    since: float
    until: float = float("inf")


def _too_many(triton: SimulatedTriton, in_force: list[InForce]) -> list[tuple[float, int, int]]:
    """Starts at which more ran than there were slots at that moment: when, how many, of how many."""
    running, found = 0, []
    for line in triton.world.worklog.lines:
        at = line["t"]
        assert isinstance(at, float)
        running += 1 if line["what"] == "start" else -1
        allowed = max(each.slots for each in in_force if each.since <= at <= each.until)
        if line["what"] == "start" and running > allowed:
            found.append((at, running, allowed))
    return found
