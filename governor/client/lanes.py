"""An httpx transport in which every connection stands alone.

httpx's own pool becomes slower with the square of its connections, and a request that is cancelled while it connects
can cost the pool a connection for good. Here a connection carries one request at a time and is thrown away together
with a request that failed, so neither can happen (ADR-0011).
"""

from __future__ import annotations

import contextlib
import ssl
import time
from typing import TYPE_CHECKING, Final

import anyio
import httpx

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

IDLE_MAX: Final = 16
"""Connections that are kept for the next request."""
IDLE_S: Final = 3.0
"""For how long they are kept: less than a server keeps them (the governor 5 s), which may close one at any time."""
_CLOSE_S: Final = 1.0


class LaneTransport(httpx.AsyncBaseTransport):
    """One connection for each request in flight; some that are idle are kept for the next.

    Args:
        tls: how to check the server; None for plain HTTP.
        connect_retries: how often a connection that was refused is tried again at once.
    """

    def __init__(self, tls: ssl.SSLContext | None, *, connect_retries: int = 0) -> None:
        # Without TLS a context that trusts nobody does; making it anew for each connection would be slow.
        self._tls = tls if tls is not None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._connect_retries = connect_retries
        self._idle: list[tuple[float, httpx.AsyncHTTPTransport]] = []
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request on a connection of its own and returns its answer, whose body is still to come."""
        lane = await self._take()
        try:
            response = await lane.handle_async_request(request)
        except BaseException:
            await close_quickly(lane)
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _LaneStream(response.stream, lane, self)
        return response

    async def give_back(self, lane: httpx.AsyncHTTPTransport) -> None:
        """Keeps a connection whose answer was read to its end, or closes it."""
        if self._closed or len(self._idle) >= IDLE_MAX:
            await close_quickly(lane)
        else:
            self._idle.append((time.monotonic() + IDLE_S, lane))

    async def aclose(self) -> None:
        """Closes what is idle; what is in use is closed when it is given back."""
        self._closed = True
        while self._idle:
            await close_quickly(self._idle.pop()[1])

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def _take(self) -> httpx.AsyncHTTPTransport:
        now = time.monotonic()
        while self._idle and self._idle[0][0] <= now:
            await close_quickly(self._idle.pop(0)[1])
        if self._idle:
            return self._idle.pop()[1]
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_S)
        return httpx.AsyncHTTPTransport(verify=self._tls, limits=limits, retries=self._connect_retries)


class _LaneStream(httpx.AsyncByteStream):
    """The body of an answer; its end gives the connection back."""

    def __init__(self, inner: httpx.AsyncByteStream, lane: httpx.AsyncHTTPTransport, transport: LaneTransport) -> None:
        self._inner = inner
        self._lane: httpx.AsyncHTTPTransport | None = lane
        self._transport = transport

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._inner.__aiter__()

    async def aclose(self) -> None:
        """Ends the answer. A connection whose answer was not read to its end is closed by this."""
        lane, self._lane = self._lane, None
        if lane is None:
            return
        try:
            await self._inner.aclose()
        except BaseException:
            await close_quickly(lane)
            raise
        await self._transport.give_back(lane)


class Body:
    """An answer's body, piece by piece, that may be left at any moment.

    httpx reads through generators inside of generators. One that is left unfinished is finished by the garbage
    collector, at a moment of its choosing and not without a warning under trio; here each comes to its end.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = response.aiter_bytes()
        self._begun = False
        self._ended = False
        self._reading = False

    async def piece(self) -> bytes | None:
        """The next piece; None at the end.

        Raises:
            httpx.TransportError, httpx.DecodingError: the connection broke, or what came is not what was announced.
        """
        self._begun = self._reading = True
        try:
            piece = await anext(self._pieces, None)
        except BaseException:
            self._ended = True
            raise
        finally:
            self._reading = False
        self._ended = piece is None
        return piece

    async def aclose(self) -> None:
        """Closes the answer; if it was not read to its end, its connection as well."""
        # Shielded, as a connection that is not closed is a socket lost; with TLS the goodbye waits for the peer, so
        # there is a bound, after which the socket is closed without it.
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLOSE_S):
            if self._begun and not self._ended:
                await self._break_off()
            await self._response.aclose()

    async def _break_off(self) -> None:
        if self._reading:
            # Another task is in the middle of a piece, and finds out.
            await self._response.extensions["network_stream"].aclose()
            return
        with anyio.CancelScope() as scope, contextlib.suppress(httpx.TransportError, httpx.DecodingError):
            scope.cancel()
            while await anext(self._pieces, None) is not None:
                pass  # what was received already; to wait for more is what is cancelled


class WholeBody(httpx.AsyncByteStream):
    """A request's body in one piece, without a generator that a cancellation could leave unfinished."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __aiter__(self) -> _OnePiece:
        return _OnePiece(self._content)


class _OnePiece:
    def __init__(self, content: bytes) -> None:
        self._left = content

    def __aiter__(self) -> _OnePiece:
        return self

    async def __anext__(self) -> bytes:
        piece, self._left = self._left, b""
        if not piece:
            raise StopAsyncIteration
        return piece


async def close_quickly(lane: httpx.AsyncHTTPTransport) -> None:
    """Closes a connection, whether or not the caller was cancelled."""
    # Shielded and bounded for the same reasons as the end of a `Body`.
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLOSE_S):
        await lane.aclose()
