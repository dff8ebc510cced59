"""E8: a lane knows which process its connection leads to, before its first call."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from governor.errors import BackendUnavailableError
from governor.triton.lane import CallEnd, FreshConnection
from governor.triton.wire import WireRequest
from tests.triton.peer import OK, open_peer, post, run_to_end, serve

GET = WireRequest(method="GET", path="/v2")


async def _ask(connection: FreshConnection) -> str | None:
    status, body = await connection.fetch(GET, max_bytes=100)
    assert status == 200
    return body.decode()


async def test_every_fresh_connection_is_stamped_before_its_first_call() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        lane = peer.lane(stamp=_ask)
        for generation, boot in ((1, b"one"), (2, b"two")):
            nursery.start_soon(lane.connect)
            connection = await peer.accept()
            assert (await connection.read_request()).startswith(b"GET /v2 ")
            await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" + boot)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert (lane.boot, lane.generation) == (boot.decode(), generation)
            exchange = lane.exchange(post())
            nursery.start_soon(run_to_end, exchange)
            assert (await connection.read_request()).startswith(b"POST ")
            await connection.send(OK)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert (exchange.boot, exchange.generation) == (boot.decode(), generation)
            lane.close()
            assert lane.boot is None


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n" + b"x" * 200])
async def test_call_whose_connection_could_not_be_stamped_is_never_delivered(answer: bytes) -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        lane = peer.lane(stamp=_ask)
        exchange = lane.exchange(post())

        async def call() -> None:
            with pytest.raises(BackendUnavailableError, match="could not be asked who it is"):
                await run_to_end(exchange)

        nursery.start_soon(call)
        connection = await peer.accept()
        await connection.read_request()
        await connection.send(answer)
        connection.raw.socket.shutdown(socket.SHUT_WR)
        assert await connection.read_to_end() == b""
    assert exchange.end is CallEnd.NEVER_DELIVERED


async def test_peer_that_serves_one_request_per_connection_leaves_the_process_unknown() -> None:
    """The stamp's connection is gone, and nothing says that the next one leads to the same process."""
    stamped = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\none"
    async with open_peer() as peer, trio.open_nursery() as nursery:
        nursery.start_soon(serve, peer, stamped, OK)
        lane = peer.lane(stamp=_ask)
        exchange = lane.exchange(post())
        assert await run_to_end(exchange) == b"ok"
        assert (exchange.boot, exchange.generation) == (None, 2)
        lane.close()


async def test_fault_of_the_stamp_itself_is_not_hidden() -> None:
    async def faulty(_: FreshConnection) -> str | None:
        raise ZeroDivisionError

    async with open_peer() as peer:
        lane = peer.lane(stamp=faulty)
        with pytest.raises(ZeroDivisionError):
            await lane.connect()
        assert await (await peer.accept()).read_to_end() == b""
        assert not lane.connected
