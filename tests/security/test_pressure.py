"""Clients that want to wear the service out, against the process as it is served (docs/security.md, "Pressure")."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import pytest
import trio

from tests.api.harness import make_config
from tests.api.test_main import SERVER, Running, raw, running, runtime_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["runtime_dir"]

CONNECTIONS = 20


@pytest.fixture
async def up(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    server = {**SERVER, "max_connections": CONNECTIONS, "max_in_flight": 5, "keep_alive_timeout_ms": 2_000}
    async with running(monkeypatch, make_config(server=server)) as service:
        yield service


async def status_of(stream: trio.SocketStream) -> int:
    """The status of an answer."""
    taken = b""
    with trio.fail_after(15):
        while b"\r\n" not in taken:
            piece = await stream.receive_some()
            assert piece, f"the connection ended after {taken!r}"
            taken += piece
    return int(taken.split(b" ")[1])


async def sent_until_cut(stream: trio.SocketStream, piece: bytes, most: int) -> int:
    """How many bytes could be sent before the connection was cut."""
    sent = 0
    with trio.fail_after(20), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while sent < most:
            await stream.send_all(piece)
            sent += len(piece)
    return sent


async def alive(up: Running) -> bool:
    async with up.client() as client:
        return (await client.get("/healthz")).status_code == 200


async def test_a_flood_of_connections_is_bounded_told_and_over_when_it_ends(up: Running) -> None:
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(await raw(up)) for _ in range(CONNECTIONS)]
        await trio.sleep(0.1)
        beyond = await stack.enter_async_context(await raw(up))
        assert await status_of(beyond) == 503
        await streams[0].send_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % up.port)
        assert await status_of(streams[0]) == 200, "who is in is served"
    await trio.sleep(0.2)
    assert await alive(up)


@pytest.mark.slow
async def test_slow_heads_hold_their_connections_only_for_a_while(up: Running) -> None:
    """Slowloris: a byte now and then does not keep a connection."""
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(await raw(up)) for _ in range(CONNECTIONS)]
        for stream in streams:
            await stream.send_all(b"GET / HTTP/1.1\r\nX-Slow: ")
        closed = 0

        async def drip(stream: trio.SocketStream) -> None:
            nonlocal closed
            with trio.move_on_after(14):
                try:
                    while True:
                        await stream.send_all(b"x")
                        await trio.sleep(0.5)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    closed += 1

        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(drip, stream)
        assert closed == CONNECTIONS
    assert await alive(up)


async def test_huge_and_endless_headers_are_refused(up: Running) -> None:
    async with await raw(up) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\n")
        assert await sent_until_cut(stream, b"X-Endless: " + b"x" * 1000 + b"\r\n", 100_000_000) < 20_000_000
    async with await raw(up) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nX-Huge: " + b"x" * 100_000 + b"\r\n\r\n")
        assert await status_of(stream) == 431
    assert await alive(up)


async def test_an_endless_body_is_cut_at_its_limit(up: Running) -> None:
    async with await raw(up) as stream:
        await stream.send_all(
            b"POST /session HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nTransfer-Encoding: chunked\r\n\r\n" % up.port
        )
        chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        sent = await sent_until_cut(stream, chunk, 200_000_000)
    assert sent < 50_000_000, "the limit is 10 MB, and some more may be on its way"
    assert await alive(up)


async def test_more_requests_than_may_be_in_flight_are_refused_but_never_a_probe(up: Running) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(5):
            stream = await stack.enter_async_context(await raw(up))
            await stream.send_all(
                b"POST /session HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 10\r\n\r\n{" % up.port
            )
        await trio.sleep(0.2)
        async with up.client() as client:
            refused = await client.get("/capabilities")
            assert (refused.status_code, refused.json()["code"]) == (503, "too_many_requests_in_flight")
            assert (await client.get("/readyz")).status_code in {200, 503}
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/metrics")).status_code == 200
    await trio.sleep(0.2)
    assert await alive(up)
