"""One request and its response: what the application's `receive` and `send` are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, cast
from urllib.parse import unquote

import trio

from .limits import ClientGoneError
from .refusals import BODY_TOO_SLOW, note_refusal
from .request import RefusedError
from .response import ResponseWriter

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveEvent, ASGISendEvent, HTTPScope

    from .refusals import Refusal
    from .request import RequestReader

JOIN_BYTES: Final = 2**16
"""Pieces up to this length are joined to one write; longer ones are not copied."""
DEPARTURE: Final = "governor.departure"
"""Key of the ASGI extension by which an application that needs no `receive` learns that its client is gone."""
BODY_INTO: Final = "governor.body_into"
"""Key of the ASGI extension by which an application has a body read to where it wants it, without a copy."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def departure_of(scope: HTTPScope) -> Callable[[Callable[[], None]], None] | None:
    """Registers what is to be done when the client of a request leaves; None under a server that does not offer it.

    What is registered runs at most once, synchronously, and at once if the client is gone already.
    """
    found = scope["extensions"].get(DEPARTURE)
    return cast("Callable[[Callable[[], None]], None] | None", found)


ReadInto = Callable[[memoryview], Awaitable[int]]
"""Reads the next bytes of a body into a buffer with room; how many: 0 at its end, or when the client has left."""


def body_into_of(scope: HTTPScope) -> ReadInto | None:
    """Reads a body of a declared length, instead of the request's `receive`; None under a server without it."""
    return cast("ReadInto | None", scope["extensions"].get(BODY_INTO))


class Wire(Protocol):
    """What an exchange needs of its connection."""

    @property
    def left(self) -> bool:
        """The client is known to be gone."""

    async def read_body(self, room: int) -> bytes:
        """The next bytes; empty when the client is gone. Raises `trio.TooSlowError` when they come too slowly."""

    async def read_body_into(self, room: memoryview) -> int:
        """The same, into `room`; how many came, 0 when the client is gone."""

    async def write(self, data: bytes) -> bool:
        """Writes all of it; False when the client is gone."""

    def own_fields(self) -> list[tuple[bytes, bytes]]:
        """The header fields that the server itself adds to a response."""

    def may_continue(self) -> bool:
        """The connection may carry another request."""


class Exchange:
    """One request and its response.

    Attributes:
        gone: the client has left, or was cut off.
        writer: how far the response is.
        status: of the response; 0 before it began.
    """

    def __init__(self, wire: Wire, reader: RequestReader) -> None:
        self.gone = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._wire = wire
        self._reader = reader
        self.writer = ResponseWriter(method=reader.method, version=reader.version)
        self._end_told = False
        self._out = False
        self._head = b""
        self._left: trio.Event | None = None
        self._when_gone: list[Callable[[], None]] = []

    @property
    def reusable(self) -> bool:
        """The response is complete, the request was taken whole, and both sides go on."""
        return self.writer.complete and self.writer.keep_alive and self._reader.complete and not self.gone

    def client_left(self) -> None:
        """The client is gone: whoever waits for that is told."""
        self.gone = True
        if self._left is not None:
            self._left.set()
        for callback in self._when_gone:
            callback()
        self._when_gone.clear()

    def when_gone(self, callback: Callable[[], None]) -> None:
        """The `governor.departure` extension: `callback` is run, once and synchronously, when the client leaves.

        It saves an application a task that does nothing but wait for `http.disconnect`.
        """
        if self.gone or self._wire.left:
            callback()
        else:
            self._when_gone.append(callback)

    async def receive(self) -> ASGIReceiveEvent:
        """The application's `receive`: the body, and then disconnects without end once the client is gone."""
        reader = self._reader
        while not reader.chunks and not reader.complete and not self.gone:
            await self._receive_more()
        if reader.chunks:
            body = reader.chunks.popleft()
            self._end_told = reader.complete and not reader.chunks
            return {"type": "http.request", "body": body, "more_body": not self._end_told}
        if reader.complete and not self._end_told:
            self._end_told = True
            return {"type": "http.request", "body": b"", "more_body": False}
        # A response that is still being written is not over: an application that hears otherwise cancels it.
        if self.gone or self._out or self._wire.left:
            self.gone = self.gone or self._wire.left
            await trio.lowlevel.checkpoint()  # an application that ignores disconnects must not starve the rest
        else:
            self._left = self._left or trio.Event()
            await self._left.wait()
        return {"type": "http.disconnect"}

    async def receive_into(self, room: memoryview) -> int:
        """The `governor.body_into` extension: see `body_into_of`."""
        reader = self._reader
        size = 0
        if reader.chunks:
            chunk = reader.chunks.popleft()
            size = min(len(chunk), len(room))
            room[:size] = chunk[:size]
            if size < len(chunk):
                reader.chunks.appendleft(chunk[size:])
        elif not (reader.complete or self.gone):
            size = await self._receive_more(room[: reader.left])
        self._end_told = reader.complete and not reader.chunks
        return size

    async def _receive_more(self, room: memoryview | None = None) -> int:
        """Reads on: into `room`, returning how much, or for `receive`; the client is gone where nothing came."""
        reader = self._reader
        if reader.waits_for_continue:
            reader.waits_for_continue = False
            if not self.writer.begun and not self._head:
                await self._write(_CONTINUE)
        try:
            if room is not None:
                size = await self._wire.read_body_into(room)
                reader.took(size)
            else:
                data = await self._wire.read_body(reader.left)
                size = len(data)
                if data:
                    reader.feed(data)
            if size:
                return size
        except trio.TooSlowError:
            await self.refuse(BODY_TOO_SLOW)
        except RefusedError as refused:
            await self.refuse(refused.refusal)
        self.client_left()
        return 0

    async def send(self, message: ASGISendEvent | None) -> None:
        """The application's `send`.

        Raises:
            ClientGoneError: the client is gone (ASGI 2.4).
            ResponseError: it is no response.
        """
        if message is None:
            return
        if message["type"] == "http.response.start" and not self.status:
            self.status = int(message["status"])
            self.headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", [])]
        elif message["type"] == "http.response.body" and self.status and not self.writer.complete:
            await self._send_body(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"{message['type']!r} was sent where it has no place in a response")

    async def _send_body(self, data: bytes, *, more: bool) -> None:
        head = b""
        if not self.writer.begun:
            self.writer.keep_alive &= self._reader.keep_alive and self._wire.may_continue()
            head = self.writer.head(self.status, self.headers, self._wire.own_fields())
        before, data, after = self.writer.body(data, more=more)
        joined = len(data) <= JOIN_BYTES
        for piece in [b"".join((head, before, data, after))] if joined else [head + before, data, after]:
            if piece:
                await self._write(piece)
        self._out = not more
        if more:
            await trio.lowlevel.checkpoint()  # a write that does not wait is none

    async def refuse(self, refusal: Refusal) -> None:
        """Answers with `refusal`, if no answer has begun. The connection ends with it."""
        if self.writer.begun or self.status:
            return
        note_refusal(refusal)
        self.status = refusal.status
        self.writer.keep_alive = False
        self.headers = refusal.headers()
        await self._send_body(refusal.body(), more=False)

    async def end(self) -> None:
        """The application has ended: where it has not answered, 500."""
        if not self.status and not self.gone:
            self.status = 500
            self.writer.keep_alive = False
            self.headers = [(b"content-length", b"0")]
            await self._send_body(b"", more=False)

    async def _write(self, data: bytes) -> None:
        sent = False
        try:
            # A response whose end is no bytes may end after its client has read it and left (`api.receipts`).
            sent = not self.gone and await self._wire.write(data)
        finally:
            if not sent:
                self.client_left()
        if not sent:
            raise ClientGoneError("the client is gone, or was cut off because it stopped reading")


def path_and_query(reader: RequestReader) -> tuple[str, bytes, bytes]:
    """The decoded path, the path as sent, and the query."""
    raw_path, _, query = reader.path.partition(b"?")
    path = raw_path.decode("ascii")
    return unquote(path) if "%" in path else path, raw_path, query
