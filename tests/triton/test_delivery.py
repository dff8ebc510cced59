"""E3: for every way in which an exchange can go, delivery and end say exactly what happened on the wire."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
import trio

from governor.errors import BackendError, BackendProtocolError, BackendUnavailableError, ConnectionLostError
from governor.triton.lane import CallEnd, Delivery, Exchange, Lane
from governor.triton.transport import WireStream
from tests.triton.peer import CHUNKED, OK, PATIENCE_S, Connection, Peer, open_peer, post, run_to_end

BIG = b"x" * 8_000_000  # more than any socket buffer here takes


def assert_end(exchange: Exchange, end: CallEnd) -> None:
    delivered = Delivery.NOT_DELIVERED if end is CallEnd.NEVER_DELIVERED else Delivery.DELIVERED
    assert (exchange.delivery, exchange.end) == (delivered, end)


async def broken_exchange(peer: Peer, kind: type[BackendError], body: bytes, script: object) -> Exchange:
    """Run one exchange against `script(connection)` and check that it fails with `kind`."""
    assert callable(script)
    lane = peer.lane()
    exchange = lane.exchange(post(body))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(script, await connected(peer, lane))
        with trio.fail_after(PATIENCE_S), pytest.raises(kind):
            await run_to_end(exchange)
    assert not lane.connected, "a broken exchange costs its connection"
    return exchange


async def connected(peer: Peer, lane: Lane) -> Connection:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.connect)
        return await peer.accept()


async def test_refused_connection_is_never_delivered() -> None:
    async with open_peer() as peer:
        url = peer.url
    lane = Lane(url)
    exchange = lane.exchange(post())
    with pytest.raises(BackendUnavailableError, match="Connection refused"):
        await run_to_end(exchange)
    assert_end(exchange, CallEnd.NEVER_DELIVERED)


async def test_complete_answers_are_delivered_and_share_one_connection() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        lane = peer.lane()
        connection = await connected(peer, lane)
        for number in range(3):
            told: list[Delivery] = []
            exchange = lane.exchange(post(b"%d" % number), on_delivered=lambda: told.append(exchange.delivery))  # noqa: B023
            assert exchange.end is None
            assert exchange.delivery is Delivery.NOT_DELIVERED

            async def serve() -> None:
                assert (await connection.read_request()).endswith(b"\r\n\r\n%d" % number)  # noqa: B023
                await connection.send(OK)

            nursery.start_soon(serve)
            assert await run_to_end(exchange) == b"ok"
            assert_end(exchange, CallEnd.ANSWERED)
            assert told == [Delivery.DELIVERED]
            assert exchange.generation == 1
        assert peer.accepted == 1
        assert lane.idle
        lane.close()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_peer_gone_before_the_body_was_taken_is_never_delivered(how: str) -> None:
    async def script(connection: Connection) -> None:
        await connection.stream.receive_some(100)
        getattr(connection, how)()

    async with open_peer(receive_buffer=16_384) as peer:
        assert_end(await broken_exchange(peer, BackendUnavailableError, BIG, script), CallEnd.NEVER_DELIVERED)


async def test_peer_that_stops_reading_is_never_delivered_after_the_write_timeout() -> None:
    async with open_peer(receive_buffer=16_384) as peer:
        lane = peer.lane(write_timeout_ms=100)
        connection = await connected(peer, lane)
        exchange = lane.exchange(post(BIG))
        with trio.fail_after(PATIENCE_S), pytest.raises(BackendUnavailableError, match="took no byte"):
            await run_to_end(exchange)
        assert_end(exchange, CallEnd.NEVER_DELIVERED)
        assert len(await connection.read_to_end()) < len(BIG)


async def test_slow_but_steady_upload_outlives_the_write_timeout() -> None:
    """The timeout bounds a stall, not an upload."""

    async def script(connection: Connection) -> None:
        while len(connection.received) < 4_000_000:
            await trio.sleep(0.03)
            connection.received += await connection.stream.receive_some(400_000)
        await connection.read_request()
        await connection.send(OK)

    async with open_peer(receive_buffer=65_536) as peer, trio.open_nursery() as nursery:
        lane = peer.lane(write_timeout_ms=200)
        nursery.start_soon(script, await connected(peer, lane))
        exchange = lane.exchange(post(BIG))
        started = trio.current_time()
        assert await run_to_end(exchange) == b"ok"
        assert trio.current_time() - started > 0.25, "the upload was too fast to show anything"
        assert_end(exchange, CallEnd.ANSWERED)
        lane.close()


async def test_early_answer_to_an_unread_body_is_an_answer_but_never_delivered() -> None:
    """A server may refuse an upload and close: its answer is passed on, and the call never executes."""

    async def script(connection: Connection) -> None:
        await connection.stream.receive_some(100)
        await connection.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await trio.sleep(0.05)  # the answer must be there before the reset that ends the upload
        connection.reset()

    async with open_peer(receive_buffer=16_384) as peer, trio.open_nursery() as nursery:
        lane = peer.lane(write_timeout_ms=500)
        nursery.start_soon(script, await connected(peer, lane))
        exchange = lane.exchange(post(BIG))
        async with exchange as answer:
            assert (answer.status, await answer.read(10)) == (413, b"big")
        assert_end(exchange, CallEnd.NEVER_DELIVERED)
        assert not lane.connected


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_peer_gone_after_the_whole_request_leaves_the_end_unknown(how: str) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        getattr(connection, how)()

    async with open_peer() as peer:
        assert_end(await broken_exchange(peer, ConnectionLostError, b"{}", script), CallEnd.UNKNOWN)
        assert peer.accepted == 1, "a delivered call is never sent again"


TRUNCATED = {
    "in the status line": b"HTTP/1.1 20",
    "in the headers": b"HTTP/1.1 200 OK\r\nContent-Le",
    "in a body with a length": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345",
    "before a body with a length": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
    "between chunks": CHUNKED + b"2\r\nok\r\n",
    "before the last chunk's end": CHUNKED + b"2\r\nok\r\n0\r\n",
    "after an interim answer": b"HTTP/1.1 103 Early Hints\r\n\r\n",
}


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("sent", TRUNCATED.values(), ids=TRUNCATED.keys())
async def test_truncated_answer_leaves_the_end_unknown(sent: bytes, how: str) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(sent)
        getattr(connection, how)()

    async with open_peer() as peer:
        assert_end(await broken_exchange(peer, ConnectionLostError, b"{}", script), CallEnd.UNKNOWN)


NOT_HTTP = {
    "no status line": b"hello\r\n\r\n",
    "binary": b"\x00\x01\x02\xff\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n",
    "bad chunk size": CHUNKED + b"zz\r\nok\r\n0\r\n\r\n",
    "switched protocols": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "endless header": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
    "status without end": b"HTTP/1.1 200 OK\r\n\r\nuntil the connection closes",
}


@pytest.mark.parametrize("sent", NOT_HTTP.values(), ids=NOT_HTTP.keys())
async def test_answer_that_is_not_http_leaves_the_end_unknown(sent: bytes) -> None:
    """Also the last: a body that ends by closing cannot be told from one that a crash cut off."""

    async def script(connection: Connection) -> None:
        await connection.read_request()
        with suppress(trio.BrokenResourceError, OSError):  # the client may hang up in the middle of it
            await connection.send(sent)
            connection.raw.socket.shutdown(trio.socket.SHUT_WR)
        await connection.read_to_end()

    async with open_peer() as peer:
        assert_end(await broken_exchange(peer, BackendProtocolError, b"{}", script), CallEnd.UNKNOWN)


async def test_connection_closed_while_idle_is_replaced_before_anything_is_sent() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        lane = peer.lane()
        first = await connected(peer, lane)
        first.close()
        await trio.testing.wait_all_tasks_blocked(0.01)
        exchange = lane.exchange(post())
        nursery.start_soon(run_to_end, exchange)
        second = await peer.accept()
        await second.read_request()
        await second.send(OK)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert_end(exchange, CallEnd.ANSWERED)
        assert exchange.generation == 2
        lane.close()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_close_that_crosses_the_request_counts_as_delivered_and_is_not_retried(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer closed its idle connection, but we could not know it yet: the kernel took the bytes, so they may
    have been read. Only evidence tells; sending them again could execute them twice."""
    monkeypatch.setattr(WireStream, "readable", property(lambda _: False))
    async with open_peer() as peer:
        lane = peer.lane()
        connection = await connected(peer, lane)
        getattr(connection, how)()
        await trio.testing.wait_all_tasks_blocked(0.01)
        # One write: with a body there are two, and on a near connection the answer to the first is a reset that makes
        # the second fail, so that most of these crossings end as never delivered.
        exchange = lane.exchange(post(b""))
        with trio.fail_after(PATIENCE_S), pytest.raises(BackendError) as caught:
            await run_to_end(exchange)
        # A reset is known to the kernel before the write, so nothing can be handed to it.
        expected = CallEnd.UNKNOWN if how == "close" else CallEnd.NEVER_DELIVERED
        assert_end(exchange, expected)
        assert isinstance(caught.value, ConnectionLostError if how == "close" else BackendUnavailableError)
        assert peer.accepted == 1


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("size", [0, 400, 40_000, 1_000_000])
async def test_cancelled_at_any_step_delivery_is_what_the_peer_saw(size: int, *, tls: bool) -> None:
    """The claim of exactness, held against the truth: cancel at the n-th scheduling event, for every n, and compare
    `delivery` with whether the peer got the whole request."""
    body = b"b" * size
    outcomes: set[CallEnd] = set()
    for step in range(4_000):
        async with open_peer(tls=tls, receive_buffer=16_384) as peer, trio.open_nursery() as nursery:
            lane = peer.lane()
            exchange = lane.exchange(post(body))
            seen = Seen()
            nursery.start_soon(serve_and_watch, peer, seen)
            with trio.fail_after(PATIENCE_S), trio.CancelScope() as scope:
                async with CancelAt(scope, step):
                    assert await run_to_end(exchange) == b"ok"
            lane.close()
            # A cancellation before connecting leaves nothing to accept.
            seen.serving.deadline = trio.current_time() + (PATIENCE_S if lane.generation else 0.2)
            await seen.over.wait()
            assert exchange.end is not None
            delivered = exchange.delivery is Delivery.DELIVERED
            assert delivered == seen.whole, f"cancelled at step {step}: peer saw {seen.whole}"
            outcomes.add(exchange.end)
            if not scope.cancelled_caught:
                assert_end(exchange, CallEnd.ANSWERED)
                break
            nursery.cancel_scope.cancel()
    # How many steps a large body takes differs from run to run, so its sweep may step over the moment between the last
    # byte and the answer.
    expected = set(CallEnd) if size < 1_000_000 else {CallEnd.NEVER_DELIVERED, CallEnd.ANSWERED}
    assert outcomes >= expected, "the sweep must reach every kind of end"


class Seen:
    """What the peer knows at the end of a connection."""

    def __init__(self) -> None:
        self.whole = False
        self.over = trio.Event()
        self.serving = trio.CancelScope()


async def serve_and_watch(peer: Peer, seen: Seen) -> None:
    """Take the request slowly, answer it, and find out whether it was whole."""
    try:
        with seen.serving:
            connection = await peer.accept()
            try:
                await connection.read_request()
            except (EOFError, trio.BrokenResourceError):
                return
            seen.whole = True
            try:
                await connection.send(OK)
                await connection.read_to_end()
            except trio.BrokenResourceError:
                return
    finally:
        seen.over.set()


class CancelAt(trio.abc.Instrument):
    """Cancels a scope at the n-th scheduling event: a step of the task that entered, or a wait of the whole loop."""

    def __init__(self, scope: trio.CancelScope, step: int) -> None:
        self._scope = scope
        self._left = step
        self._task = trio.lowlevel.current_task()

    async def __aenter__(self) -> None:
        trio.lowlevel.add_instrument(self)

    async def __aexit__(self, *_: object) -> None:
        trio.lowlevel.remove_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._count()

    def before_io_wait(self, timeout: float) -> None:
        if timeout > 0 and not math.isinf(timeout):
            self._count()

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            self._scope.cancel()
