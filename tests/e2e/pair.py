"""A governor in front of a Triton, in a process of its own, for callers that are not async."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx

from governor.demo.ports import free_ports
from tests.e2e.stack import governor_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_S = 30.0


@contextmanager
def governor_in_front(triton_url: str, folder: Path, **lines: str) -> Iterator[str]:
    """The URL of a governor that is ready; `limits`, `server` and `backend` are lines of its configuration file."""
    (port,) = free_ports(1)
    file, log, url = folder / "governor.toml", folder / "governor.log", f"http://127.0.0.1:{port}"
    file.write_text(governor_config(port=port, triton_url=triton_url, metrics_url=None, **lines))
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "api.cli", "serve", str(file)], stdout=sink, stderr=sink, env=environment
        )
    try:
        _wait_ready(url, process, log)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            assert process.poll() is None, f"the governor has ended:\n{log.read_text()}"
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"the governor was not ready:\n{log.read_text()}")
