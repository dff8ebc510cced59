"""One request and its answer on a lane, and the truth about what was delivered (D3, E3).

Why `Exchange.delivery` is exact (the whole argument is in ADR-0003):

* It is set after the last write returned and before anything else can happen: nothing waits in between, so no
  cancellation fits between the write and the record of it.
* The last write returns only when the kernel took the last byte, and raises only when it did not: a plain write is
  one system call, and a trio send notices a cancellation before the system call, or not at all.
* A write error that is put up with, in order to read an early answer, still skips the record.
* Nothing is ever sent twice: there is no pool below a lane and no retry.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from governor.errors import BackendError, BackendProtocolError, ConnectionLostError
from governor.triton.failures import failure
from governor.triton.parser import AnswerParser

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from governor.triton.transport import Origin, WireStream
    from governor.triton.wire import Body, Headers, WireRequest


class Delivery(enum.Enum):
    """E3: whether the last byte of the request was handed to the kernel. Exact at every moment, also in `except`."""

    NOT_DELIVERED = "not_delivered"
    DELIVERED = "delivered"


class CallEnd(enum.Enum):
    """What an exchange that was left proves about its call."""

    NEVER_DELIVERED = "never_delivered"
    """E3: it never executes, whatever was answered."""
    ANSWERED = "answered"
    """E1: delivered, and the complete answer arrived."""
    UNKNOWN = "unknown"
    """Delivered, and the answer never became complete: only evidence tells (E5)."""


class Fetched(NamedTuple):
    """A small answer, read whole."""

    status: int
    body: bytes


class Link:
    """One open connection with what is known about it."""

    __slots__ = ("boot", "generation", "wire")

    def __init__(self, wire: WireStream, generation: int) -> None:
        self.wire = wire
        self.generation = generation
        self.boot: str | None = None


class Carrier(Protocol):
    """Who lends an exchange its connection."""

    origin: Origin
    write_timeout_s: float

    async def take(self) -> Link:
        """A usable connection, from now on this exchange's own."""
        ...

    def give_back(self, link: Link | None) -> None:
        """The exchange is over; the connection may be good for another one."""


class Answer:
    """The backend's answer: status and headers now, the body as it arrives.

    Attributes:
        status: HTTP status code.
        headers: header fields in order, names as received.
    """

    def __init__(self, exchange: Exchange, parser: AnswerParser) -> None:
        self.status = parser.status
        self.headers: Headers = parser.headers
        self._broken = False
        self._exchange = exchange
        self._parser = parser

    @property
    def complete(self) -> bool:
        """The last byte of the body arrived, as the answer's own framing says."""
        return self._parser.complete

    @property
    def taken(self) -> bool:
        """It is complete, and the reader has taken all of it."""
        return self._parser.complete and not self._parser.chunks

    def header(self, name: str) -> str | None:
        """The first value of a header field, compared without case."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, never buffered here.

        Raises:
            ConnectionLostError: the connection broke first.
            BackendProtocolError: the body is no HTTP, or has no end of its own.
        """
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        parser = self._parser
        while not parser.chunks:
            if parser.complete:
                raise StopAsyncIteration
            if self._broken:
                raise ConnectionLostError(f"The answer of {self._exchange.origin} broke off earlier")
            try:
                await self._exchange.feed(parser)
            except BaseException:
                self._broken = True
                raise
        return parser.chunks.popleft()

    async def read(self, max_bytes: int, *, drain: bool = True) -> bytes:
        """The whole body.

        Args:
            max_bytes: the most that is kept.
            drain: read a larger body to its end all the same, so that the call's end is known (E1).

        Raises:
            BackendProtocolError: the body is larger than `max_bytes`, or as `chunks` says.
            ConnectionLostError: as `chunks` says.
        """
        kept: list[bytes] = []
        size = 0
        async for chunk in self:
            size += len(chunk)
            if size <= max_bytes:
                kept.append(chunk)
            elif drain:
                kept.clear()
            else:
                break
        if size > max_bytes:
            raise BackendProtocolError(
                f"The answer of {self._exchange.origin} is larger than the {max_bytes} bytes allowed for it"
            )
        return b"".join(kept)


class Exchange:
    """One request and its answer on a lane: `async with lane.exchange(request) as answer: ...`.

    A block that is left before the answer is complete closes the connection. The lane itself survives whatever
    happens here; the next exchange opens a new connection.

    A large body may go ahead of its end (ADR-0018): `begin`, `send_ahead` as often as needed, `end_with`. Nothing of it
    executes before the exchange is entered, which sends the end; `give_up` where it is never entered.

    Attributes:
        delivery: E3, exact at any time, also after any exception.
        generation: number of the connection that carried it; 0 before there was one.
        boot: boot identity that the stamp gave to that connection (E8).

    Raises (from entering it and from reading the answer):
        BackendUnavailableError: not delivered; the call never executes.
        ConnectionLostError: delivered, and the connection died.
        BackendProtocolError: delivered, and what came back is no HTTP.
    """

    def __init__(self, carrier: Carrier, request: WireRequest, on_delivered: Callable[[], None] | None) -> None:
        self.delivery = Delivery.NOT_DELIVERED
        self.generation = 0
        self.boot: str | None = None
        self._carrier = carrier
        self._request = request
        self._on_delivered = on_delivered
        self._link: Link | None = None
        self._answer: Answer | None = None
        self._left = False
        self._entered = False
        self._reusable = False
        self._to_come = 0
        self._end: Body | None = None
        self._cut: trio.BrokenResourceError | None = None

    @property
    def origin(self) -> str:
        """The backend's URL, for messages."""
        return str(self._carrier.origin)

    @property
    def end(self) -> CallEnd | None:
        """What is proven about the call; None while the exchange is open."""
        if not self._left:
            return None
        if self.delivery is Delivery.NOT_DELIVERED:
            return CallEnd.NEVER_DELIVERED
        return CallEnd.ANSWERED if self._answer is not None and self._answer.complete else CallEnd.UNKNOWN

    @property
    def stands(self) -> bool:
        """It was begun, its connection is open as far as is known, and the peer has not spoken."""
        begun = self._link is not None and not self._left and self._cut is None
        return begun and self._link is not None and not self._link.wire.spoke

    async def begin(self, length: int) -> None:
        """Sends the head of a request whose body of `length` bytes, at least one, goes ahead of its end."""
        assert self._link is None, "an exchange is begun once, before it is entered"
        if length < 1:
            raise ValueError("the head alone would deliver a request without a body")
        self._to_come = length
        await self._take_link()
        await self._send_part(self._head(length))

    async def send_ahead(self, piece: Body) -> None:
        """Sends the next piece of the body, which must not hold its last byte: that would deliver the request."""
        if len(piece) >= self._to_come:
            raise ValueError(f"{len(piece)} bytes of the {self._to_come} to come would deliver the request")
        await self._send_part(piece)
        self._to_come -= len(piece)

    def end_with(self, end: Body, on_delivered: Callable[[], None] | None) -> None:
        """What is left of the body, sent when the exchange is entered.

        Args:
            end: the bytes.
            on_delivered: see `Lane.exchange`.
        """
        if len(end) != self._to_come:
            raise ValueError(f"the body ends after {self._to_come} bytes, not {len(end)}")
        self._end, self._on_delivered = end, on_delivered

    def give_up(self) -> None:
        """Closes the connection of an exchange that was begun and will not be entered: never delivered (E3)."""
        if not self._entered:
            self._entered = True
            self._leave()

    async def __aenter__(self) -> Answer:
        assert not self._entered, "an exchange is entered once"
        self._entered = True
        if self._end is None:
            await self._take_link()
        assert self._link is not None
        try:
            parser = AnswerParser(bodiless=self._request.method == "HEAD")
            await self._send(self._link.wire, parser)
            while not parser.status:
                await self.feed(parser)
            self._answer = Answer(self, parser)
        except BaseException as error:
            self._leave()
            self._raise_failure(error)
            raise
        return self._answer

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._answer is not None
        assert self._link is not None
        if self._answer.taken and self._reusable:
            self._link.wire.in_flight = False
        self._leave()

    async def feed(self, parser: AnswerParser) -> None:
        """For `Answer`: read on."""
        assert self._link is not None
        wire = self._link.wire
        try:
            data = await wire.receive(parser.left)
            if data:
                parser.feed(data)
            elif parser.framed:
                raise trio.BrokenResourceError("the peer closed the connection")  # translated below
        except Exception as error:
            self._raise_failure(error)
            raise
        if not data:
            raise BackendProtocolError(
                f"The answer of {self.origin} has neither a length nor chunks: nothing shows that it is complete, the"
                " call may still execute"
            )
        if parser.complete:
            self._reusable = parser.reusable and self.delivery is Delivery.DELIVERED

    async def _take_link(self) -> None:
        try:
            self._link = await self._carrier.take()
        except BaseException:
            self._left = True
            raise
        self.generation, self.boot = self._link.generation, self._link.boot

    async def _send_part(self, part: Body) -> None:
        """A part that does not deliver the request. A peer that hangs up may have answered: entering reads that."""
        assert self._link is not None
        if self._cut is not None:
            return
        try:
            await self._link.wire.send(part, stall_s=self._carrier.write_timeout_s)
        except trio.BrokenResourceError as broken:
            self._cut = broken
        except BaseException as error:
            self.give_up()
            self._raise_failure(error)
            raise

    async def _send(self, wire: WireStream, parser: AnswerParser) -> None:
        body = self._request.body
        parts = (self._head(len(body)), body) if self._end is None else (self._end,)
        try:
            if self._cut is not None:
                raise self._cut
            if self._end is not None:
                await self._hear_early(wire, parser)
            await wire.send(*parts, stall_s=self._carrier.write_timeout_s)
        except trio.BrokenResourceError as broken:
            # A server may refuse an upload and close: its answer is worth more than the broken pipe.
            try:
                while not parser.status:
                    await self.feed(parser)
            except BackendError:
                raise broken from None
            return
        # No await between the return of the last write and this: see the argument at the top of this module.
        self.delivery = Delivery.DELIVERED
        if self._on_delivered is not None:
            self._on_delivered()

    async def _hear_early(self, wire: WireStream, parser: AnswerParser) -> None:
        """Raises for a peer that answered before the end of the request; an interim answer is none (RFC 9110 15.2)."""
        while wire.spoke or parser.in_head:
            await self.feed(parser)
            if parser.status:
                raise trio.BrokenResourceError("the peer answered before the end of the request")

    def _raise_failure(self, error: BaseException) -> None:
        """Raise the governor's error for a failure below; return when `error` is no such failure."""
        ended = self._link is not None and self._link.wire.ended
        delivered = self.delivery is Delivery.DELIVERED
        translated = failure(error, origin=self.origin, delivered=delivered, ended=ended)
        if translated is not None:
            raise translated from error

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._carrier.give_back(self._link)

    def _head(self, length: int) -> bytes:
        """Request line and headers, with nothing but what the request and the connection ask for."""
        request, origin = self._request, self._carrier.origin
        lines = [f"{request.method} {origin.prefix}{request.path} HTTP/1.1\r\nHost: {origin.host_field}"]
        lines += [f"{name}: {value}" for name, value in request.headers]
        if length or request.method not in {"GET", "HEAD"}:
            lines.append(f"Content-Length: {length}")
        lines.append("\r\n")
        return "\r\n".join(lines).encode("latin-1")
