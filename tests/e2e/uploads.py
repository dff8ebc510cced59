"""A caller whose request leaves it piece by piece, and a proxy that knows which request a connection carries."""

from __future__ import annotations

import socket
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import trio

from tests.contract.driver import text_tensor
from tests.contract.wire import request_bytes
from tests.serving.support import Reply, read_reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_ID: Final = b'{"id": "'


@dataclass
class Caller:
    """One connection, and one large `infer` of a text model that is sent over it when the test says so.

    Attributes:
        stream: the connection.
        request: head and body.
        sent: bytes of it that have left.
    """

    stream: trio.SocketStream
    request: bytes
    sent: int = 0

    async def send(self, part: float) -> None:
        """Sends up to this part of the request, in small pieces."""
        await self.send_to(int(len(self.request) * part))

    async def send_all_but(self, rest: int) -> None:
        """Sends all but so many bytes."""
        await self.send_to(len(self.request) - rest)

    async def send_to(self, end: int) -> None:
        """Sends up to this byte."""
        while self.sent < end:
            piece = self.request[self.sent : min(end, self.sent + 100_000)]
            await self.stream.send_all(piece)
            self.sent += len(piece)

    async def reply(self) -> Reply:
        """The answer."""
        return await read_reply(self.stream, method="POST")

    def leave(self, *, reset: bool = False) -> None:
        """Closes the connection."""
        if reset:
            self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()


@asynccontextmanager
async def calling(
    url: str, text: str, execution: str, *, size: int = 4_000_000, shape: int = 1, model: str = "slow"
) -> AsyncIterator[Caller]:
    """A caller of a text model, with a text of so many bytes; it has sent nothing yet."""
    body, headers = text_tensor(text.encode().ljust(size), execution, shape=shape)
    host, port = url.removeprefix("http://").split(":")
    stream = await trio.open_tcp_stream(host, int(port))
    try:
        whole = request_bytes("POST", f"/v2/models/{model}/infer", body, headers)
        yield Caller(stream, whole.replace(b"Host: triton", f"Host: {host}:{port}".encode(), 1))
    finally:
        stream.socket.close()


class UploadProxy:
    """Forwards bytes both ways; serves from `serve` until cancelled.

    Attributes:
        port: where it listens.
        carried: bytes that went towards Triton, for each request that was seen.
        refusal: if set, what it says itself as soon as it sees what is asked for; it then reads the rest away.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._streams: dict[str, tuple[trio.SocketStream, trio.SocketStream]] = {}
        self.carried: dict[str, int] = {}
        self.refusal = b""
        self.port = 0

    async def serve(self, *, task_status: trio.TaskStatus[Self] = trio.TASK_STATUS_IGNORED) -> None:
        """Listens on a free port."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._forward, listeners)
            task_status.started(self)

    @property
    def url(self) -> str:
        """To be a backend's."""
        return f"http://127.0.0.1:{self.port}"

    def reset(self, execution: str) -> bool:
        """Resets the connection that carries this request, on both sides; False if none of it has come."""
        carrying = self._streams.pop(execution, ())
        for stream in carrying:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.socket.close()
        return bool(carrying)

    async def wait_carried(self, execution: str, size: int) -> None:
        """Waits until so much of a request has gone through."""
        with trio.fail_after(10):
            while self.carried.get(execution, 0) < size:
                await trio.sleep(0.005)

    async def _forward(self, client: trio.SocketStream) -> None:
        try:
            server = await trio.open_tcp_stream("127.0.0.1", self._target_port)
        except OSError:
            client.socket.close()  # nobody is there now
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._requests, client, server, nursery.cancel_scope)
                nursery.start_soon(_copy, server, client, nursery.cancel_scope)
        finally:
            client.socket.close()
            server.socket.close()

    async def _requests(self, client: trio.SocketStream, server: trio.SocketStream, scope: trio.CancelScope) -> None:
        execution = ""
        try:
            while data := await client.receive_some(65536):
                if (begin := data.find(_ID)) >= 0:
                    execution = data[begin + len(_ID) :].split(b'"')[0].decode()
                    self._streams[execution] = client, server
                    if self.refusal:
                        await client.send_all(self.refusal)
                        while await client.receive_some(65536):
                            pass
                        break
                self.carried[execution] = self.carried.get(execution, 0) + len(data)
                await server.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one side is gone, so is the other
        scope.cancel()


async def _copy(source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
    try:
        while data := await source.receive_some(65536):
            await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # one side is gone, so is the other
    scope.cancel()
