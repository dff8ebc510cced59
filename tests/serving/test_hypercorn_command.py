"""`hypercorn -k trio MODULE:APP` is as safe, once MODULE calls `hardened.install()`."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from .inputs import HOSTILE_INPUTS
from .support import PATIENCE_S, ask, connect, get, read_all
from .test_hostile_inputs import send_hostile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MODULE = """
from api import hardened

hardened.install(hardened.ConnectionLimits(head_timeout_s=0.1))

async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
"""


@asynccontextmanager
async def hypercorn(folder: Path) -> AsyncIterator[tuple[int, trio.Process]]:
    """Runs the command on a module as above."""
    (folder / "plain.py").write_text(MODULE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "hypercorn", "-k", "trio", "-b", f"127.0.0.1:{port}", "plain:app"]
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        process: trio.Process = await nursery.start(run, command)
        try:
            await _answers(port)
            yield port, process
        finally:
            process.terminate()
            nursery.cancel_scope.deadline = trio.current_time() + PATIENCE_S


async def _answers(port: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                assert (await ask(port)).body == b"ok"
            except (OSError, trio.BrokenResourceError):
                await trio.sleep(0.02)
            else:
                return


async def test_every_killing_input_leaves_the_worker_alive(tmp_path: Path) -> None:
    """The worker loads the module before it looks up its connection class, in a process of its own."""
    async with hypercorn(tmp_path) as (port, process):
        for hostile in HOSTILE_INPUTS:
            if hostile.kills_stock:
                said = await send_hostile(port, hostile)
                assert process.returncode is None, hostile.name
                assert (await ask(port)).body == b"ok", hostile.name
                if hostile.name.startswith("h2"):
                    assert said.startswith(b"HTTP/1.1 505 "), hostile.name
        async with await connect(port) as client:
            await client.send_all(get("/")[:10])
            assert (await read_all(client)).startswith(b"HTTP/1.1 408 "), "the installed limits are in force"
