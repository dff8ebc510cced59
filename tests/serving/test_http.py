"""What `api.hardened` makes of HTTP: one version, bounded heads, pipelining, and few packets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from api.hardened.pieces import BoundedSender
from api.hardened.request import path_of

from .inputs import PREFACE, WEBSOCKET
from .support import (
    BareApp,
    body,
    connect,
    eventually,
    get,
    quart_app,
    read_all,
    read_reply,
    serving,
    settled,
    start,
    task_names,
)

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope

REFUSED = {
    "HTTP/2 by prior knowledge": (PREFACE, 505, "http_version_not_supported"),
    "HTTP/3.0": (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505, "http_version_not_supported"),
    "websocket": (WEBSOCKET, 400, "websocket_not_supported"),
    "websocket without a key": (get("/", "Upgrade: WebSocket"), 400, "websocket_not_supported"),
    "CONNECT": (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "connect_not_supported"),
    "target without a slash": (get("events"), 400, "invalid_target"),
    "target of another scheme": (get("ftp://x/"), 400, "invalid_target"),
    "GET *": (get("*"), 400, "invalid_target"),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed_request"),
    "garbage": (b"\x00\x01\x02\r\n\r\n", 400, "malformed_request"),
    "unknown coding": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        501,
        "transfer_encoding_not_supported",
    ),
    "head of 20 KiB at once": (get("/", "X: " + "x" * 20_000), 431, "headers_too_large"),
    "head of 200 KiB": (get("/", "X: " + "x" * 200_000), 431, "headers_too_large"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_not_plain_http_1_is_refused_with_a_code(name: str) -> None:
    """HttpOneOnly, BoundedHead: the stock worker switches protocols, and lets heads of 64 KiB pass."""
    data, status, code = REFUSED[name]
    async with serving(BareApp()) as server, await connect(server.port) as client:
        await client.send_all(data)
        reply = await read_reply(client)
        assert reply.status == status
        assert reply.head["connection"] == "close"
        assert json.loads(reply.body)["code"] == code
        assert await read_all(client) == b""


async def test_a_refused_http_2_client_may_finish_its_sentence() -> None:
    """A client that sends its frames behind the preface is not reset before it could read the refusal."""
    async with serving(BareApp()) as server, await connect(server.port) as client:
        await client.send_all(PREFACE)
        await trio.testing.wait_all_tasks_blocked(0.02)
        for _ in range(3):
            await client.send_all(bytes(9))
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await read_reply(client)).status == 505


async def test_a_refused_head_request_gets_no_body() -> None:
    async with serving(BareApp()) as server, await connect(server.port) as client:
        await client.send_all(b"HEAD ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n")
        said = await read_all(client)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.endswith(b"\r\n\r\n")


async def test_a_refusal_after_a_head_request_has_its_body() -> None:
    """The method of the last request says nothing about the next, which was not understood."""
    async with serving(BareApp()) as server, await connect(server.port) as client:
        await client.send_all(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await read_reply(client, method="HEAD")).status == 200
        await client.send_all(b"\x00garbage\r\n\r\n")
        reply = await read_reply(client)
        assert (reply.status, json.loads(reply.body)["code"]) == (400, "malformed_request")


async def test_an_offer_to_switch_to_h2c_is_ignored() -> None:
    """HttpOneOnly: RFC 9110 7.8 lets a server ignore an Upgrade, and `curl --http2` counts on it."""
    async with serving(BareApp()) as server, await connect(server.port) as client:
        for _ in range(2):
            await client.send_all(get("/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: "))
            reply = await read_reply(client)
            assert (reply.status, reply.body) == (200, b"ok")


async def test_a_head_just_below_the_limit_passes() -> None:
    async with serving(BareApp(), max_head_bytes=2000) as server, await connect(server.port) as client:
        await client.send_all(get("/", "X: " + "x" * 1900))
        assert (await read_reply(client)).status == 200
        await client.send_all(get("/", "X: " + "x" * 2000))
        assert (await read_reply(client)).status == 431


@pytest.mark.parametrize(
    ("method", "target", "path"),
    [
        ("GET", "/a?b", "/a?b"),
        ("GET", "//a", "//a"),
        ("GET", "http://x", "/"),
        ("GET", "HTTPS://x:1/a?b", "/a?b"),
        ("GET", "http://x?b=/c", "/?b=/c"),
        ("GET", "http://[::1/", "/"),
        ("OPTIONS", "*", "*"),
        ("GET", "*", None),
        ("GET", "a", None),
        ("GET", "mailto:x", None),
    ],
)
def test_the_path_of_a_target(method: str, target: str, path: str | None) -> None:
    """RFC 9112 3.2: a server must accept the absolute form; stock quart fails on a broken one with a 500."""
    found = path_of(method.encode(), target.encode())
    assert found == (None if path is None else path.encode())


async def test_pipelined_requests_are_answered_in_order() -> None:
    """PausedReading: what was read ahead is not lost, also beyond the 64 KiB that are read ahead."""
    async with serving(BareApp()) as server, await connect(server.port) as client:
        count = 100
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, get("/wait/0.1") + count * get("/", "X: " + "x" * 2000))
            said = b""
            with trio.fail_after(10):
                while said.count(b"HTTP/1.1 200") < count + 1 or not said.endswith(b"ok"):
                    said += await client.receive_some(65536)
        assert said.index(b"waited") < said.index(b"ok")


@pytest.mark.parametrize("kind", ["bare", "quart"])
@pytest.mark.parametrize("behind", [get("/"), b""], ids=["pipelined", "upgrade"])
async def test_a_client_that_leaves_is_noticed_also_while_reading_is_paused(kind: str, behind: bytes) -> None:
    """PausedReading: the stock reader sees nothing while it is paused; task and socket outlive the answer for ever."""
    app = BareApp() if kind == "bare" else quart_app()
    async with serving(app) as server:
        await settled(server)
        tasks = task_names()
        async with await connect(server.port) as client:
            await client.send_all(get("/wait/5.0", "Connection: Upgrade", "Upgrade: h2c") + behind)
            await eventually(lambda: task_names() != tasks)
        await eventually(lambda: task_names() == tasks, within_s=2)


async def test_read_ahead_is_bounded() -> None:
    """PausedReading: a client cannot fill the memory behind a request that waits."""
    app = BareApp()
    async with serving(app) as server, await connect(server.port) as client:
        with trio.move_on_after(0.3) as scope:
            await client.send_all(get("/wait/5.0") + bytes(64 * 2**20))
        assert scope.cancelled_caught, "64 MiB were taken"


async def test_head_and_body_leave_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """OneWrite: the stock worker makes two, and with Quart three."""
    writes: list[bytes] = []
    send = BoundedSender.send

    async def counted(self: BoundedSender, data: bytes) -> bool:
        writes.append(data)
        return await send(self, data)

    monkeypatch.setattr(BoundedSender, "send", counted)
    for app in (BareApp(), quart_app()):
        writes.clear()
        async with serving(app) as server, await connect(server.port) as client:
            await client.send_all(get("/"))
            assert (await read_reply(client)).body == b"ok"
        assert len(writes) == 1


@pytest.mark.parametrize("first", [b"", b": hello\n\n"])
async def test_the_head_of_a_stream_leaves_with_the_first_body_message(first: bytes) -> None:
    """OneWrite, FlushingStream: nobody waits for an event in order to see that the stream is open."""

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        await send(start())
        await send(body(first, more=True))
        await trio.sleep_forever()

    async with serving(app, graceful_timeout_s=0) as server, await connect(server.port) as client:
        await client.send_all(get("/"))
        said = b""
        with trio.fail_after(2):
            while not (said.startswith(b"HTTP/1.1 200 ") and b"\r\n\r\n" in said and first in said):
                said += await client.receive_some(1000)


async def test_a_response_is_not_over_while_it_is_being_written() -> None:
    """Frameworks ask for the disconnect beside their work, and cancel it: half an answer would be all a client got."""
    size = 4_000_000

    async def app(_scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await receive()
        async with trio.open_nursery() as nursery:

            async def cancel_at_disconnect() -> None:
                await trio.testing.wait_all_tasks_blocked()
                assert (await receive())["type"] == "http.disconnect"
                nursery.cancel_scope.cancel()

            nursery.start_soon(cancel_at_disconnect)
            await send(start(headers=[(b"content-length", str(size).encode())]))
            await send(body(b"x" * size))
            nursery.cancel_scope.cancel()

    async with serving(app) as server, await connect(server.port, receive_buffer=4_096) as client:
        await client.send_all(get("/"))
        await trio.testing.wait_all_tasks_blocked(0.05)
        reply = await read_reply(client)
        assert len(reply.body) == size
