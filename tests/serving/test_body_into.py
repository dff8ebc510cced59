"""The `governor.body_into` extension: a body read to where its application wants it, and what ends it early."""

from __future__ import annotations

import json
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest
import trio
import trio.testing
from hypercorn.trio import serve

from api import hardened
from api.hardened import body_into_of
from tests.triton.peer import CERTIFICATE, client_tls

from .support import PATIENCE_S, connect, eventually, get, read_all, read_reply, reset, respond, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope

ENDLESS: Final = 10**9
"""More than any test sends."""
SEVERAL_READS: Final = 3 * 2**20


def post(length: int, *headers: str, path: str = "/into") -> bytes:
    """The head of a request with a body."""
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *headers, "", ""]).encode()


def some(length: int) -> bytes:
    """Bytes that show when one of them is missing, doubled or misplaced."""
    return random.Random(length).randbytes(length)


@dataclass
class IntoApp:
    """Reads bodies by the extension: `/into` whole, `/first` once, then answers with the number of bytes it read.

    Attributes:
        rooms: the sizes of the rooms it offers, in turn.
        bodies: what it read, one entry per request.
        told: what `receive` says behind the body, or in place of the rest of it.
    """

    rooms: tuple[int, ...] = (65536,)
    bodies: list[bytes] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http", "this application knows no lifespan"
        read_into = body_into_of(scope)
        assert read_into is not None
        missing = int(next((value for name, value in scope["headers"] if name == b"content-length"), b"0"))
        body, turn = bytearray(), 0
        while missing:
            room = bytearray(self.rooms[turn % len(self.rooms)])
            size = await read_into(memoryview(room))
            assert size <= min(len(room), missing), "more than belongs to the body, or than there is room for"
            assert room.count(0, size) == len(room) - size, "nothing is written behind what was read"
            body += room[:size]
            missing, turn = missing - size, turn + 1
            if not size or scope["path"] == "/first":
                break
        self.bodies.append(bytes(body))
        if missing and scope["path"] != "/first":
            self.told.append((await receive())["type"])
            return
        await respond(send, str(len(body)).encode())
        if scope["path"] == "/then-wait":
            self.told.append((await receive())["type"])


async def send_pieces(stream: trio.abc.SendStream, data: bytes, cuts: list[int]) -> None:
    """Sends `data` cut at these places; each piece has the chance to arrive on its own."""
    begin = 0
    for end in [*sorted({min(cut, len(data)) for cut in cuts}), len(data)]:
        await stream.send_all(data[begin:end])
        await trio.lowlevel.checkpoint()
        begin = end


@pytest.mark.parametrize("seed", range(20))
async def test_every_body_arrives_byte_for_byte(seed: int) -> None:
    """Whatever the rooms and wherever the packets end: heads with bodies, several requests behind each other."""
    dice = random.Random(seed)
    app = IntoApp(tuple(dice.choices([511, 4096, 65535, 65536, 262144], k=dice.randint(1, 3))))
    bodies = [some(n) for n in dice.choices([1, 2, 255, 4097, 65535, 65536, 65537, 200_001], k=dice.randint(1, 4))]
    cuts = dice.choices(range(1, 250_000), k=dice.randint(0, 6))
    async with serving(app) as server, await connect(server.port) as client, trio.open_nursery() as nursery:
        requests = b"".join(post(len(body)) + body for body in bodies)
        nursery.start_soon(send_pieces, client, requests + get("/", "Connection: close"), cuts)
        assert (await read_all(client)).count(b"HTTP/1.1 200 ") == len(bodies) + 1
    assert app.bodies == [*bodies, b""]


async def test_a_room_of_one_byte_is_enough() -> None:
    app, sent = IntoApp((1,)), some(700)
    async with serving(app) as server, await connect(server.port) as client:
        await client.send_all(post(len(sent)) + sent[:300])
        await trio.testing.wait_all_tasks_blocked(0.01)
        await client.send_all(sent[300:])
        assert (await read_reply(client)).status == 200
    assert app.bodies == [sent]


async def test_the_next_request_behind_a_body_is_not_read_into_it() -> None:
    """A room that is larger than what is left of the body takes nothing of what follows."""
    app, sent = IntoApp((SEVERAL_READS * 2,)), some(SEVERAL_READS)
    async with serving(app) as server, await connect(server.port) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, post(len(sent)) + sent + get("/") + post(3, "Connection: close") + b"end")
        assert (await read_all(client)).count(b"HTTP/1.1 200 ") == 3
    assert app.bodies == [sent, b"", b"end"]


@pytest.mark.parametrize("at_once", [0, 10])
async def test_a_client_that_asks_is_told_to_go_on_when_its_body_is_wanted(at_once: int) -> None:
    """`Expect: 100-continue`, once, also when part of the body came without waiting for it."""
    app, sent = IntoApp(), some(100_000)
    async with serving(app) as server, await connect(server.port) as client:
        await client.send_all(post(len(sent), "Expect: 100-continue") + sent[:at_once])
        with trio.fail_after(PATIENCE_S):
            assert await client.receive_some(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send_all(sent[at_once:])
        assert (await read_reply(client)).status == 200
    assert app.bodies == [sent]


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("sent", [0, 10, 100_000])
async def test_a_client_that_leaves_in_the_middle(how: str, sent: int) -> None:
    """The read gives 0 at once, whatever there was, and `receive` says that the client is gone."""
    app = IntoApp()
    async with serving(app) as server:
        async with await connect(server.port) as client:
            await client.send_all(post(ENDLESS) + some(sent))
            await trio.testing.wait_all_tasks_blocked(0.02)
            if how == "reset":
                await reset(client)
            elif how == "half-close":
                await client.send_eof()
                assert await read_all(client) == b""
        await eventually(lambda: app.told == ["http.disconnect"])
    assert app.bodies == [some(sent)]


async def test_behind_the_body_receive_waits_for_the_departure() -> None:
    """An application that read the body by the extension gets no second, empty body from `receive`."""
    app = IntoApp()
    async with serving(app) as server:
        async with await connect(server.port) as client:
            await client.send_all(post(5, path="/then-wait") + b"whole")
            assert (await read_reply(client)).body == b"5"
            await trio.testing.wait_all_tasks_blocked(0.02)
        await eventually(lambda: app.told == ["http.disconnect"])


async def test_a_body_that_comes_too_slowly_is_refused() -> None:
    """As with `receive`: 408, and the connection ends; the read gives 0, and what the client sends is read away."""
    app = IntoApp()
    async with serving(app, body_timeout_s=0.1) as server, await connect(server.port) as client:
        await client.send_all(post(ENDLESS) + some(1000))
        reply = await read_reply(client)
        assert (reply.status, json.loads(reply.body)["code"], reply.head["connection"]) == (
            408,
            "request_timeout",
            "close",
        )
        assert await read_all(client) == b""
        await eventually(lambda: app.told == ["http.disconnect"])
    assert app.bodies == [some(1000)]


async def test_a_body_that_comes_steadily_may_take_longer() -> None:
    """Every byte gives a little of the time back, here as with `receive`."""
    app, piece, began = IntoApp(), some(4000), trio.current_time()
    async with serving(app, body_timeout_s=0.25) as server, await connect(server.port) as client:
        await client.send_all(post(12 * len(piece)))
        for _ in range(12):
            await trio.sleep(0.04)
            await client.send_all(piece)
        assert (await read_reply(client)).status == 200
    assert app.bodies == [12 * piece]
    assert trio.current_time() - began > 0.25, "too quick to show anything"


@pytest.mark.parametrize("unread", [200_000, SEVERAL_READS])
async def test_the_rest_of_a_body_that_was_answered_early_is_no_request(unread: int) -> None:
    """The answer comes through, however much is still on its way, and the connection ends with it."""
    app = IntoApp((100,))
    smuggled = get("/smuggled")
    async with serving(app) as server, await connect(server.port) as client, trio.open_nursery() as nursery:
        body = some(100) + (smuggled * (unread // len(smuggled) + 1))[:unread]
        nursery.start_soon(client.send_all, post(len(body), path="/first") + body)
        assert (await read_reply(client)).body == b"100"
        assert await read_all(client) == b""
    assert app.bodies == [some(100)]


async def test_what_came_with_the_head_and_was_not_taken_is_no_request_either() -> None:
    """A body that is here whole keeps its connection, whether the application wanted it or not."""
    app = IntoApp((100,))
    async with serving(app) as server, await connect(server.port) as client:
        await client.send_all(post(150, path="/first") + some(100) + get("/smuggled")[:50].ljust(50))
        assert (await read_reply(client)).body == b"100"
        await client.send_all(post(3, "Connection: close") + b"end")
        assert (await read_all(client)).count(b"HTTP/1.1 200 ") == 1
    assert app.bodies == [some(100), b"end"]


async def test_a_connection_serves_on_behind_such_bodies() -> None:
    """Keep-alive; a body of one packet, of many, and none."""
    app, lengths = IntoApp(), [1, SEVERAL_READS, 0, 65536, 70_000]
    async with serving(app) as server, await connect(server.port) as client:
        for length in lengths:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send_all, post(length) + some(length))
                assert (await read_reply(client)).body == str(length).encode()
    assert [len(body) for body in app.bodies] == lengths


@asynccontextmanager
async def serving_tls(app: IntoApp) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
    """Serves `app` as `hypercorn -k trio --certfile` would; a client's connection to it."""
    hardened.install()
    config = hardened.LimitedConfig()
    config.limits = hardened.ConnectionLimits()
    config.bind, config.certfile, config.keyfile = ["127.0.0.1:0"], str(CERTIFICATE), str(CERTIFICATE)
    config.errorlog = None
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(serve, app, config)
        raw = await connect(int(urls[0].rpartition(":")[2]))
        async with trio.SSLStream(raw, client_tls(), server_hostname="127.0.0.1", https_compatible=True) as client:
            yield client
        nursery.cancel_scope.cancel()


async def test_over_tls_too() -> None:
    app, sent = IntoApp((300_000, 7)), some(SEVERAL_READS)
    async with serving_tls(app) as client:
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_pieces, client, post(len(sent)) + sent, [30, 100, 70_000])
                answer = b""
                with trio.fail_after(PATIENCE_S):
                    while not answer.endswith(str(len(sent)).encode()):
                        answer += await client.receive_some(1000)
    assert app.bodies == [sent, sent]


async def test_a_tls_client_that_leaves_in_the_middle() -> None:
    app = IntoApp()
    with trio.fail_after(PATIENCE_S):
        async with serving_tls(app) as client:
            await client.send_all(post(ENDLESS) + some(100_000))
            await trio.testing.wait_all_tasks_blocked(0.02)
            await client.transport_stream.aclose()
            await eventually(lambda: app.told == ["http.disconnect"])
    assert app.bodies == [some(100_000)]
