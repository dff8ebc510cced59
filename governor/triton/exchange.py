"""One request and its answer on a lane, and the truth about what was delivered (D3, E3).

Why `Exchange.delivery` is exact (the whole argument is in ADR-0003):

* httpcore reports `send_request_body.complete` after its last write returned and before anything else can happen:
  the report is awaited, but nothing in it waits, so no cancellation fits between the write and the report.
* The last write returns only when the kernel took the last byte, and raises only when it did not: a trio send
  notices a cancellation before the system call, or not at all.
* A write error that httpcore swallows, in order to read an early answer, still skips the report.
* Nothing is ever sent twice: there is no pool below a lane and no retry.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import httpx

from governor.errors import BackendError, BackendProtocolError, ConnectionLostError
from governor.triton.failures import failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from types import TracebackType

    from governor.triton.transport import LaneTransport, Origin
    from governor.triton.wire import Headers, WireRequest

_DELIVERED_EVENT = "http11.send_request_body.complete"
_PUMP_LIMIT = 1000


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

    __slots__ = ("boot", "generation", "transport")

    def __init__(self, transport: LaneTransport, generation: int) -> None:
        self.transport = transport
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
        complete: the last byte of the body arrived, as the answer's own framing says.
    """

    def __init__(self, exchange: Exchange, response: httpx.Response, *, bodiless: bool) -> None:
        self.status = response.status_code
        self.headers: Headers = tuple(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw
        )
        self.complete = False
        self._broken = False
        self._exchange = exchange
        self._response = response
        assert isinstance(response.stream, httpx.AsyncByteStream), "lanes answer with async bodies"
        self._body = aiter(response.stream)
        # An answer that ends by closing proves nothing: a crash in the middle of it looks the same.
        self._framed = (
            bodiless
            or self.status in {204, 304}
            or self.header("content-length") is not None
            or (self.header("transfer-encoding") or "").lower() == "chunked"
        )

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
        if self.complete:
            raise StopAsyncIteration
        if self._broken:  # a generator that raised looks exhausted: this must never be taken for completeness
            raise ConnectionLostError(f"The answer of {self._exchange.origin} broke off earlier")
        try:
            return await anext(self._body)
        except StopAsyncIteration:
            if not self._framed:
                self._broken = True
                raise BackendProtocolError(
                    f"The answer of {self._exchange.origin} has neither a length nor chunks: nothing shows that it"
                    " is complete, the call may still execute"
                ) from None
            self.complete = True
            raise
        except BaseException as error:
            self._broken = True
            self._exchange.raise_failure(error)
            raise

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

    async def finish(self) -> None:
        """For `Exchange`: let httpcore end it, so that the connection can carry the next one."""
        await self._response.aclose()

    async def abandon(self) -> None:
        """For `Exchange`, after the connection was closed here: run httpcore's generators to their end.

        Otherwise the garbage collector would have to. What had arrived already may complete the answer.
        """
        for _ in range(_PUMP_LIMIT):
            try:
                await anext(self)
            except (StopAsyncIteration, BackendError):
                break
        await self._response.aclose()


class Exchange:
    """One request and its answer on a lane: `async with lane.exchange(request) as answer: ...`.

    A block that is left before the answer is complete closes the connection. The lane itself survives whatever
    happens here; the next exchange opens a new connection.

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

    async def __aenter__(self) -> Answer:
        assert not self._entered, "an exchange is entered once"
        self._entered = True
        try:
            self._link = await self._carrier.take()
        except BaseException:
            self._left = True
            raise
        try:
            self.generation, self.boot = self._link.generation, self._link.boot
            response = await self._link.transport.handle_async_request(self._wire())
            self._answer = Answer(self, response, bodiless=self._request.method == "HEAD")
        except BaseException as error:
            self._leave()
            self.raise_failure(error)
            raise
        return self._answer

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._answer is not None
        assert self._link is not None
        try:
            if self._answer.complete:
                await self._answer.finish()
            else:
                self._link.transport.close()
                await self._answer.abandon()
        finally:
            self._leave()

    def raise_failure(self, error: BaseException) -> None:
        """Raise the governor's error for a failure below; return when `error` is no such failure."""
        ended = self._link is not None and self._link.transport.ended
        delivered = self.delivery is Delivery.DELIVERED
        translated = failure(error, origin=self.origin, delivered=delivered, ended=ended)
        if translated is not None:
            raise translated from error

    def _leave(self) -> None:
        self._left = True
        self._carrier.give_back(self._link)

    def _wire(self) -> httpx.Request:
        """The request for httpx, with nothing that httpx would add by itself."""
        request, origin = self._request, self._carrier.origin
        headers = [(b"Host", origin.authority)]
        headers += [(name.encode("ascii"), value.encode("latin-1")) for name, value in request.headers]
        if request.body or request.method not in {"GET", "HEAD"}:
            headers.append((b"Content-Length", str(len(request.body)).encode("ascii")))
        return httpx.Request(
            request.method,
            origin.url,
            headers=headers,
            stream=httpx.ByteStream(request.body),
            extensions={
                "target": (origin.prefix + request.path).encode("ascii"),
                "timeout": {"write": self._carrier.write_timeout_s},
                "trace": self._trace,
            },
        )

    async def _trace(self, event: str, _info: Mapping[str, object]) -> None:
        # No await in here: see the argument at the top of this module.
        if event == _DELIVERED_EVENT:
            self.delivery = Delivery.DELIVERED
            if self._on_delivered is not None:
                self._on_delivered()
