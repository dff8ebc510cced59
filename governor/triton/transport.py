"""An httpx transport that holds exactly one connection (D2).

httpx's own pool loses slots to cancelled requests and collapses under load, and a pool may retry or reconnect at
moments its caller cannot see. Here one object is one connection: it is never replaced, never retried, and can be
closed synchronously from any task. HTTP/1.1 itself is httpcore's.

Why this and not something simpler or faster, with measurements: ADR-0003.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpcore
import httpx
import trio

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

_WRITE_STEP = 256 * 1024
"""The stall timeout of a write starts anew after so many bytes, so that a slow upload is not taken for a stall."""

_KEEPALIVE = (
    # A call may compute for an hour without a byte in either direction: only the kernel can notice that the peer
    # is gone. Probes after 15 s of silence, 5 s apart, dead after 3; sent data must be acknowledged within 30 s.
    ("TCP_KEEPIDLE", 15),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 30_000),
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a backend listens, taken from its URL once.

    Attributes:
        host: name or address, without brackets.
        authority: the Host header field.
        prefix: path in front of every request path, without a trailing slash; usually empty.
    """

    tls: bool
    host: str
    port: int
    authority: bytes
    prefix: str
    url: httpx.URL

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Read `http[s]://host[:port][/prefix]`.

        Raises:
            ValueError: the text is no such URL; the message says why.
        """
        try:
            url = httpx.URL(text)
        except (httpx.InvalidURL, TypeError) as error:
            raise ValueError(f"{text!r} is not a URL: {error}") from error
        if url.scheme not in {"http", "https"} or not url.host:
            raise ValueError(f"{text!r} must look like http://host:8000")
        if url.userinfo or url.query or url.fragment:
            raise ValueError("a backend's URL carries no user, query or fragment")  # no echo: it may hold a secret
        tls = url.scheme == "https"
        return cls(
            tls=tls,
            host=url.host,
            port=url.port or (443 if tls else 80),
            authority=url.netloc,
            prefix=url.raw_path.decode("ascii").rstrip("/"),
            url=url,
        )

    def __str__(self) -> str:
        return str(self.url)


class WireStream(httpcore.AsyncNetworkStream):
    """httpcore's view of one trio stream.

    Attributes:
        ended: the peer closed its side, so what is missing will never come.
        closed: we closed it.
    """

    def __init__(self, stream: trio.abc.Stream, raw: trio.SocketStream) -> None:
        self._stream = stream
        self._raw = raw
        self.ended = False
        self.closed = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Up to `max_bytes`; empty once the peer closed its side. `timeout` in seconds."""
        if self.closed:  # without a checkpoint: whoever cleans up after a cancellation must get this error
            self.ended = True
            raise httpcore.ReadError("the connection was closed here")
        try:
            if timeout is None:  # the rule: a scope that never fires is not worth its 10 us
                data = bytes(await self._stream.receive_some(max_bytes))
            else:
                with trio.fail_after(timeout):
                    data = bytes(await self._stream.receive_some(max_bytes))
        except trio.TooSlowError as error:
            raise httpcore.ReadTimeout(f"no byte within {timeout} s") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.ended = True
            raise httpcore.ReadError(_cause(error)) from error
        if not data:
            self.ended = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Hand all of `buffer` to the kernel; `timeout` in seconds bounds each stall, not the whole.

        Returning means that the kernel took every byte; raising, that it did not take the last one. trio gives
        this exactly: a send either raises before the system call or returns after it, never both (ADR-0003).
        """
        view = memoryview(buffer)
        try:
            for start in range(0, len(view), _WRITE_STEP):
                with trio.fail_after(float("inf") if timeout is None else timeout):
                    await self._stream.send_all(view[start : start + _WRITE_STEP])
        except trio.TooSlowError as error:
            raise httpcore.WriteTimeout(f"the peer took no byte for {timeout} s") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.WriteError(_cause(error)) from error

    async def aclose(self) -> None:
        """Close; never waits, so that httpcore's shielded clean-up cannot hang."""
        self.close()

    def close(self) -> None:
        """Close the socket at once; tasks waiting on it wake up with an error."""
        self.closed = True
        self._raw.socket.close()

    @property
    def readable(self) -> bool:
        """The peer sent something, or closed. On a connection without a request in flight both make it useless."""
        return self._raw.socket.is_readable()


class _Connection(httpcore.AsyncHTTP11Connection):
    """httpcore's connection, which can also say whether a peer sent more than it was asked for."""

    @property
    def residue(self) -> bool:
        """Bytes after the end of the last answer. They would be read as the start of the next one."""
        return bool(self._h11_state.trailing_data[0])


class _Body(httpx.AsyncByteStream):
    """httpcore's body as httpx wants it; iterating and closing are httpcore's own."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __aiter__(self) -> AsyncIterator[bytes]:
        stream = self._response.stream
        assert isinstance(stream, AsyncIterable), "an async connection answers with an async body"
        return stream.__aiter__()

    async def aclose(self) -> None:
        await self._response.aclose()


class LaneTransport(httpx.AsyncBaseTransport):
    """One open connection, usable until something makes it useless.

    Raises httpcore's exceptions as they are: `governor.triton.failures` translates them, knowing what was delivered.
    """

    def __init__(self, origin: Origin, stream: WireStream) -> None:
        self._origin = origin
        self._stream = stream
        self._core_url = httpcore.URL(
            scheme=b"https" if origin.tls else b"http",
            host=origin.host.encode("ascii"),
            port=origin.port,
            target=b"/",
        )
        self._connection = _Connection(self._core_url.origin, stream)
        self._used = False

    @classmethod
    async def open(cls, origin: Origin, tls: ssl.SSLContext | None) -> LaneTransport:
        """Connect. The caller bounds the time; a cancelled attempt leaves no socket behind.

        Raises:
            OSError: no address of the host could be reached.
            UnicodeError: the host is no name that can be looked up.
            trio.BrokenResourceError: the TLS handshake failed.
        """
        raw = await trio.open_tcp_stream(origin.host, origin.port)
        try:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):  # the demo also runs where these are missing
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            stream: trio.abc.Stream = raw
            if tls is not None:
                secure = trio.SSLStream(raw, tls, server_hostname=origin.host, https_compatible=True)
                await secure.do_handshake()
                stream = secure
        except BaseException:
            raw.socket.close()
            raise
        return cls(origin, WireStream(stream, raw))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request on this very connection. The target is taken from the `target` extension, byte for byte."""
        self._used = True
        assert isinstance(request.stream, AsyncIterable), "lanes send async bodies"
        response = await self._connection.handle_async_request(
            httpcore.Request(
                request.method,
                self._core_url,
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            response.status, headers=response.headers, stream=_Body(response), extensions=response.extensions
        )

    @property
    def ended(self) -> bool:
        """The peer closed its side, or the connection broke."""
        return self._stream.ended

    @property
    def usable(self) -> bool:
        """The next request may be sent: nothing is in flight, nothing is left over, the peer is silent and there.

        A fresh TLS connection may be readable for the handshake's own sake (session tickets), so it is not asked.
        """
        if self._stream.closed:
            return False
        if not self._used:
            return self._origin.tls or not self._stream.readable
        return self._connection.is_idle() and not self._connection.residue and not self._stream.readable

    def close(self) -> None:
        """Close the socket at once; a request in flight fails."""
        self._stream.close()

    async def aclose(self) -> None:
        """`close()`, as httpx names it."""
        self.close()


def _cause(error: BaseException) -> str:
    """What the operating system said, found under trio's wrapping."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause or error) or type(error).__name__
