"""Starts a governor as its operator would, and talks to it as its clients would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from governor.errors import JsonValue


def governor_config(
    *, port: int, triton_url: str, metrics_url: str | None, limits: str = "", backend: str = "", server: str = ""
) -> str:
    """One slot for each demo model."""
    metrics = f'metrics_url = "{metrics_url}"' if metrics_url is not None else ""
    return f"""
[server]
port = {port}
{server}
[limits]
prompt_deadline_ms = 60000
{limits}
[[backends]]
name = "triton"
url = "{triton_url}"
{metrics}
{backend}
[[models]]
name = "slow"
backend = "triton"
slots = 1
kind = "generate"
[[models]]
name = "storyteller"
backend = "triton"
slots = 1
kind = "generate_stream"
[[models]]
name = "sentiment"
backend = "triton"
slots = 2
kind = "generate"
"""


@dataclass
class Event:
    """One server-sent event."""

    type: str
    id: int | None
    data: dict[str, JsonValue]


@dataclass
class Governor:
    """A governor in its own process."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    client: httpx.AsyncClient
    _buffers: dict[str, str] = field(default_factory=dict)

    async def metric(self, name: str, **labels: str) -> float:
        """The value of one metric."""
        text = (await self.client.get("/metrics")).text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in text.splitlines():
            if line.split("{")[0].split(" ")[0] == name and all(label in line for label in wanted):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name} {labels} in\n{text}")

    async def wait_metric(self, name: str, value: float, *, seconds: float = 10, **labels: str) -> None:
        """Polls until a metric has a value."""
        with trio.fail_after(seconds):
            while await self.metric(name, **labels) != value:
                await trio.sleep(0.02)

    async def generate(self, model: str, text: str, *, give_up_s: float | None = None) -> httpx.Response | None:
        """One `generate` call; None if the caller gave up first, by closing its connection."""
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
            with trio.move_on_after(give_up_s if give_up_s is not None else float("inf")):
                return await client.post(f"/v2/models/{model}/generate", json={"text_input": text})
        return None

    async def session(self, model: str) -> str:
        """A new session of a model."""
        answer = await self.client.post("/session", json={"modelServiceId": model, "sessionScope": "thread"})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["sessionId"])

    async def prompt(self, session: str, text: str, **fields: JsonValue) -> httpx.Response:
        """One prompt."""
        body = {"prompt": [{"type": "text", "text": text}], **fields}
        return await self.client.post(f"/session/{session}/prompt", json=body)

    async def events(self, session: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Subscribes and yields events until the stream ends."""
        headers = {"Last-Event-ID": str(after)}
        async with self.client.stream("GET", f"/session/{session}/events", headers=headers) as answer:
            assert answer.status_code == 200
            fields: dict[str, str] = {}
            async for line in answer.aiter_lines():
                if line and not line.startswith(":"):
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif not line and "data" in fields:
                    yield Event(
                        fields["event"],
                        int(fields["id"]) if "id" in fields else None,
                        json.loads(fields["data"])["data"],
                    )
                    fields = {}

    async def terminal(self, session: str, prompt_id: str, *, seconds: float = 30) -> Event:
        """Waits for the prompt's terminal event."""
        with trio.fail_after(seconds):
            async for event in self.events(session):
                if event.type in {"turn_complete", "turn_error"} and event.data["promptId"] == prompt_id:
                    return event
        raise AssertionError("the stream ended without the prompt's terminal event")

    def stop(self) -> None:
        """SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    async def wait_exit(self, *, seconds: float) -> int:
        """Waits for the process to end; returns its exit code."""
        with trio.fail_after(seconds):
            while (code := self.process.poll()) is None:
                await trio.sleep(0.02)
        return code


def start_governor(config: str, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Starts a governor's process and returns it with the path of its log; it is not waited for."""
    file, log = folder / "governor.toml", folder / "governor.log"
    file.write_text(config)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "api.cli", "serve", str(file)], stdout=sink, stderr=sink, env=environment
        )
    return process, log


@asynccontextmanager
async def running_governor(config: str, port: int, folder: Path, *, ready: bool = True) -> AsyncIterator[Governor]:
    """Starts a governor, waits until it answers (and, if asked, until it is ready), and ends it afterwards."""
    process, log = start_governor(config, folder)
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            await wait_ready(url, process, log, path="/readyz" if ready else "/healthz")
            yield Governor(url, process, log, client)
    finally:
        process.kill()
        process.wait()


async def wait_ready(url: str, process: subprocess.Popen[bytes], log: Path, path: str = "/readyz") -> None:
    """Waits until a governor answers 200 on a path."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        with trio.fail_after(20):
            while True:
                try:
                    if (await client.get(path)).status_code == 200:
                        return
                except httpx.TransportError:
                    if process.poll() is not None:
                        raise AssertionError(await trio.Path(log).read_text()) from None
                await trio.sleep(0.05)
