"""Sending, waiting and reading, each bounded: the parts a `HardenedConnection` is put together from."""

from __future__ import annotations

import socket
import struct
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from .refusals import HEAD_TOO_SLOW, Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.trio.worker_context import WorkerContext

    from .limits import ConnectionLimits

Stream: TypeAlias = "trio.SocketStream | trio.SSLStream[trio.SocketStream]"

RECEIVE_BYTES: Final = 2**16
"""Bytes read from a socket at once, written at once, and read ahead while a pipelined request waits."""
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER, on, 0 s: the close drops what the client did not take."""


def socket_of(stream: Stream) -> trio.socket.SocketType:
    """The socket below the stream."""
    return stream.transport_stream.socket if isinstance(stream, trio.SSLStream) else stream.socket


class BoundedSender:
    """Fault: the stock worker shields `send_all` without bound: a client that stops reading holds a task for ever.

    Nothing can cancel it then, not even the shutdown. Here nothing is shielded: a cancelled send leaves half a message
    behind, and ends the connection. Each piece must be taken within `timeout_s`; a client that does not take it is cut
    off with a reset, which also frees the kernel's buffer.
    """

    def __init__(self, stream: Stream, timeout_s: float) -> None:
        self._stream = stream
        self._timeout_s = timeout_s
        self._lock = trio.Lock()

    async def send(self, data: bytes) -> bool:
        """Writes all of `data`; False when the client is gone or was cut off, so that the connection must end."""
        try:
            self._lock.acquire_nowait()  # saves the common case a trip through the scheduler
        except trio.WouldBlock:
            await self._lock.acquire()
        view = memoryview(data)
        try:
            for start in range(0, len(view), RECEIVE_BYTES):
                if not await self._send_piece(view[start : start + RECEIVE_BYTES]):
                    return False
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        finally:
            self._lock.release()
        return True

    async def send_eof(self) -> None:
        """Tells the client that nothing more will come, as far as its protocol can say so."""
        if isinstance(self._stream, trio.SocketStream):
            async with self._lock:
                await self._stream.send_eof()

    async def _send_piece(self, piece: memoryview) -> bool:
        with trio.move_on_after(self._timeout_s) as scope:
            await self._stream.send_all(piece)
        if scope.cancelled_caught:
            socket_of(self._stream).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        return not scope.cancelled_caught


class IdleWatch:
    """Fault: under an application that cancels itself, stock idle connections never close, nor at a shutdown.

    The stock worker starts a timer task per request and takes locks for it, where such a cancellation strikes. Here
    one task lives as long as the connection, and synchronous calls move its deadline. It also bounds the head of a
    request, counted from its first byte: the stock timer cuts off a head that begins late in the idle time.
    """

    def __init__(self, server: WorkerContext, keep_alive_s: float, head_s: float) -> None:
        self._server = server
        self._keep_alive_s = keep_alive_s
        self._head_s = head_s
        self._idle = True
        self._head_began = False
        self._scope = trio.CancelScope(deadline=trio.current_time() + keep_alive_s)

    def update(self, *, idle: bool) -> None:
        """A request has begun (its head is complete), or its answer is complete and the next may come."""
        self._idle = idle
        self._head_began = False
        self._scope.deadline = trio.current_time() + self._keep_alive_s if idle else inf

    def received(self, *, partial_head: bool) -> None:
        """Bytes came and were digested as far as they go."""
        if self._idle and partial_head and not self._head_began:
            self._head_began = True
            self._scope.deadline = trio.current_time() + self._head_s

    def stop(self) -> None:
        """The connection ends."""
        self._scope.cancel()

    async def run(self, end: Callable[[], None], refuse: Callable[[Refusal], Awaitable[None]]) -> None:
        """Calls `end` when the idle time is over or the server shuts down; a slow head is told so first."""
        with self._scope:
            await self._server.terminated.wait()
            if not self._idle:
                await trio.sleep_forever()  # the end of the answer closes the connection, as the server ends
        if self._head_began and trio.current_time() >= self._scope.deadline:
            await refuse(HEAD_TOO_SLOW)
        end()


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

    async def receive(self, stream: Stream) -> bytes:
        """The next bytes; `trio.TooSlowError` when they come too slowly."""
        began = trio.current_time()
        with trio.fail_after(self._left_s):
            data = bytes(await stream.receive_some(RECEIVE_BYTES))
        left_s = self._left_s - (trio.current_time() - began) + len(data) / self._limits.body_bytes_per_s
        self._left_s = min(self._limits.body_timeout_s, max(0.0, left_s))
        return data


class PausedReading:
    """Fault: a stock reader paused on a pipelined request sees nothing, and outlives its connection for ever.

    Stands in for the event that hypercorn's protocol waits on while it is paused. The wait reads on, up to a bound,
    so that the client's departure is seen. (A request with any `Upgrade` header pauses its reader as well.)
    """

    def __init__(self, receive: Callable[[], Awaitable[bytes]], keep: Callable[[bytes], None]) -> None:
        self._receive = receive
        self._keep = keep
        self._ready = trio.Event()
        self._scope = trio.CancelScope()

    def is_set(self) -> bool:
        """Whether the protocol may go on."""
        return self._ready.is_set()

    async def clear(self) -> None:
        """The protocol is about to pause."""
        self._ready = trio.Event()

    async def set(self) -> None:
        """The answer is complete: the protocol goes on with what was read ahead."""
        self._ready.set()
        self._scope.cancel()

    async def wait(self) -> None:
        """Until `set`; raises `trio.BrokenResourceError` when the client leaves before."""
        room = RECEIVE_BYTES
        while room > 0 and not self._ready.is_set():
            with trio.CancelScope() as self._scope:
                data = await self._receive()
                if not data:
                    raise trio.BrokenResourceError
                self._keep(data)
                room -= len(data)
        await self._ready.wait()
