"""Clients that come and go in every way leave neither tasks nor files behind."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest
import trio

from .support import (
    BareApp,
    ask,
    connect,
    eventually,
    get,
    open_files,
    quart_app,
    reset,
    serving,
    settled,
    task_names,
)

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

CLIENTS: Final = 300
AT_ONCE: Final = 30
KINDS = pytest.mark.parametrize("kind", ["bare", "quart"])
REQUESTS: Final = (
    get("/"),
    get("/wait/0.02"),
    get("/events"),
    get("/events/large"),
    b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n" + bytes(50000),
    b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n" + bytes(20000),
    b"POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n" + bytes(100000),
    3 * get("/wait/0.01"),
    get("/")[:-3],
    get("/wait/0.02", "Expect: 100-continue"),
)


def application(kind: str) -> ASGIFramework:
    return BareApp() if kind == "bare" else quart_app()


async def one_client(port: int, dice: random.Random) -> None:
    """Sends something, perhaps reads something, and leaves in one of three ways."""
    client = await connect(port)
    data, wait_s, leave = dice.choice(REQUESTS), dice.choice([0, 0, 0.001, 0.005, 0.02]), dice.random()
    read = dice.choice([0, 0, 10, 1000, 100_000])
    try:
        with trio.move_on_after(0.1):
            await client.send_all(data)
        await trio.sleep(wait_s)
        with trio.move_on_after(0.05):
            if read:
                await client.receive_some(read)
        if leave < 0.3:
            await client.send_eof()
            await trio.sleep(wait_s)
    except trio.BrokenResourceError:
        pass  # the server was quicker
    if leave < 0.6:
        await reset(client)
    else:
        await client.aclose()


@KINDS
async def test_chaos_leaves_nothing_behind(kind: str) -> None:
    dice = random.Random(20261130)
    places = trio.CapacityLimiter(AT_ONCE)

    async def limited(port: int) -> None:
        async with places:
            await one_client(port, dice)

    async with serving(application(kind)) as server:
        await settled(server)
        tasks, files = task_names(), open_files()
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(limited, server.port)
        await eventually(lambda: task_names() == tasks)
        await eventually(lambda: open_files() == files)
        assert (await ask(server.port)).body == b"ok"


@KINDS
async def test_pipelining_clients_that_close_leave_nothing_behind(kind: str) -> None:
    """The stock worker loses task and file of about a quarter of them for good."""
    async with serving(application(kind)) as server:
        await settled(server)
        tasks, files = task_names(), open_files()
        for number in range(100):
            client = await connect(server.port)
            await client.send_all(3 * get("/wait/0.01" if number % 4 else "/"))
            await (reset(client) if number % 2 else client.aclose())
        await eventually(lambda: task_names() == tasks)
        await eventually(lambda: open_files() == files)
