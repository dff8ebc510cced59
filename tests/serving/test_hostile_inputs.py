"""T2: no input from a client may end the process, nor leave a task or a file behind."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import hypercorn.trio
import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import run as trio_worker
from hypercorn.trio.tcp_server import TCPServer

from .inputs import HOSTILE_INPUTS, HostileInput
from .support import BareApp, ask, connect, eventually, open_files, quart_app, serving, settled, task_names

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

QUIET_S: Final = 0.03
"""Once a server has said nothing for so long, its client sends its next part, or leaves."""


TRIES: Final = 50
"""One of the inputs kills only if two tasks happen to be scheduled in one of the two possible orders."""


async def send_hostile(port: int, hostile: HostileInput) -> bytes:
    """Plays the client; returns what the server said."""
    said = b""
    async with await connect(port) as client:
        try:
            for part in hostile.parts:
                await client.send_all(part)
                heard = b"?"
                while heard:
                    heard = b""
                    with trio.move_on_after(QUIET_S):
                        heard = await client.receive_some(65536)
                    said += heard
        except trio.BrokenResourceError:
            pass  # refused in mid-sentence
    return said


def test_there_are_51_distinct_inputs() -> None:
    assert len({hostile.name for hostile in HOSTILE_INPUTS}) == len(HOSTILE_INPUTS) == 51


@pytest.mark.parametrize("kind", ["bare", "quart"])
async def test_every_hostile_input_leaves_the_service_as_it_was(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    app: ASGIFramework = BareApp() if kind == "bare" else quart_app()
    async with serving(app) as server:
        await settled(server)
        tasks, files = task_names(), open_files()
        for hostile in HOSTILE_INPUTS:
            said = await send_hostile(server.port, hostile)
            assert not server.ended.is_set(), hostile.name
            assert (await ask(server.port)).body == b"ok", hostile.name
            await eventually(lambda: task_names() == tasks)
            await eventually(lambda: open_files() == files)
            if hostile.name.startswith("h2"):
                assert said.startswith(b"HTTP/1.1 505 "), hostile.name
    assert "connection failed" not in caplog.text, "known inputs are answered, not only contained"


@pytest.mark.parametrize("hostile", [h for h in HOSTILE_INPUTS if h.kills_stock], ids=lambda hostile: str(hostile.name))
async def test_the_stock_worker_dies_of_it(hostile: HostileInput, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the inputs above are worth their name; one that stops killing makes its mend superfluous."""
    monkeypatch.setattr(trio_worker, "TCPServer", TCPServer)
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None
    died = trio.Event()

    async def stock(task_status: trio.TaskStatus[list[str]]) -> None:
        try:
            await hypercorn.trio.serve(BareApp(), config, task_status=task_status, mode="asgi")
        except* Exception:  # noqa: BLE001  # whatever it is
            died.set()

    async with trio.open_nursery() as nursery:
        urls = await nursery.start(stock)
        for _ in range(TRIES):
            with suppress(OSError, trio.TooSlowError):
                await send_hostile(int(urls[0].rpartition(":")[2]), hostile)
            with trio.move_on_after(QUIET_S):
                await died.wait()
                break
        nursery.cancel_scope.cancel()
    assert died.is_set()
