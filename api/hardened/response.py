"""Writes one HTTP/1.1 response as bytes, framed so that its end can be told. No I/O."""

from __future__ import annotations

import re
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_BODILESS: Final = frozenset({204, 304})
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class ResponseError(RuntimeError):
    """The application sent what is no response: a fault of the application's, whatever the client did."""


class ResponseWriter:
    """Turns an application's status, headers and pieces of a body into bytes.

    Args:
        method: of the request; a HEAD gets no body.
        version: of the request, `1.0` or `1.1`; 1.0 knows no chunks.

    Attributes:
        keep_alive: another request may follow on the connection; to be settled before the head is written.
        begun: the head is written.
        complete: the end of the body is written.
    """

    def __init__(self, *, method: bytes, version: bytes) -> None:
        self.keep_alive = True
        self.begun = False
        self.complete = False
        self._method = method
        self._version = version
        self._chunked = False
        self._bodiless = False
        self._left: int | None = None

    def head(self, status: int, headers: Iterable[tuple[bytes, bytes]], more: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The status line and headers.

        Args:
            status: at least 200.
            headers: the application's.
            more: the server's own.

        Raises:
            ResponseError: they would not survive on the wire as they are.
        """
        parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        closes = coded = False
        for name, value in headers:
            if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
                raise ResponseError(f"the header {name!r}: {value!r} cannot be sent")
            lowered = name.lower()
            if lowered == b"content-length":
                self._left = int(value)
            elif lowered == b"connection":
                closes |= b"close" in value.lower()
            elif lowered == b"transfer-encoding":
                coded = True
                continue  # framing is the server's affair
            parts.append(b"%b: %b\r\n" % (name, value))
        self.begun = True
        self._bodiless = self._method == b"HEAD" or status in _BODILESS
        self._frame(parts, coded=coded)
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts += [b"%b: %b\r\n" % field for field in more]
        parts.append(b"\r\n")
        return b"".join(parts)

    def _frame(self, parts: list[bytes], *, coded: bool) -> None:
        """Decides how the end of the body will be told."""
        if coded:
            self._left = None
        if self._bodiless:
            self._left = None
        elif self._left is None and self._version == b"1.1":
            self._chunked = True
            parts.append(b"transfer-encoding: chunked\r\n")
        elif self._left is None:
            self.keep_alive = False  # the end of the connection is the end of the body

    def body(self, data: bytes, *, more: bool) -> tuple[bytes, bytes, bytes]:
        """What to write before `data`, what of it, and what after it.

        Raises:
            ResponseError: it is not as long as the head said.
        """
        before = after = b""
        if self._bodiless:
            data = b""
        elif self._chunked:
            if data:
                before, after = b"%x\r\n" % len(data), b"\r\n"
            if not more:
                after += b"0\r\n\r\n"
        elif self._left is not None:
            self._left -= len(data)
            if self._left < 0 or (self._left and not more):
                raise ResponseError("the body is not as long as its Content-Length")
        self.complete = not more
        return before, data, after


class DateField:
    """The Date header, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._field = (b"date", b"")

    def now(self) -> tuple[bytes, bytes]:
        """The field."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._field = (b"date", formatdate(second, usegmt=True).encode("ascii"))
        return self._field
