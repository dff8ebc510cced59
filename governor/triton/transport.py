"""One connection to a backend, and nothing else: never replaced, never retried, never shared (D2).

Requests go out by the plainest system calls there are, so that what was delivered is known to the byte: a write
takes place here and now or not at all, and no cancellation fits into it. Why this and not a library's client, with
measurements: ADR-0003 and ADR-0010.
"""

from __future__ import annotations

import os
import select
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import trio

if TYPE_CHECKING:
    import ssl

    from governor.triton.wire import Body

_WRITE_STEP = 256 * 1024
"""The stall timeout of a write starts anew after so many bytes, so that a slow upload is not taken for a stall."""
_READ_BYTES = 64 * 1024
_READ_BYTES_MAX = 256 * 1024
"""Answers of 10 MB take 6.0 ms so, and 6.5 ms where 1 MiB is read at a time."""

_KEEPALIVE = (
    # A call may compute for an hour without a byte in either direction: only the kernel can notice that the peer
    # is gone. Probes after 15 s of silence, 5 s apart, dead after 3; sent data must be acknowledged within 30 s.
    ("TCP_KEEPIDLE", 15),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 30_000),
)


class StalledError(Exception):
    """The peer took no byte of a request for as long as it may."""


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

    @property
    def host_field(self) -> str:
        """The Host header field as text."""
        return self.authority.decode("ascii")

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


class WireStream:
    """One open connection.

    Attributes:
        ended: the peer closed its side, so what is missing will never come.
        closed: we closed it.
        in_flight: a request was begun on it, and its answer has not been taken whole.
    """

    def __init__(self, stream: trio.abc.Stream, raw: trio.SocketStream) -> None:
        self._stream = stream
        self._raw = raw
        self._plain = stream is raw
        self._fd = raw.socket.fileno()
        self._used = False
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self.ended = False
        self.closed = False
        self.in_flight = False

    @classmethod
    async def open(cls, origin: Origin, tls: ssl.SSLContext | None) -> WireStream:
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
        return cls(stream, raw)

    async def send(self, *parts: Body, stall_s: float) -> None:
        """Hand a request, or a part of one, to the kernel. `stall_s` bounds each stall, not the whole.

        Returning means that the kernel took every byte; raising, that it did not take the last one. It returns
        without a checkpoint after the last byte (ADR-0003).

        Each part is a write of its own. Head and body are two, so that a near peer that has just closed answers the
        first with a reset before the second: then the call was never delivered, and nobody has to wonder.

        Raises:
            StalledError: no byte was taken within `stall_s`.
            trio.BrokenResourceError, trio.ClosedResourceError: the connection is gone.
        """
        self._used = True
        self.in_flight = True
        for part in parts:
            if part:
                await self._send_all(part, stall_s)

    async def _send_all(self, data: Body, stall_s: float) -> None:
        try:
            await (self._send_plain(data, stall_s) if self._plain else self._send_secure(data, stall_s))
        except trio.TooSlowError as error:
            raise StalledError(f"the peer took no byte for {stall_s} s") from error

    async def _send_plain(self, data: Body, stall_s: float) -> None:
        sent = self._send_now(data)
        if sent == len(data):
            return
        view = memoryview(data)
        while view := view[sent:]:
            with trio.fail_after(stall_s):
                await trio.lowlevel.wait_writable(self._fd)
            sent = self._send_now(view)

    async def _send_secure(self, data: Body, stall_s: float) -> None:
        view = memoryview(data)
        for start in range(0, len(view), _WRITE_STEP):
            with trio.fail_after(stall_s):
                await self._stream.send_all(view[start : start + _WRITE_STEP])

    def _send_now(self, data: Body) -> int:
        """As much as the kernel takes without waiting."""
        if self.closed:
            raise trio.ClosedResourceError("the connection was closed here")
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def receive(self, expected: int = 0) -> bytes:
        """The next bytes; empty once the peer closed its side.

        Args:
            expected: so many are known to come; decides how much is read at once.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the connection is gone.
        """
        if self.closed:  # without a checkpoint: whoever cleans up after a cancellation must get this error
            self.ended = True
            raise trio.ClosedResourceError("the connection was closed here")
        room = min(max(expected, _READ_BYTES), _READ_BYTES_MAX)
        try:
            data = await self._receive_plain(room) if self._plain else bytes(await self._stream.receive_some(room))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.ended = True
            raise
        if not data:
            self.ended = True
        return data

    async def _receive_plain(self, room: int) -> bytes:
        while True:
            # An answer is hardly ever there already: to look first would cost a system call that fails.
            await trio.lowlevel.wait_readable(self._fd)
            try:
                return os.read(self._fd, room)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error

    @property
    def readable(self) -> bool:
        """The peer sent something, or closed. On a connection without a request in flight both make it useless."""
        return bool(self._poll.poll(0))

    @property
    def spoke(self) -> bool:
        """The peer sent something, or closed, in the middle of a request.

        Over TLS what it sent may be nothing of HTTP, so it is not looked at.
        """
        return self.closed or (self._plain and self.readable)

    @property
    def usable(self) -> bool:
        """The next request may be sent: nothing is in flight, the peer is silent and there.

        A fresh TLS connection may be readable for the handshake's own sake (session tickets), so it is not asked.
        """
        if self.closed or self.in_flight:
            return False
        return (not self._used and not self._plain) or not self.readable

    def close(self) -> None:
        """Close the socket at once; tasks waiting on it wake up with an error."""
        self.closed = True
        self._raw.socket.close()
