"""D2: a lane is one connection, is never lost, and knows which process it leads to."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

import pytest
import trio
import trio.testing

from governor.errors import BackendProtocolError, BackendUnavailableError, ConnectionLostError
from governor.triton.lane import CallEnd, Fetched, FreshConnection, Lane
from governor.triton.wire import WireRequest
from tests.triton.peer import CHUNKED, OK, PATIENCE_S, Connection, open_peer, post, run_to_end, serve

GET = WireRequest(method="GET", path="/v2")


async def test_request_on_the_wire_is_exactly_what_was_asked_for() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        lane = Lane(f"{peer.url}/prefix/")
        request = WireRequest(
            method="POST",
            path="/v2/models/a%2Fb%20c/infer?x=%41",
            headers=(("X-One", "1"), ("x-one", "zwei \xe4"), ("Content-Type", "text/plain")),
            body=b"hello",
        )

        async def call_three_times() -> None:
            for each in (request, GET, WireRequest(method="POST", path="/")):
                assert await run_to_end(lane.exchange(each)) == b"ok"

        nursery.start_soon(call_three_times)
        connection = await peer.accept()
        assert await connection.read_request() == (
            b"POST /prefix/v2/models/a%2Fb%20c/infer?x=%41 HTTP/1.1\r\n"
            b"Host: 127.0.0.1:" + str(peer.port).encode() + b"\r\n"
            b"X-One: 1\r\nx-one: zwei \xe4\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
        )
        await connection.send(OK)
        assert b"content-length" not in (await connection.read_request()).lower()
        await connection.send(OK)
        assert b"Content-Length: 0" in await connection.read_request()
        await connection.send(OK)
    lane.close()


async def test_answer_streams_as_it_arrives() -> None:
    async with open_peer() as peer:
        lane = peer.lane()
        async with trio.open_nursery() as nursery:
            sent, arrived = trio.open_memory_channel[bytes](0)

            async def read() -> None:
                async with lane.exchange(post()) as answer, sent:
                    assert answer.header("X-A") == "1"
                    assert answer.header("missing") is None
                    async for chunk in answer.chunks():
                        await sent.send(chunk)

            nursery.start_soon(read)
            connection = await peer.accept()
            await connection.read_request()
            await connection.send(CHUNKED.replace(b"\r\n\r\n", b"\r\nx-a: 1\r\n\r\n"))
            for piece in (b"a", b"bc", b"d" * 100_000):
                await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                got = b""
                with trio.fail_after(PATIENCE_S):
                    while len(got) < len(piece):
                        got += await arrived.receive()
                assert got == piece
            await connection.send(b"0\r\n\r\n")
        assert lane.idle
        lane.close()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", id="asked to close"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", id="HTTP/1.0"),
        pytest.param(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfake", id="a second answer right behind"),
        pytest.param(OK + b"x", id="one byte too many"),
    ],
)
async def test_connection_with_anything_wrong_after_the_answer_is_not_used_again(answer: bytes) -> None:
    """Were left-over bytes read as the next call's answer, its credit would come back while it executes."""
    async with open_peer() as peer, trio.open_nursery() as nursery:
        nursery.start_soon(serve, peer, answer, OK)
        lane = peer.lane()
        for generation in (1, 2):
            exchange = lane.exchange(post())
            assert await run_to_end(exchange) == b"ok"
            assert (exchange.end, exchange.generation) == (CallEnd.ANSWERED, generation)
        lane.close()


async def test_connection_on_which_an_idle_peer_speaks_is_not_used_again() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        lane = peer.lane()
        nursery.start_soon(run_to_end, lane.exchange(post()))
        first = await peer.accept()
        await first.read_request()
        await first.send(OK)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await first.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.start_soon(run_to_end, lane.exchange(post()))
        second = await peer.accept()
        await second.read_request()
        await second.send(OK)
    lane.close()


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        pytest.param(OK, CallEnd.ANSWERED, id="whole answer was there"),
        pytest.param(OK[:-1], CallEnd.UNKNOWN, id="a byte is missing"),
        pytest.param(CHUNKED + b"2\r\nok\r\n", CallEnd.UNKNOWN, id="last chunk is missing"),
    ],
)
async def test_block_left_early_ends_by_what_had_arrived_and_costs_the_connection(answer: bytes, end: CallEnd) -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        nursery.start_soon(serve, peer, answer)
        lane = peer.lane()
        exchange = lane.exchange(post())

        async def leave_early() -> None:
            async with exchange:
                await trio.testing.wait_all_tasks_blocked(0.01)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await leave_early()
        assert exchange.end is end
        assert not lane.connected
        nursery.cancel_scope.cancel()


async def test_too_large_answer_is_drained_without_being_kept_so_that_its_end_is_known() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        nursery.start_soon(serve, peer, CHUNKED + b"5\r\nhello\r\n" * 1000 + b"0\r\n\r\n", OK)
        lane = peer.lane()
        exchange = lane.exchange(post())
        with pytest.raises(BackendProtocolError, match="larger than the 4999 bytes"):
            async with exchange as answer:
                await answer.read(4999)
        assert exchange.end is CallEnd.ANSWERED
        assert await run_to_end(lane.exchange(post())) == b"ok"
        assert lane.generation == 1
        lane.close()


async def test_reading_on_after_a_failure_never_looks_like_a_complete_answer() -> None:
    """A generator that raised looks exhausted; taking that for the end of the body would free a credit early."""
    async with open_peer() as peer, trio.open_nursery() as nursery:
        nursery.start_soon(serve, peer, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", OK)
        lane = peer.lane()
        exchange = lane.exchange(post())

        async def cut() -> None:
            await trio.sleep(0.02)
            lane.close()

        async with exchange as answer:
            nursery.start_soon(cut)
            for _ in range(3):
                with pytest.raises(ConnectionLostError):
                    await answer.read(100)
        assert exchange.end is CallEnd.UNKNOWN
        nursery.cancel_scope.cancel()


# Closing


async def test_close_breaks_a_running_exchange_at_once() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        lane = peer.lane()
        exchange = lane.exchange(post())

        async def call() -> None:
            with pytest.raises(ConnectionLostError):
                await run_to_end(exchange)

        nursery.start_soon(call)
        connection = await peer.accept()
        await connection.read_request()
        lane.close()
        with trio.fail_after(PATIENCE_S):
            assert await connection.read_to_end() == b""
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert exchange.end is CallEnd.UNKNOWN
        assert not lane.connected


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_close_and_cancellation_give_up_a_connection_that_is_being_opened(how: str) -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        asked = trio.Event()

        async def slow_stamp(_: FreshConnection) -> str | None:
            asked.set()
            await trio.sleep_forever()

        lane = Lane(peer.url, connect_timeout_ms=60_000, stamp=slow_stamp)
        exchange = lane.exchange(post())
        scope = trio.CancelScope()

        async def call() -> None:
            with scope, pytest.raises(BackendUnavailableError, match="closed here"):
                await run_to_end(exchange)

        nursery.start_soon(call)
        connection = await peer.accept()
        await asked.wait()
        lane.close() if how == "close" else scope.cancel()
        with trio.fail_after(PATIENCE_S):
            assert await connection.read_to_end() == b"", "no socket may be left behind"
        assert exchange.end is CallEnd.NEVER_DELIVERED
        assert not lane.connected
        assert not lane.idle


async def test_lane_survives_any_number_of_cancellations() -> None:
    """T2: no cancellation may cost a lane."""
    source = random.Random(7)
    async with open_peer() as peer, trio.open_nursery() as nursery:

        async def answer_all(connection: Connection) -> None:
            try:
                while True:
                    await connection.read_request()
                    await trio.sleep(0.001)
                    await connection.send(OK)
            except (EOFError, trio.BrokenResourceError):
                connection.close()

        async def accept_all() -> None:
            while True:
                nursery.start_soon(answer_all, await peer.accept())

        nursery.start_soon(accept_all)
        lane = peer.lane()
        ends: list[CallEnd | None] = []
        for _ in range(300):
            exchange = lane.exchange(post())
            with trio.move_on_after(source.uniform(0, 0.005)):
                await run_to_end(exchange)
            ends.append(exchange.end)
            assert exchange.end is not None
        assert {*ends} == set(CallEnd)
        assert await run_to_end(lane.exchange(post())) == b"ok"
        assert lane.idle
        lane.close()
        nursery.cancel_scope.cancel()


async def test_one_exchange_at_a_time() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        lane = peer.lane()
        nursery.start_soon(run_to_end, lane.exchange(post()))
        connection = await peer.accept()
        await connection.read_request()
        second = lane.exchange(post())
        with pytest.raises(RuntimeError, match="one exchange at a time"):
            await run_to_end(second)
        assert second.end is CallEnd.NEVER_DELIVERED
        idle = [lane.idle]
        await connection.send(OK)
    idle.append(lane.idle)
    assert idle == [False, True]
    await lane.aclose()
    assert not lane.connected


# Small requests


async def test_fetch_returns_status_and_body() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        nursery.start_soon(serve, peer, b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno")
        lane = peer.lane()
        assert await lane.fetch(GET, max_bytes=2, timeout_ms=2_000) == Fetched(404, b"no")
        lane.close()


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b"", ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", ConnectionLostError),
        (CHUNKED + b"7\r\nendless\r\n" * 10_000, BackendProtocolError),
    ],
)
async def test_fetch_is_bounded_in_time_and_size_and_hangs_up(sent: bytes, kind: type[Exception]) -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        lane = peer.lane()

        async def fetch() -> None:
            with pytest.raises(kind):
                await lane.fetch(GET, max_bytes=1000, timeout_ms=100)

        nursery.start_soon(fetch)
        connection = await peer.accept()
        await connection.read_request()
        with suppress(trio.BrokenResourceError):  # the client hangs up in the middle of the large one
            await connection.send(sent)
        with trio.fail_after(PATIENCE_S):
            await connection.read_to_end()
    assert not lane.connected


async def _never_answered(_: FreshConnection) -> str | None:
    await trio.sleep_forever()


async def test_connecting_is_bounded_in_time() -> None:
    """A host that drops packets must not hold a slot credit for the kernel's two minutes."""
    async with open_peer() as peer:
        lane = Lane(peer.url, connect_timeout_ms=50, stamp=_never_answered)
        with trio.fail_after(PATIENCE_S), pytest.raises(BackendUnavailableError, match="within 50 ms"):
            await lane.connect()


async def test_vanished_peer_is_found_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no read timeout, so the socket's own probes must be on."""
    options: dict[int, int] = {}
    real = trio.SocketStream.setsockopt

    def spy(stream: trio.SocketStream, level: int, option: int, value: int) -> None:
        options[option] = value
        real(stream, level, option, value)

    monkeypatch.setattr(trio.SocketStream, "setsockopt", spy)
    async with open_peer() as peer:
        lane = peer.lane()
        await lane.connect()
        lane.close()
    assert options[socket.SO_KEEPALIVE] == 1
    assert options[socket.TCP_NODELAY]
    assert [options[o] for o in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)] == [15, 5, 3]
    assert options[socket.TCP_USER_TIMEOUT] == 30_000


async def test_certificate_that_cannot_be_trusted_is_never_spoken_to() -> None:
    async with open_peer(tls=True) as peer, trio.open_nursery() as nursery:
        lane = Lane(peer.url)

        async def refuse() -> None:
            connection = await peer.accept()
            with pytest.raises((trio.BrokenResourceError, EOFError)):
                await connection.read_request()

        nursery.start_soon(refuse)
        exchange = lane.exchange(post())
        with pytest.raises(BackendUnavailableError, match="certificate verify failed"):
            await run_to_end(exchange)
        assert exchange.end is CallEnd.NEVER_DELIVERED


async def test_host_that_cannot_be_looked_up_is_unavailable() -> None:
    for host in ("no-such-host.invalid", "x" * 70):
        with pytest.raises(BackendUnavailableError):
            await Lane(f"http://{host}:8000").connect()
