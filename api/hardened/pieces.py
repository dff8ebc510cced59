"""Sending, waiting and reading, each bounded: the parts a `HardenedConnection` is put together from."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .limits import ConnectionLimits

Stream: TypeAlias = "trio.SocketStream | trio.SSLStream[trio.SocketStream]"

RECEIVE_BYTES: Final = 2**16
"""Bytes read from a socket at once."""
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER, on, 0 s: the close drops what the client did not take."""


def socket_of(stream: Stream) -> trio.socket.SocketType:
    """The socket below the stream."""
    return stream.transport_stream.socket if isinstance(stream, trio.SSLStream) else stream.socket


class BoundedSender:
    """Fault: the stock worker shields `send_all` without bound: a client that stops reading holds a task for ever.

    Nothing can cancel it then, not even the shutdown. Here nothing is shielded: a cancelled send leaves half a message
    behind, and ends the connection. A client that takes nothing for `timeout_s` is cut off with a reset, which also
    frees the kernel's buffer.

    What the kernel takes at once is written without waiting, and without a checkpoint.
    """

    def __init__(self, stream: Stream, timeout_s: float) -> None:
        self._stream = stream
        self._timeout_s = timeout_s
        self._fd = socket_of(stream).fileno()
        self._plain = isinstance(stream, trio.SocketStream)
        self._sending = False
        self._sent: trio.Event | None = None

    async def send(self, data: bytes) -> bool:
        """Writes all of `data`; False when the client is gone or was cut off, so that the connection must end."""
        await self._begin()
        try:
            return await (self._send_plain(data) if self._plain else self._send_pieces(data))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        finally:
            self._end()

    async def send_eof(self) -> None:
        """Tells the client that nothing more will come, as far as its protocol can say so."""
        if isinstance(self._stream, trio.SocketStream):
            await self._begin()
            try:
                await self._stream.send_eof()
            finally:
                self._end()

    async def _begin(self) -> None:
        """Waits for its turn: a `trio.Lock` would cost as much as the write itself."""
        while self._sending:
            self._sent = self._sent or trio.Event()
            await self._sent.wait()
        self._sending = True

    def _end(self) -> None:
        self._sending = False
        if self._sent is not None:
            self._sent.set()
            self._sent = None

    async def _send_plain(self, data: bytes) -> bool:
        view = memoryview(data)
        while True:
            with suppress(BlockingIOError):
                view = view[os.write(self._fd, view) :]
            if not view:
                return True
            with trio.move_on_after(self._timeout_s) as scope:
                await trio.lowlevel.wait_writable(self._fd)
            if scope.cancelled_caught:
                return self._cut_off()

    async def _send_pieces(self, data: bytes) -> bool:
        view = memoryview(data)
        for start in range(0, len(view), RECEIVE_BYTES):
            with trio.move_on_after(self._timeout_s) as scope:
                await self._stream.send_all(view[start : start + RECEIVE_BYTES])
            if scope.cancelled_caught:
                return self._cut_off()
        return True

    def _cut_off(self) -> bool:
        socket_of(self._stream).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        return False


class BodyPace:
    """Fault: nothing in the stock worker bounds how slowly a body comes, and `read_timeout` kills waiting handlers.

    A request has `body_timeout_s` of waiting for its body, and every byte gives a little of it back. Waiting for
    the application to take the body is not counted.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._left_s = limits.body_timeout_s

    def begin(self) -> None:
        """A new request's body may follow."""
        self._left_s = self._limits.body_timeout_s

    async def receive(self, read: Callable[[int], Awaitable[bytes]], room: int) -> bytes:
        """The next bytes, at most `room`; `trio.TooSlowError` when they come too slowly."""
        began_s = trio.current_time()
        with trio.fail_after(self._left_s):
            data = await read(room)
        self._received(len(data), began_s)
        return data

    async def receive_into(self, read_into: Callable[[memoryview], Awaitable[int]], room: memoryview) -> int:
        """The same, into `room`; returns how many came."""
        began_s = trio.current_time()
        with trio.fail_after(self._left_s):
            size = await read_into(room)
        self._received(size, began_s)
        return size

    def _received(self, size: int, began_s: float) -> None:
        left_s = self._left_s - (trio.current_time() - began_s) + size / self._limits.body_bytes_per_s
        self._left_s = min(self._limits.body_timeout_s, max(0.0, left_s))
