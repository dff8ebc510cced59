"""A TCP proxy between the governor and Triton that can reset the connections that carry calls, and refuse new ones."""

from __future__ import annotations

import socket
import struct
from typing import Self

import trio


class Proxy:
    """Forwards bytes both ways. Serves from `serve` until cancelled."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._calls: dict[trio.SocketStream, trio.SocketStream] = {}
        self._listener: trio.SocketListener | None = None
        self.port = 0

    async def serve(self, *, task_status: trio.TaskStatus[Self] = trio.TASK_STATUS_IGNORED) -> None:
        """Listens on a free port."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._forward, listeners)
            task_status.started(self)

    def reset_calls(self) -> int:
        """Resets every connection that carries a call to a model, on the governor's side and on Triton's."""
        count = len(self._calls)
        for client, server in self._calls.items():
            for stream in (client, server):
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                stream.socket.close()
        self._calls.clear()
        return count

    async def _forward(self, client: trio.SocketStream) -> None:
        try:
            server = await trio.open_tcp_stream("127.0.0.1", self._target_port)
        except OSError:
            client.socket.close()  # nobody is there now
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._copy, client, server, True, nursery.cancel_scope)
                nursery.start_soon(self._copy, server, client, False, nursery.cancel_scope)
        finally:
            self._calls.pop(client, None)
            client.socket.close()
            server.socket.close()

    async def _copy(
        self, source: trio.SocketStream, sink: trio.SocketStream, is_request: bool, scope: trio.CancelScope
    ) -> None:
        try:
            while data := await source.receive_some(65536):
                if is_request and b"/generate" in data:
                    self._calls[source] = sink
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one side is gone, so is the other
        scope.cancel()
