"""The service as its operator runs it: processes, signals, exit codes (D12)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

START_S = 20.0
"""Bounds a start; importing everything takes a second or two."""
CONFIG = """
[server]
port = {port}
graceful_timeout_ms = 10000

[[backends]]
name = "triton"
url = "http://127.0.0.1:9"

[[models]]
name = "chat"
backend = "triton"
slots = 1
kind = "generate"
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Process:
    """A service in a process of its own, its log in a file."""

    def __init__(self, folder: Path, arguments: list[str], *, port: int, config: str = CONFIG) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "log"
        path = folder / "governor.toml"
        path.write_text(config.format(port=port))
        environ = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(folder),
            "GOVERNOR_CONFIG": str(path),
            "FAIL_WHEN": str(folder / "fail"),
        }
        arguments = [argument.format(path=path, port=port) for argument in arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ
            )

    async def get(self, path: str) -> httpx.Response | None:
        """None when nobody answers."""
        try:
            async with httpx.AsyncClient(base_url=self.url) as client:
                return await client.get(path)
        except httpx.TransportError:
            return None

    async def until_up(self) -> None:
        with trio.fail_after(START_S):
            while await self.get("/health") is None:
                assert self.process.poll() is None, self.log.read_text()
                await trio.sleep(0.05)

    async def exit_code(self, within_s: float) -> int:
        with trio.fail_after(within_s):
            while (code := self.process.poll()) is None:  # a process has no event
                await trio.sleep(0.01)
        return code

    async def events(self) -> list[str]:
        """Types of all events of a new session until its stream ends."""
        async with httpx.AsyncClient(base_url=self.url, timeout=30) as client:
            session = (await client.post("/session", json={})).json()["sessionId"]
            async with client.stream("GET", f"/session/{session}/events") as stream:
                return [line async for line in stream.aiter_lines() if line.startswith("event: ")]


GOVERNOR = ["api.cli", "serve", "{path}"]
HYPERCORN = ["hypercorn", "-k", "trio", "--bind", "127.0.0.1:{port}", "--graceful-timeout", "10"]


@asynccontextmanager
async def process(folder: Path, arguments: list[str], config: str = CONFIG) -> AsyncIterator[Process]:
    """Ended by force if it has not ended."""
    made = Process(folder, arguments, port=free_port(), config=config)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.terminate()
            try:
                made.process.wait(3)
            except subprocess.TimeoutExpired:
                made.process.kill()
        made.process.wait()


@pytest.mark.parametrize("arguments", [GOVERNOR, [*HYPERCORN, "api.asgi:app"]], ids=["governor", "hypercorn"])
async def test_a_requested_end_tells_open_streams_and_exits_with_0(tmp_path: Path, arguments: list[str]) -> None:
    """Both ways to serve: a backend that is down keeps nothing from starting, and is said."""
    async with process(tmp_path, arguments) as up, trio.open_nursery() as nursery:
        await up.until_up()
        ready = await up.get("/readyz")
        assert ready is not None
        assert ready.status_code == 503
        assert ready.json()["models"]["chat"]["usable"] is False
        heard: list[str] = []

        async def listen() -> None:
            heard.extend(await up.events())

        nursery.start_soon(listen)
        with trio.fail_after(5):
            while "vig_event_subscribers 1.0" not in (await up.get("/metrics") or httpx.Response(500)).text:
                await trio.sleep(0.02)
        up.process.send_signal(signal.SIGTERM)
        assert await up.exit_code(within_s=5) == 0
        with trio.fail_after(2):
            while not heard:  # set by the listener's end
                await trio.sleep(0.01)
        assert heard == ["event: session_died"]


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async with process(tmp_path, GOVERNOR) as up:
        await up.until_up()
        stream = await trio.open_tcp_stream("127.0.0.1", up.port)
        head = f"POST /session HTTP/1.1\r\nHost: 127.0.0.1:{up.port}\r\nContent-Length: 10\r\n\r\n"
        await stream.send_all(head.encode())  # a request in flight, which the grace waits for
        await trio.sleep(0.1)
        up.process.send_signal(signal.SIGTERM)
        with pytest.raises(trio.TooSlowError):
            await up.exit_code(within_s=0.3)
        up.process.send_signal(signal.SIGINT)
        assert await up.exit_code(within_s=3) == 128 + signal.SIGINT
        await stream.aclose()


async def test_a_second_governor_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    async with process(tmp_path, GOVERNOR) as first:
        await first.until_up()
        second = Process(tmp_path, GOVERNOR, port=free_port())
        assert await second.exit_code(within_s=START_S) == 1
        assert f"process {first.process.pid}" in second.log.read_text()


async def test_several_workers_are_refused_with_the_reason(tmp_path: Path) -> None:
    async with process(tmp_path, [*HYPERCORN, "-w", "2", "api.asgi:app"]) as up:
        await up.exit_code(within_s=START_S)
        assert "several hypercorn workers are several governors" in up.log.read_text()


async def test_a_governor_that_breaks_down_takes_hypercorns_worker_with_it(tmp_path: Path) -> None:
    """No 200 is answered over a dead governor, streams get their end, and the process goes."""
    async with process(tmp_path, [*HYPERCORN, "tests.api.failing:app"]) as up, trio.open_nursery() as nursery:
        await up.until_up()
        heard: list[str] = []

        async def listen() -> None:
            heard.extend(await up.events())

        nursery.start_soon(listen)
        with trio.fail_after(5):
            while "vig_event_subscribers 1.0" not in (await up.get("/metrics") or httpx.Response(500)).text:
                await trio.sleep(0.02)
        (tmp_path / "fail").touch()
        with trio.fail_after(3):
            while (answer := await up.get("/health")) is not None and answer.status_code == 200:
                await trio.sleep(0.02)
        assert answer is not None, "while streams get their end, requests are told"
        assert answer.json()["code"] == "governor_not_running"
        await up.exit_code(within_s=5)
        assert heard == ["event: session_died"]
        assert "broken inside" in up.log.read_text()


@pytest.mark.parametrize("arguments", [GOVERNOR, [*HYPERCORN, "api.asgi:app"]], ids=["governor", "hypercorn"])
async def test_a_configuration_that_cannot_work_starts_nothing_and_says_why(
    tmp_path: Path, arguments: list[str]
) -> None:
    async with process(tmp_path, arguments, config=CONFIG.replace("slots = 1", "slots = 0")) as up:
        await up.exit_code(within_s=START_S)
        assert "slots: received 0" in up.log.read_text()
        assert await up.get("/health") is None


async def test_a_worker_without_trio_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """`hypercorn api.asgi:app`: its own worker is asyncio's."""
    async with process(tmp_path, ["hypercorn", "--bind", "127.0.0.1:{port}", "api.asgi:app"]) as up:
        await up.exit_code(within_s=START_S)
        said = up.log.read_text()
    assert '"event": "start_refused"' in said
    assert "start it as `hypercorn -k trio api.asgi:app`" in said
