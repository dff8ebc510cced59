"""A simulated Triton and a governor in front of it, each a process of its own, and the client under Node."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest
import trio

from governor.demo.ports import free_ports
from tests.e2e.simulated import simulated_triton
from tests.e2e.stack import Governor, governor_config, running_governor
from tests.interop import node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

START_S = 30.0


@pytest.fixture(scope="session", autouse=True)
def client_package() -> None:
    reason = node.why_not_here()
    if reason is not None:
        pytest.skip(reason)
    node.install()


@pytest.fixture(scope="session")
def triton_url(client_package: None) -> Iterator[str]:
    """The URL of a simulated Triton."""
    with simulated_triton() as url:
        yield url


@pytest.fixture
def govern(triton_url: str, tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Governor]]:
    """Runs a governor of the test's own; `limits`, `server` and `backend` are lines of its configuration file."""

    def run(**lines: str) -> AbstractAsyncContextManager[Governor]:
        (port,) = free_ports(1)
        config = governor_config(port=port, triton_url=triton_url, metrics_url=None, **lines)
        return running_governor(config, port, tmp_path)

    return run


@pytest.fixture(scope="session")
def shared_url(triton_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the governor of all tests that need nothing special."""
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("governor")
    file, log, url = folder / "governor.toml", folder / "governor.log", f"http://127.0.0.1:{port}"
    file.write_text(governor_config(port=port, triton_url=triton_url, metrics_url=None))
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "api.cli", "serve", str(file)], stdout=sink, stderr=sink, env=environment
        )
    try:
        trio.run(_until_ready, url, process, log)
        yield url
    finally:
        process.kill()
        process.wait()


async def _until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        with trio.fail_after(START_S):
            while True:
                try:
                    if (await client.get("/readyz")).status_code == 200:
                        return
                except httpx.TransportError:
                    assert process.poll() is None, f"the governor has ended; see {log}"
                await trio.sleep(0.05)
