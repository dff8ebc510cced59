"""`make run` from start to end, as a person would use it."""

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

from governor.demo.triton import why_not_supported

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def free_base() -> int:
    """The first of four free ports in a row, below those that the kernel hands out."""
    for port in range(30000, 31000, 10):
        probes = [socket.socket() for _ in range(4)]
        try:
            for offset, each in enumerate(probes):
                each.bind(("127.0.0.1", port + offset))
        except OSError:
            continue
        finally:
            for each in probes:
                each.close()
        return port
    raise RuntimeError("no four free ports in a row")


class Demonstration:
    def __init__(self, folder: Path, triton: str, *, piped: bool = False) -> None:
        base = free_base()
        self.url = f"http://127.0.0.1:{base + 3}"
        self.run_dir = folder / "run"
        self.output = folder / "output"
        ports = {
            "PORT": str(base + 3),
            "TRITON_PORT": str(base),
            "RUN_DIR": str(self.run_dir),
            "TRITON": triton,
        }
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "governor.demo"],
                env={**os.environ, **ports},
                stdout=subprocess.PIPE if piped else output,
                stderr=output,
            )

    def said(self) -> str:
        return self.output.read_text()

    async def until_said(self, text: str, timeout_s: float = 300) -> None:
        with trio.move_on_after(timeout_s):
            while text not in self.said() and self.process.poll() is None:
                await trio.sleep(0.05)
        assert text in self.said(), self.said()

    async def exit_code(self, timeout_s: float = 30) -> int:
        with trio.fail_after(timeout_s):
            while (code := self.process.poll()) is None:
                await trio.sleep(0.05)
        return code

    def left_running(self) -> str:
        """The processes that still know its run folder."""
        listing = subprocess.run(["ps", "axww", "-o", "pid,args"], capture_output=True, text=True, check=True).stdout
        return "\n".join(line for line in listing.splitlines() if str(self.run_dir) in line)


@asynccontextmanager
async def demonstration(folder: Path, triton: str, *, piped: bool = False) -> AsyncIterator[Demonstration]:
    demo = Demonstration(folder, triton, piped=piped)
    try:
        yield demo
    finally:
        demo.process.kill()
        demo.process.wait()


@pytest.mark.parametrize(
    ("triton", "number"),
    [
        ("simulated", signal.SIGINT),
        pytest.param("real", signal.SIGTERM, marks=pytest.mark.real_triton),
    ],
)
async def test_runs_until_it_is_asked_to_stop_and_leaves_nothing(
    tmp_path: Path, triton: str, number: signal.Signals
) -> None:
    if triton == "real" and (reason := why_not_supported()) is not None:
        pytest.skip(reason)
    async with demonstration(tmp_path, triton) as demo:
        await demo.until_said("Ctrl-C stops everything.")
        async with httpx.AsyncClient(base_url=demo.url, timeout=30) as client:
            body = {"text_input": "What a wonderful day!"}
            answer = await client.post("/v2/models/sentiment/generate", json=body)
        assert answer.status_code == 200
        assert '"label": "positive"' in answer.json()["text_output"]
        assert '"what": "end"' in (demo.run_dir / "work.jsonl").read_text()
        demo.process.send_signal(number)
        assert await demo.exit_code() == 0
        assert demo.said().endswith("Stopped.\n")
        assert demo.left_running() == ""


async def test_child_that_dies_ends_everything_with_a_failure(tmp_path: Path) -> None:
    async with demonstration(tmp_path, "simulated") as demo:
        await demo.until_said("Ctrl-C stops everything.")
        [line] = [line for line in demo.left_running().splitlines() if "governor.simulator" in line]
        os.kill(int(line.split()[0]), signal.SIGKILL)
        assert await demo.exit_code() == 1
        assert "Triton ended by itself with exit code -9" in demo.said()
        assert demo.left_running() == ""


HANGS_BEFORE_IT_LISTENS_FOR_SIGNALS = """
import sys, types
module = types.ModuleType("governor.demo.demonstration")
module.main = lambda: print("here", flush=True) or sys.stdin.read()
sys.modules[module.__name__] = module
from governor.demo.__main__ import main
main()
"""


def test_ctrl_c_before_anything_has_started_ends_it_without_a_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS_BEFORE_IT_LISTENS_FOR_SIGNALS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0] == b""
    assert process.returncode == -signal.SIGINT


async def test_ctrl_c_that_ends_its_reader_too_is_obeyed(tmp_path: Path) -> None:
    """As in `make run | tee log`: the terminal sends it to both."""
    async with demonstration(tmp_path, "simulated", piped=True) as demo:
        reader = demo.process.stdout
        assert reader is not None
        await trio.to_thread.run_sync(reader.readline)
        reader.close()
        demo.process.send_signal(signal.SIGINT)
        assert await demo.exit_code() == 0
        assert demo.said() == ""
        assert demo.left_running() == ""


async def test_signal_while_starting_stops_it_too(tmp_path: Path) -> None:
    async with demonstration(tmp_path, "simulated") as demo:
        await demo.until_said("Starting the governor")
        demo.process.send_signal(signal.SIGTERM)
        assert await demo.exit_code() == 0
        assert demo.left_running() == ""
