"""ADR-0018: a body that goes ahead of its end is delivered by its end alone, and delivery stays exact (E3)."""

from __future__ import annotations

import pytest
import trio

from governor.errors import BackendUnavailableError
from governor.triton.lane import CallEnd, Delivery, Exchange
from tests.triton.peer import OK, PATIENCE_S, Connection, Peer, open_peer, post, run_to_end
from tests.triton.test_delivery import CancelAt, Seen, assert_end, connected, serve_and_watch

BODY = b"0123456789"


async def all_but_the_end(exchange: Exchange, body: bytes = BODY, *, pieces: int = 3) -> None:
    """Begins the exchange and sends everything but the last byte."""
    await exchange.begin(len(body))
    step = max(1, len(body) // pieces)
    for start in range(0, len(body) - 1, step):
        await exchange.send_ahead(memoryview(body)[start : min(start + step, len(body) - 1)])
    exchange.end_with(body[-1:], None)


async def begun(peer: Peer) -> tuple[Exchange, Connection]:
    lane = peer.lane()
    connection = await connected(peer, lane)
    exchange = lane.exchange(post(b""))
    await all_but_the_end(exchange)
    return exchange, connection


async def test_the_end_alone_delivers_it() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        exchange, connection = await begun(peer)
        while b"\r\n\r\n012345678" not in connection.received:
            connection.received += await connection.stream.receive_some(100)
        assert exchange.delivery is Delivery.NOT_DELIVERED
        assert exchange.end is None

        async def serve() -> None:
            assert (await connection.read_request()).endswith(b"Content-Length: 10\r\n\r\n" + BODY)
            assert exchange.delivery is Delivery.DELIVERED
            await connection.send(OK)

        nursery.start_soon(serve)
        assert await run_to_end(exchange) == b"ok"
        assert_end(exchange, CallEnd.ANSWERED)


async def test_who_is_told_of_the_delivery_may_be_named_with_the_end() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        lane = peer.lane()
        connection = await connected(peer, lane)
        exchange = lane.exchange(post(b""))
        told: list[Delivery] = []
        await exchange.begin(2)
        await exchange.send_ahead(b"o")
        exchange.end_with(b"k", lambda: told.append(exchange.delivery))
        assert not told

        async def serve() -> None:
            await connection.read_request()
            await connection.send(OK)

        nursery.start_soon(serve)
        assert await run_to_end(exchange) == b"ok"
        assert told == [Delivery.DELIVERED]
        lane.close()


async def test_what_would_deliver_it_early_is_refused() -> None:
    """E3: the last byte cannot go ahead, and what is left must be what was declared."""
    async with open_peer() as peer:
        lane = peer.lane()
        connection = await connected(peer, lane)
        exchange = lane.exchange(post(b""))
        with pytest.raises(ValueError, match="would deliver"):
            await exchange.begin(0)
        await exchange.begin(3)
        for piece in (b"abc", b"abcd"):
            with pytest.raises(ValueError, match="would deliver"):
                await exchange.send_ahead(piece)
        await exchange.send_ahead(b"a")
        for end in (b"b", b"bcd", b""):
            with pytest.raises(ValueError, match="ends after 2 bytes"):
                exchange.end_with(end, None)
        exchange.give_up()
        assert (await connection.read_to_end()).endswith(b"\r\n\r\na")
        assert_end(exchange, CallEnd.NEVER_DELIVERED)


async def test_one_that_is_given_up_costs_its_connection_and_not_its_lane() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        lane = peer.lane()
        connection = await connected(peer, lane)
        exchange = lane.exchange(post(b""))
        await all_but_the_end(exchange)
        exchange.give_up()
        exchange.give_up()
        assert_end(exchange, CallEnd.NEVER_DELIVERED)
        assert not lane.connected
        assert (await connection.read_to_end()).endswith(BODY[:-1])

        async def serve() -> None:
            second = await peer.accept()
            await second.read_request()
            await second.send(OK)

        nursery.start_soon(serve)
        assert await run_to_end(lane.exchange(post())) == b"ok"
        lane.close()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_peer_that_leaves_meanwhile_never_gets_the_end(how: str) -> None:
    async with open_peer() as peer:
        exchange, connection = await begun(peer)
        await connection.stream.receive_some(10_000)
        getattr(connection, how)()
        await trio.testing.wait_all_tasks_blocked(0.02)
        with trio.fail_after(PATIENCE_S), pytest.raises(BackendUnavailableError):
            await run_to_end(exchange)
        assert_end(exchange, CallEnd.NEVER_DELIVERED)


async def test_an_answer_that_comes_meanwhile_is_passed_on_and_the_end_is_not_sent() -> None:
    """The backend has refused it: sending the end could only make it doubtful whether it executes."""
    async with open_peer() as peer:
        exchange, connection = await begun(peer)
        await connection.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nbad")
        await trio.testing.wait_all_tasks_blocked(0.02)
        async with exchange as answer:
            assert (answer.status, await answer.read(10)) == (400, b"bad")
        assert_end(exchange, CallEnd.NEVER_DELIVERED)
        assert (await connection.read_to_end()).endswith(BODY[:-1])


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [(CONTINUE, b""), (HINTS + CONTINUE, b""), (HINTS[:20], HINTS[20:])],
    ids=["one", "two", "one in two pieces"],
)
async def test_an_interim_answer_is_none_and_the_end_is_sent(before: bytes, after: bytes) -> None:
    """RFC 9110 15.2: whoever waits for the final answer first would wait for ever, and hold its slot."""
    async with open_peer() as peer, trio.open_nursery() as nursery:
        exchange, connection = await begun(peer)
        await connection.send(before)
        await trio.testing.wait_all_tasks_blocked(0.02)

        async def serve() -> None:
            await trio.testing.wait_all_tasks_blocked(0.02)
            await connection.send(after)
            assert (await connection.read_request()).endswith(BODY)
            await connection.send(OK)

        nursery.start_soon(serve)
        with trio.fail_after(PATIENCE_S):
            assert await run_to_end(exchange) == b"ok"
        assert_end(exchange, CallEnd.ANSWERED)


async def test_the_beginning_of_an_answer_is_one() -> None:
    """The end is not sent, and the rest of the answer is waited for, behind an interim one too."""
    async with open_peer() as peer, trio.open_nursery() as nursery:
        exchange, connection = await begun(peer)
        await connection.send(CONTINUE + b"HTTP/1.1 503 Bu")
        await trio.testing.wait_all_tasks_blocked(0.02)

        async def finish() -> None:
            await trio.testing.wait_all_tasks_blocked(0.02)
            await connection.send(b"sy\r\nContent-Length: 4\r\n\r\nbusy")

        nursery.start_soon(finish)
        async with exchange as answer:
            assert (answer.status, await answer.read(10)) == (503, b"busy")
        assert_end(exchange, CallEnd.NEVER_DELIVERED)
        assert (await connection.read_to_end()).endswith(BODY[:-1])


async def test_an_answer_in_the_middle_of_the_upload_is_passed_on() -> None:
    """As for a body that is sent in one go: what hangs up may have said why."""
    async with open_peer(receive_buffer=16_384) as peer, trio.open_nursery() as nursery:
        lane = peer.lane(write_timeout_ms=2_000)
        connection = await connected(peer, lane)

        async def refuse() -> None:
            await connection.stream.receive_some(100)
            await connection.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
            await trio.sleep(0.05)  # the answer must be there before the reset that ends the upload
            connection.reset()

        nursery.start_soon(refuse)
        exchange = lane.exchange(post(b""))
        await all_but_the_end(exchange, bytes(8_000_000), pieces=20)
        async with exchange as answer:
            assert (answer.status, await answer.read(10)) == (413, b"big")
        assert_end(exchange, CallEnd.NEVER_DELIVERED)


async def test_it_stands_until_the_peer_says_something() -> None:
    async with open_peer() as peer:
        exchange, connection = await begun(peer)
        assert exchange.stands
        await connection.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nbad")
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert not stands(exchange)
        exchange.give_up()


async def test_it_stands_until_it_is_given_up() -> None:
    async with open_peer() as peer:
        exchange, connection = await begun(peer)
        assert stands(exchange)
        exchange.give_up()
        assert not stands(exchange)
        await connection.read_to_end()


def stands(exchange: Exchange) -> bool:
    """Asked anew."""
    return exchange.stands


async def test_one_that_was_cut_does_not_stand() -> None:
    """Also where the peer has sent nothing: the write has failed."""
    async with open_peer(receive_buffer=16_384) as peer, trio.open_nursery() as nursery:
        lane = peer.lane(write_timeout_ms=2_000)
        connection = await connected(peer, lane)

        async def hang_up() -> None:
            await connection.stream.receive_some(100)
            connection.reset()

        nursery.start_soon(hang_up)
        exchange = lane.exchange(post(b""))
        await all_but_the_end(exchange, bytes(8_000_000), pieces=20)
        assert not exchange.stands
        exchange.give_up()


async def test_a_lane_that_is_closed_meanwhile_never_delivers() -> None:
    """E6: what was known to lead to a replaced process is closed here; the end must not go anywhere."""
    async with open_peer() as peer:
        lane = peer.lane()
        connection = await connected(peer, lane)
        exchange = lane.exchange(post(b""))
        await all_but_the_end(exchange)
        lane.close()
        with pytest.raises(BackendUnavailableError):
            await run_to_end(exchange)
        assert_end(exchange, CallEnd.NEVER_DELIVERED)
        assert (await connection.read_to_end()).endswith(BODY[:-1])


async def test_a_lane_that_is_closed_in_the_middle_ends_the_upload() -> None:
    async with open_peer() as peer:
        lane = peer.lane()
        connection = await connected(peer, lane)
        exchange = lane.exchange(post(b""))
        await exchange.begin(10)
        lane.close()
        with pytest.raises(BackendUnavailableError):
            await exchange.send_ahead(b"a")
        assert_end(exchange, CallEnd.NEVER_DELIVERED)
        assert (await connection.read_to_end()).endswith(b"Content-Length: 10\r\n\r\n")
        await lane_is_free(lane.exchange(post()), peer)


async def lane_is_free(exchange: Exchange, peer: Peer) -> None:
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            connection = await peer.accept()
            await connection.read_request()
            await connection.send(OK)

        nursery.start_soon(serve)
        assert await run_to_end(exchange) == b"ok"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("size", [2, 40_000, 300_000])
async def test_cancelled_at_any_step_delivery_is_what_the_peer_saw(size: int, *, tls: bool) -> None:
    """E3, as in `test_delivery`: at the n-th scheduling event, for every n."""
    body = b"b" * size
    outcomes: set[CallEnd] = set()
    for step in range(4_000):
        async with open_peer(tls=tls, receive_buffer=16_384) as peer, trio.open_nursery() as nursery:
            lane = peer.lane()
            exchange = lane.exchange(post(b""))
            seen = Seen()
            nursery.start_soon(serve_and_watch, peer, seen)
            with trio.fail_after(PATIENCE_S), trio.CancelScope() as scope:
                async with CancelAt(scope, step):
                    try:
                        await all_but_the_end(exchange, body)
                    except BaseException:
                        exchange.give_up()
                        raise
                    assert await run_to_end(exchange) == b"ok"
            lane.close()
            seen.serving.deadline = trio.current_time() + (PATIENCE_S if lane.generation else 0.2)
            await seen.over.wait()
            assert exchange.end is not None
            assert (exchange.delivery is Delivery.DELIVERED) == seen.whole, f"cancelled at step {step}"
            outcomes.add(exchange.end)
            if not scope.cancelled_caught:
                assert_end(exchange, CallEnd.ANSWERED)
                break
            nursery.cancel_scope.cancel()
    assert outcomes >= {CallEnd.NEVER_DELIVERED, CallEnd.ANSWERED}
