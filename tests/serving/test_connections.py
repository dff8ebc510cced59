"""One test or more per mend of `api.hardened` that concerns a connection's life: see its classes for the faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from api import hardened
from api.hardened.connection import TURNED_AWAY_MAX
from api.hardened.request import RequestReader

from .support import (
    LARGE_BYTES,
    BareApp,
    ask,
    body,
    connect,
    eventually,
    get,
    quart_app,
    read_all,
    read_reply,
    respond,
    serving,
    settled,
    start,
    task_names,
)

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope


async def test_a_fault_in_one_connection_stays_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """HardenedConnection: even a fault that nobody foresaw ends only its own connection, and is logged."""
    feed = RequestReader.feed

    def faulty(self: RequestReader, data: bytes) -> None:
        feed(self, data)
        if b"/broken" in data:
            raise RuntimeError("unforeseen")

    monkeypatch.setattr(RequestReader, "feed", faulty)
    async with serving(BareApp()) as server:
        await settled(server)
        tasks = task_names()
        async with await connect(server.port) as neighbour, await connect(server.port) as client:
            await neighbour.send_all(get("/wait/0.1"))
            await client.send_all(get("/broken"))
            await read_all(client)
            assert (await read_reply(neighbour)).body == b"waited"
        await eventually(lambda: task_names() == tasks)
    assert "unforeseen" in caplog.text


@pytest.mark.parametrize("path", ["/events/large", "/large"])
async def test_a_reader_that_stalls_is_cut_off(path: str) -> None:
    """BoundedSender: the stock worker's shielded send holds the task until the client deigns to close."""
    app = BareApp()
    async with serving(app, send_timeout_s=0.2) as server:
        await settled(server)
        tasks = task_names()
        async with await connect(server.port, receive_buffer=4096) as client:
            await client.send_all(get(path))
            await eventually(lambda: path in app.ended, within_s=3)
            await eventually(lambda: task_names() == tasks, within_s=3)
            with pytest.raises(trio.BrokenResourceError):  # noqa: PT012  # what is left of it is not delivered
                while await client.receive_some(65536):
                    pass


async def test_a_slow_reader_that_keeps_taking_is_served_to_the_end() -> None:
    """BoundedSender: the bound is on each piece, not on the whole answer."""
    async with serving(BareApp(), send_timeout_s=0.2) as server:
        async with await connect(server.port, receive_buffer=65536) as client:
            await client.send_all(get("/large", "Connection: close"))
            began, received = trio.current_time(), 0
            with trio.fail_after(10):
                while piece := await client.receive_some(262144):
                    received += len(piece)
                    await trio.sleep(0.005)
        assert received > LARGE_BYTES
        assert trio.current_time() - began > 0.2, "too quick to show anything"


async def test_an_application_that_only_sends_learns_that_the_client_is_gone() -> None:
    """ClientGoneError: a stream that never calls `receive` would otherwise be computed for nobody, for ever."""
    fate: list[BaseException] = []

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        try:
            await send(start())
            while True:
                await send(body(b"x", more=True))
        except OSError as error:
            fate.append(error)
            raise

    async with serving(app) as server:
        async with await connect(server.port) as client:
            await client.send_all(get("/"))
            await client.receive_some(100)
        await eventually(lambda: bool(fate))
    assert isinstance(fate[0], hardened.ClientGoneError)


async def test_an_application_that_ignores_disconnects_starves_nobody() -> None:
    """Inbox: `receive` of a gone client returns at once, but always lets others run."""
    stop = trio.Event()

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        while scope["path"] == "/deaf" and not stop.is_set():
            await receive()
        await BareApp()(scope, receive, send)

    async with serving(app) as server:
        async with await connect(server.port) as client:
            await client.send_all(get("/deaf"))
        assert (await ask(server.port)).body == b"ok"
        stop.set()


async def test_an_answer_that_does_not_read_its_request_comes_through() -> None:
    """Inbox: the stock worker's final send waits for ever when ten body messages are unread (30 of 30 leaked)."""
    async with serving(BareApp()) as server:
        await settled(server)
        tasks = task_names()
        async with await connect(server.port) as client:
            await client.send_all(b"POST /unread HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            await client.send_all(b"10000\r\n" + bytes(65536) + b"\r\n")
            assert (await read_reply(client)).body == b"ok"
        await eventually(lambda: task_names() == tasks)


async def test_unread_body_messages_do_not_hold_up_the_last_send() -> None:
    """Inbox: the same with the queue certainly full, as the application answers only then."""
    full = trio.Event()

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        await full.wait()
        await BareApp()(scope, receive, send)

    async with serving(app) as server, await connect(server.port) as client:
        await client.send_all(b"POST /unread HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            await client.send_all(b"1\r\nx\r\n")
        await trio.testing.wait_all_tasks_blocked(0.02)
        full.set()
        assert (await read_reply(client)).body == b"ok"
        assert await read_all(client) == b"", "closed, as the body was not read to its end"


async def test_a_send_that_was_cut_short_ends_the_connection() -> None:
    """BoundedSender: half a message corrupts the next, so there is none; and the application is told."""
    fate: list[BaseException] = []

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        await send(start())
        with trio.move_on_after(0.05) as cancelled:
            await send(body(bytes(LARGE_BYTES), more=True))
        assert cancelled.cancelled_caught
        try:
            await send(body(b""))
        except OSError as error:
            fate.append(error)

    async with serving(app) as server, await connect(server.port, receive_buffer=4096) as client:
        await client.send_all(get("/"))
        await eventually(lambda: bool(fate))
        said = await read_all(client)
        assert not said.endswith(b"0\r\n\r\n"), "closed, without the last chunk"
    assert isinstance(fate[0], hardened.ClientGoneError)


async def test_a_last_message_is_sent_whole_or_not_at_all() -> None:
    """BoundedSender: what the kernel takes at once is out, whoever cancels the application meanwhile (Quart does)."""

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        with trio.CancelScope() as cancelled:
            cancelled.cancel()
            await respond(send, b"whole")

    async with serving(app) as server, await connect(server.port) as client:
        for _ in range(2):
            await client.send_all(get("/"))
            assert (await read_reply(client)).body == b"whole"


async def test_an_application_that_fails_ends_only_its_request(caplog: pytest.LogCaptureFixture) -> None:
    """RequestTasks: as the stock worker does, for applications without a Guard."""

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        raise ZeroDivisionError("of the application")

    async with serving(app) as server:
        assert (await ask(server.port)).status == 500
        assert (await ask(server.port)).status == 500
    assert caplog.text.count("ZeroDivisionError: of the application") == 2


async def test_idle_connections_close_on_time_also_under_quart() -> None:
    """IdleWatch: under stock quart-trio on stock hypercorn they never close."""
    async with serving(quart_app(guarded=False), keep_alive_timeout_s=0.2) as server:
        await settled(server)
        tasks = task_names()
        async with await connect(server.port) as client, await connect(server.port) as mute:
            for _ in range(3):
                await client.send_all(get("/"))
                assert (await read_reply(client)).body == b"ok"
            began = trio.current_time()
            assert await read_all(client) == await read_all(mute) == b""
            assert 0.1 < trio.current_time() - began < 2
            await eventually(lambda: task_names() == tasks)


async def test_a_client_that_leaves_an_idle_connection_leaves_nothing_behind() -> None:
    """IdleWatch: the stock timer keeps task and socket of a closed connection until the idle time is over."""
    async with serving(BareApp(), keep_alive_timeout_s=30) as server:
        await settled(server)
        tasks = task_names()
        async with await connect(server.port) as client:
            await client.send_all(get("/"))
            await read_reply(client)
            assert task_names() != tasks
        await eventually(lambda: task_names() == tasks, within_s=2)


async def test_connection_close_is_honoured_also_under_quart() -> None:
    """IdleWatch and the protocol's bookkeeping: stock quart-trio on stock hypercorn leaves the connection open."""
    async with serving(quart_app(guarded=False)) as server, await connect(server.port) as client:
        await client.send_all(get("/", "Connection: close"))
        assert (await read_reply(client)).head["connection"] == "close"
        assert await read_all(client) == b""


async def test_a_slow_head_is_cut_off_and_told() -> None:
    """IdleWatch: one byte now and then does not keep a connection."""
    async with serving(BareApp(), head_timeout_s=0.2) as server, await connect(server.port) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drip, client, get("/"), 0.05)
            reply = await read_reply(client)
            nursery.cancel_scope.cancel()
        assert reply.status == 408
        assert b'"request_timeout"' in reply.body
        assert await read_all(client) == b""


async def _drip(client: trio.SocketStream, data: bytes, pause_s: float) -> None:
    try:
        for byte in data:
            await client.send_all(bytes([byte]))
            await trio.sleep(pause_s)
    except trio.BrokenResourceError:
        pass  # cut off, as expected


async def test_a_head_that_begins_late_in_the_idle_time_is_served() -> None:
    """IdleWatch: the idle time ends with a request's first byte; the stock timer goes on and cuts it off."""
    async with serving(BareApp(), keep_alive_timeout_s=0.3) as server, await connect(server.port) as client:
        await trio.sleep(0.2)
        await client.send_all(get("/")[:10])
        await trio.sleep(0.2)
        await client.send_all(get("/")[10:])
        assert (await read_reply(client)).body == b"ok"


@pytest.mark.parametrize("kind", ["bare", "quart"])
async def test_a_slow_body_is_cut_off_and_told(kind: str) -> None:
    """BodyPace: nothing in the stock worker bounds it."""
    app = BareApp() if kind == "bare" else quart_app()
    async with serving(app, body_timeout_s=0.2) as server:
        await settled(server)
        tasks = task_names()
        async with await connect(server.port) as client, trio.open_nursery() as nursery:
            await client.send_all(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
            nursery.start_soon(_drip, client, bytes(1000), 0.02)
            reply = await read_reply(client)
            nursery.cancel_scope.cancel()
        assert reply.status == 408
        await eventually(lambda: task_names() == tasks)


async def test_a_body_that_keeps_coming_is_read_to_its_end() -> None:
    """BodyPace: every byte gives time back, so a long upload over a slow line is no attack."""
    async with serving(BareApp(), body_timeout_s=0.2) as server, await connect(server.port) as client:
        await client.send_all(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 40960\r\n\r\n")
        for _ in range(10):
            await client.send_all(bytes(4096))
            await trio.sleep(0.05)
        assert (await read_reply(client)).body == b"40960"


async def test_each_request_has_its_own_time_for_its_body() -> None:
    """BodyPace: what one body of a connection cost does not shorten the next."""
    async with serving(BareApp(), body_timeout_s=0.3) as server, await connect(server.port) as client:
        for _ in range(3):
            await client.send_all(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n")
            await trio.sleep(0.15)
            await client.send_all(b"x")
            assert (await read_reply(client)).body == b"1"


async def test_a_handler_may_wait_longer_than_any_timeout_of_the_connection() -> None:
    """BodyPace: the stock `read_timeout` kills waiting handlers; here only a client that owes something is timed."""
    bounds = {
        "keep_alive_timeout_s": 0.1,
        "head_timeout_s": 0.1,
        "body_timeout_s": 0.1,
        "send_timeout_s": 0.1,
    }
    async with serving(BareApp(), **bounds) as server:
        assert (await ask(server.port, "/wait/0.4")).body == b"waited"


async def test_connections_beyond_the_limit_are_told_and_closed() -> None:
    """OpenConnections: the stock worker takes every connection there is."""
    async with serving(BareApp(), max_connections=2) as server:
        async with await connect(server.port) as first, await connect(server.port) as second:
            for client in (first, second):
                await client.send_all(get("/"))
                assert (await read_reply(client)).status == 200
            async with await connect(server.port) as third:
                reply = await read_reply(third)
                assert (reply.status, reply.head["connection"]) == (503, "close")
                assert b'"too_many_connections"' in reply.body
                assert await read_all(third) == b""
            await first.send_all(get("/"))
            assert (await read_reply(first)).status == 200, "those within the limit are not disturbed"
        with trio.fail_after(2):
            while (await ask(server.port)).status != 200:
                await trio.lowlevel.checkpoint()


async def test_turned_away_clients_cannot_stay() -> None:
    """OpenConnections: being told takes a connection for a moment, however the client behaves."""
    async with serving(BareApp(), max_connections=1) as server, await connect(server.port) as first:
        await first.send_all(get("/"))
        await read_reply(first)
        await trio.testing.wait_all_tasks_blocked(0.02)
        tasks = task_names()
        for _ in range(2):
            clients = [await connect(server.port) for _ in range(TURNED_AWAY_MAX + 10)]
            said = [await read_all(client) for client in clients]
            assert sum(answer.startswith(b"HTTP/1.1 503 ") for answer in said) == TURNED_AWAY_MAX
            await eventually(lambda: task_names() == tasks, within_s=4)
            for client in clients:
                await client.aclose()


async def test_closing_the_sending_side_counts_as_leaving() -> None:
    """As documented in `api.hardened`: the request is cancelled and not answered, and nothing is left."""
    app = BareApp()
    async with serving(app) as server:
        await settled(server)
        tasks = task_names()
        async with await connect(server.port) as client:
            await client.send_all(get("/wait/5.0"))
            await client.send_eof()
            assert await read_all(client) == b""
            await eventually(lambda: "/wait/5.0" in app.ended)
            await eventually(lambda: task_names() == tasks)


def test_another_hypercorn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mends rest on internals: they must not be put upon a version that nobody looked at."""
    monkeypatch.setattr(hardened, "version", lambda _: "0.19.0")
    with pytest.raises(hardened.UnsupportedHypercornError, match=r"hypercorn 0\.19\.0 .*hypercorn==0\.18\.0"):
        hardened.install()


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_limits_that_bound_nothing_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="send_timeout_s must be positive and finite"):
        hardened.ConnectionLimits(send_timeout_s=value)
