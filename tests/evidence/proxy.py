"""A TCP proxy between a governor and Triton: it counts readings, breaks connections, and answers statistics falsely."""

from __future__ import annotations

import re
import socket
import struct
from typing import TYPE_CHECKING, Self

import trio

from tests.contract.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_STATISTICS = re.compile(rb"GET (/v2/models/[^/ ]+/stats) HTTP/1\.1\r\n")

Falsehood = "Callable[[trio.SocketStream, bytes], Awaitable[None]]"
"""Answers a request for statistics on the client's connection; gets the right answer's body. Ends: closed after it."""


class Proxy:
    """Forwards bytes both ways. Serves from `serve` until cancelled.

    Attributes:
        port: where it listens.
        readings: when statistics were asked for, in trio's seconds.
        falsehood: while set, it answers requests for statistics.
    """

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.readings: list[float] = []
        self.falsehood: Callable[[trio.SocketStream, bytes], Awaitable[None]] | None = None
        self._target_port = target_port
        self._forwarded: dict[trio.SocketStream, bytes] = {}
        self._partners: dict[trio.SocketStream, trio.SocketStream] = {}

    @property
    def url(self) -> str:
        """What a governor takes for Triton."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, *, task_status: trio.TaskStatus[Self] = trio.TASK_STATUS_IGNORED) -> None:
        """Listens on a free port."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._serve_one, listeners)
            task_status.started(self)

    def reset(self, request_id: str) -> None:
        """Resets the connection that carries a request, on both sides."""
        [client] = [each for each, latest in self._forwarded.items() if request_id.encode() in latest]
        self._reset(client)

    def reset_readings(self) -> int:
        """Resets the connections that carry readings; returns how many."""
        found = [each for each, latest in self._forwarded.items() if _STATISTICS.match(latest)]
        for client in found:
            self._reset(client)
        return len(found)

    def _reset(self, client: trio.SocketStream) -> None:
        for stream in (client, self._partners[client]):
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.socket.close()
        self._forget(client)

    def _forget(self, client: trio.SocketStream) -> None:
        self._forwarded.pop(client, None)
        self._partners.pop(client, None)

    async def _serve_one(self, client: trio.SocketStream) -> None:
        try:
            server = await trio.open_tcp_stream("127.0.0.1", self._target_port)
        except OSError:
            client.socket.close()  # Triton is away
            return
        self._partners[client] = server
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask, client, server, nursery.cancel_scope)
                nursery.start_soon(self._answer, client, server, nursery.cancel_scope)
        finally:
            self._forget(client)
            client.socket.close()
            server.socket.close()

    async def _ask(self, client: trio.SocketStream, server: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            while data := bytes(await client.receive_some(65536)):
                statistics = _STATISTICS.match(data)
                if statistics is not None:
                    self.readings.append(trio.current_time())
                if statistics is not None and self.falsehood is not None:
                    await self.falsehood(client, await self._right_answer(statistics[1].decode()))
                    continue
                # A request begins a segment of its own: a lane sends one at a time, head and body apart.
                begins = data.startswith((b"GET ", b"POST "))
                self._forwarded[client] = data if begins else self._forwarded.get(client, b"") + data
                await server.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one side is gone, so is the other
        scope.cancel()

    @staticmethod
    async def _answer(client: trio.SocketStream, server: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            while data := await server.receive_some(65536):
                await client.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # as above
        scope.cancel()

    async def _right_answer(self, path: str) -> bytes:
        wire = Wire(await trio.open_tcp_stream("127.0.0.1", self._target_port))
        try:
            return (await wire.ask("GET", path)).body
        finally:
            await wire.close()
