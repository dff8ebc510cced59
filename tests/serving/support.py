"""Two small applications with the same routes, servers for them on real sockets, and raw clients."""

from __future__ import annotations

import socket
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import h11
import trio
import trio.testing
from quart import request
from quart_trio import QuartTrio

from api.guard import Guard
from api.serving import ServeOptions, serve_http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveCallable,
        ASGISendCallable,
        HTTPResponseBodyEvent,
        HTTPResponseStartEvent,
        Scope,
    )

PATIENCE_S: Final = 10.0
"""Bounds every wait for something that must happen; no passing test waits so long."""
LARGE_BYTES: Final = 8 * 2**20


def get(path: str, *headers: str) -> bytes:
    """A GET request as it goes over the wire."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def start(status: int = 200, headers: list[tuple[bytes, bytes]] | None = None) -> HTTPResponseStartEvent:
    """The ASGI message that begins a response."""
    return {"type": "http.response.start", "status": status, "headers": headers or []}


def body(data: bytes, *, more: bool = False) -> HTTPResponseBodyEvent:
    """The ASGI message with (a part of) a response's body."""
    return {"type": "http.response.body", "body": data, "more_body": more}


async def respond(send: ASGISendCallable, data: bytes) -> None:
    """A whole response, its length declared."""
    await send(start(headers=[(b"content-length", str(len(data)).encode())]))
    await send(body(data))


async def body_length(receive: ASGIReceiveCallable) -> int:
    """Reads the request's body to its end."""
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        length, more = length + len(message.get("body", b"")), message.get("more_body", False)
    return length


async def disconnected(receive: ASGIReceiveCallable) -> None:
    """Returns once the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass
class BareApp:
    """Raw ASGI without Guard or lifespan; `/unread` answers without reading its body, other paths say ok.

    Attributes:
        ended: the path of every request that has ended, in order.
    """

    ended: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http", "this application knows no lifespan"
        path = scope["path"]
        try:
            if path.startswith(("/wait/", "/events")):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_then_cancel, partial(disconnected, receive), nursery)
                    nursery.start_soon(_then_cancel, partial(self._slow, path, send), nursery)
            elif path == "/body":
                await respond(send, str(await body_length(receive)).encode())
            elif path == "/large":
                await respond(send, bytes(LARGE_BYTES))
            else:
                await respond(send, b"ok")
        finally:
            self.ended.append(path)

    @staticmethod
    async def _slow(path: str, send: ASGISendCallable) -> None:
        if path.startswith("/wait/"):
            await trio.sleep(float(path.rpartition("/")[2]))
            await respond(send, b"waited")
            return
        await send(start())
        while True:
            await send(body(b"data: x\n\n" * (8000 if path == "/events/large" else 1), more=True))
            await trio.sleep(0 if path == "/events/large" else 0.005)


async def _then_cancel(work: Callable[[], Awaitable[None]], nursery: trio.Nursery) -> None:
    await work()
    nursery.cancel_scope.cancel()


def quart_app(*, guarded: bool = True) -> ASGIFramework:  # noqa: C901  # six routes, each of one line
    """The same routes in Quart, behind the Guard as in production."""
    app = QuartTrio("small")
    app.config["RESPONSE_TIMEOUT"] = None

    @app.get("/")
    async def index() -> str:
        return "ok"

    @app.get("/wait/<float(min=0):seconds>")
    async def wait(seconds: float) -> str:
        await trio.sleep(seconds)
        return "waited"

    @app.get("/events")
    async def events() -> tuple[AsyncIterator[bytes], int, dict[str, str]]:
        async def stream() -> AsyncIterator[bytes]:
            while True:
                yield b"data: x\n\n"
                await trio.sleep(0.005)

        return stream(), 200, {"content-type": "text/event-stream"}

    @app.get("/events/large")
    async def large_events() -> tuple[AsyncIterator[bytes], int]:
        async def stream() -> AsyncIterator[bytes]:
            while True:
                yield b"data: x\n\n" * 8000

        return stream(), 200

    @app.post("/body")
    async def read_body() -> str:
        return str(len(await request.get_data()))

    @app.route("/unread", methods=["GET", "POST"])
    async def unread() -> str:
        return "ok"

    if guarded:
        app.asgi_app = Guard(  # type: ignore[method-assign]  # Quart's documented way to add middleware
            app.asgi_app, max_body_bytes=1_000_000, max_in_flight=256
        )
    return app


@dataclass
class Server:
    """A running server; set `shutdown` to end it, `ended` is set when `serve_http` has returned."""

    port: int
    shutdown: trio.Event
    ended: trio.Event


@asynccontextmanager
async def serving(app: ASGIFramework, **options: float) -> AsyncIterator[Server]:
    """Serves `app` on a free port until the block ends; fails if the shutdown then exceeds its bound."""
    bounds: dict[str, float] = {
        "graceful_timeout_s": 0.5,
        "send_timeout_s": 0.5,
        "keep_alive_timeout_s": 30.0,
    }
    settings = ServeOptions(port=0, **{**bounds, **options})  # type: ignore[arg-type]  # ints among the floats
    server = Server(0, trio.Event(), trio.Event())

    async def run(task_status: trio.TaskStatus[list[str]]) -> None:
        await serve_http(app, settings, shutdown=server.shutdown, task_status=task_status)
        server.ended.set()

    async with trio.open_nursery() as nursery:
        urls = await nursery.start(run)
        server.port = int(urls[0].rpartition(":")[2])
        try:
            yield server
        finally:
            server.shutdown.set()
            nursery.cancel_scope.deadline = trio.current_time() + PATIENCE_S
    assert not nursery.cancel_scope.cancelled_caught, "the server did not end"


async def connect(port: int, *, receive_buffer: int | None = None) -> trio.SocketStream:
    """A raw client connection; a small receive buffer soon stalls the server's sending."""
    sock = trio.socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    with trio.fail_after(PATIENCE_S):
        await sock.connect(("127.0.0.1", port))
    return trio.SocketStream(sock)


async def reset(client: trio.SocketStream) -> None:
    """Closes the connection with a RST."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await client.aclose()


async def read_all(client: trio.SocketStream) -> bytes:
    """Everything until the server closes; a reset counts as a close."""
    data = b""
    with trio.fail_after(PATIENCE_S):
        try:
            while piece := await client.receive_some(65536):
                data += piece
        except trio.BrokenResourceError:
            pass
    return data


@dataclass(frozen=True)
class Reply:
    """One parsed response; `head` is its header section, names in lower case."""

    status: int
    head: dict[str, str]
    body: bytes


async def read_reply(client: trio.SocketStream, *, method: str = "GET") -> Reply:
    """Reads one response by its own framing and leaves the connection open."""
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    parser.send(h11.EndOfMessage())
    status, head, content = 0, {}, b""
    with trio.fail_after(PATIENCE_S):
        while True:
            event = parser.next_event()
            assert not isinstance(event, h11.ConnectionClosed), "closed without an answer"
            if event is h11.NEED_DATA:
                parser.receive_data(bytes(await client.receive_some(65536)))
            elif isinstance(event, h11.Response):
                status, head = event.status_code, {n.decode(): v.decode() for n, v in event.headers}
            elif isinstance(event, h11.Data):
                content += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return Reply(status, head, content)


async def ask(port: int, path: str = "/") -> Reply:
    """One request on a connection of its own."""
    async with await connect(port) as client:
        await client.send_all(get(path, "Connection: close"))
        return await read_reply(client)


async def settled(server: Server) -> None:
    """Returns when the server has served a request and every task waits: the baseline that tests return to."""
    assert (await ask(server.port)).status == 200
    with trio.fail_after(PATIENCE_S):
        await trio.testing.wait_all_tasks_blocked(0.02)


def task_names() -> list[str]:
    """The name of every task in this run."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    names, tasks = [], [root]
    while tasks:
        task = tasks.pop()
        names.append(task.name)
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return sorted(names)


def open_files() -> int:
    """How many file descriptors this process holds; 0 where the system does not tell."""
    listing = Path("/proc/self/fd")
    return sum(1 for _ in listing.iterdir()) if listing.exists() else 0


async def eventually(condition: Callable[[], bool], *, within_s: float = PATIENCE_S) -> None:
    """Waits in small steps until `condition` holds; fails after `within_s`."""
    with trio.fail_after(within_s):
        while not condition():
            await trio.sleep(0.002)
