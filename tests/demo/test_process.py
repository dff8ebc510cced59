"""A child process: its end, its group's end, and its parent's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import trio

from governor.demo.process import ChildProcess

if TYPE_CHECKING:
    from pathlib import Path

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
WITH_CHILD = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print(child.pid, flush=True); child.wait()"
)


def start(code: str, folder: Path) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", code], log=folder / "log", env=os.environ)


async def first_line(folder: Path) -> str:
    with trio.fail_after(10):
        while not (text := (folder / "log").read_text()).endswith("\n"):
            await trio.sleep(0.01)
    return text.strip()


async def test_exit_code_and_output(tmp_path: Path) -> None:
    process = start("import sys; print('said'); sys.exit(3)", tmp_path)
    assert await process.wait() == 3
    assert (process.returncode, await first_line(tmp_path)) == (3, "said")


async def test_stop_asks_first_and_kills_after_the_grace(tmp_path: Path) -> None:
    process = start(STUBBORN, tmp_path)
    assert await first_line(tmp_path) == "up"
    assert await process.stop(grace_s=0.2) == -signal.SIGKILL
    polite = start("import time; print('up', flush=True); time.sleep(60)", tmp_path)
    assert await polite.stop(grace_s=10) == -signal.SIGTERM


async def test_cancelled_stop_leaves_nothing_running(tmp_path: Path) -> None:
    process = start(STUBBORN, tmp_path)
    await first_line(tmp_path)
    with trio.move_on_after(0.1):
        await process.stop(grace_s=60)
    assert process.returncode == -signal.SIGKILL


async def test_end_takes_the_whole_group(tmp_path: Path) -> None:
    process = start(WITH_CHILD, tmp_path)
    child = int(await first_line(tmp_path))
    process.end_now()
    await process.wait_for_group(5)
    assert process.group_is_empty()
    assert not is_running(child)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
async def test_child_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path; from governor.demo.process import ChildProcess\n"
        "command = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        f"child = ChildProcess(command, log=Path({str(tmp_path / 'child')!r}), env=os.environ)\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    with (tmp_path / "log").open("wb") as log:
        parent = subprocess.Popen([sys.executable, "-c", script], stdout=log)
    child = int(await first_line(tmp_path))
    assert is_running(child)
    parent.kill()
    parent.wait()
    with trio.fail_after(5):
        while is_running(child):
            await trio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123  # /proc is no place for paths
            return stat.read().rsplit(")", 1)[1].split()[0] not in {"Z", "X"}
    except FileNotFoundError:
        return False
