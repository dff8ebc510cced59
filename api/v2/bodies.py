"""Bodies of inference requests: read once into one piece, and only as many large ones at a time as fit.

A body is kept until its call is over, and most of that time it waits for a slot. So the bytes of large bodies are
bounded in all: while there is no room the next one is not read, and its sender sees no more than a slow server.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from governor.core.credits import CreditQueue, WaitersFullError
from governor.errors import RefusedError

from ..hardened import body_into_of

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveCallable, HTTPScope

    from governor.triton.wire import Body

SMALL_BYTES: Final = 64 * 1024
"""Bodies of a known length up to this one are not counted; `server.max_in_flight` bounds them."""
_WAITING_MAX: Final = 512


class BodyBytesError(RefusedError):
    """There is no room for another large body, and none came free in time; it was not read."""

    code = "too_many_body_bytes"
    retry_after_s = 1

    def __init__(self, limit: int) -> None:
        super().__init__(f"Large request bodies of {limit} bytes in all are held already; retry later", limit=limit)


@dataclass(slots=True, eq=False)
class _Waiter:
    size: int
    granted: trio.Event = field(default_factory=trio.Event)


class BodyBudget:
    """The bytes that large bodies may take in all; who waits for room gets it in turn, fair between callers.

    Args:
        limit: the bytes.

    Attributes:
        held: bytes that are reserved now.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._queue: CreditQueue[_Waiter] = CreditQueue(_WAITING_MAX)

    async def reserve(self, key: str, size: int, *, give_up_at: float) -> int:
        """Waits until there is room for a body.

        Args:
            key: the caller.
            size: bytes; more than the limit counts as the limit.
            give_up_at: when to stop waiting.

        Returns:
            What has to be given back by `release`.

        Raises:
            BodyBytesError: no room came free in time, or too many wait for it.
        """
        waiter = _Waiter(min(size, self.limit))
        try:
            gave_way = self._queue.push(key, waiter)
        except WaitersFullError:
            raise BodyBytesError(self.limit) from None
        if gave_way is not None:
            gave_way.size = -1
            gave_way.granted.set()
        self._grant()
        try:
            with trio.move_on_at(give_up_at):
                await waiter.granted.wait()
        except BaseException:
            if waiter.granted.is_set() and waiter.size >= 0:
                self.release(waiter.size)
            raise
        finally:
            if self._queue.discard(key, waiter):
                self._grant()  # who stands behind it may fit
        if not waiter.granted.is_set() or waiter.size < 0:
            raise BodyBytesError(self.limit)
        return waiter.size

    def shrink(self, reserved: int, size: int) -> int:
        """Gives back what a body did not need; returns what is still reserved."""
        needed = min(reserved, size)
        self.release(reserved - needed)
        return needed

    def release(self, size: int) -> None:
        """Gives room back."""
        self.held -= size
        self._grant()

    def _grant(self) -> None:
        while (head := next(self._queue.heads(), None)) is not None and self.held + head.size <= self.limit:
            self._queue.pop()
            self.held += head.size
            head.granted.set()


def declared_bytes(scope: HTTPScope) -> int | None:
    """The length of the body that a request declares; None where it has one of unknown length."""
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), None)
    if declared is not None:
        return int(declared)
    return None if any(name == b"transfer-encoding" for name, _ in scope["headers"]) else 0


async def read_large_body(scope: HTTPScope, receive: ASGIReceiveCallable, declared: int) -> Body | None:
    """As `read_body`, for a large one: read from the socket to where it stays, if the server offers that.

    Args:
        scope: the request's.
        receive: the request's.
        declared: the declared length; 0 if there is none.
    """
    read_into = body_into_of(scope) if declared else None
    if read_into is None:
        return await read_body(receive, declared)
    whole = memoryview(bytearray(declared))
    missing = whole
    while missing:
        size = await read_into(missing)
        if not size:
            return None
        missing = missing[size:]
        await trio.lowlevel.checkpoint()  # a client that is never waited for must not starve the others
    return whole.toreadonly()


async def read_body(receive: ASGIReceiveCallable, expected: int = 0) -> bytes | None:
    """The whole body, its size bounded by the guard; None when the client left before its end.

    The pieces go into one buffer, which becomes the result without another copy.

    Args:
        receive: the request's.
        expected: the declared length, so that the buffer need not grow; 0 if there is none.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        return bytes(message.get("body", b""))
    buffer = io.BytesIO()
    if expected:
        buffer.seek(expected - 1)
        buffer.write(b"\0")
        buffer.seek(0)
    while message["type"] == "http.request":
        buffer.write(message.get("body", b""))
        if not message.get("more_body", False):
            buffer.truncate()
            return buffer.getvalue()
        message = await receive()
    return None
