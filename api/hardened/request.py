"""Reads one HTTP/1.1 request from bytes, and knows exactly where it ends. No I/O.

Heads and chunks are read by llhttp (httptools); a body with a length is counted here, without a copy.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final

import httptools

from .refusals import (
    BAD_TARGET,
    HEAD_TOO_LARGE,
    HTTP_ONE_ONLY,
    MALFORMED,
    NO_CODING,
    NO_CONNECT,
    NO_WEBSOCKET,
    UNKNOWN_METHOD,
)

if TYPE_CHECKING:
    from .refusals import Refusal

_LINE = re.compile(rb"(\S+) (\S+) HTTP/([0-9.]+)\r\n")
_HTTP_ONE: Final = frozenset({b"1.0", b"1.1"})


class RefusedError(Exception):
    """What came is not for the application; `refusal` is the answer, and ends the connection."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class RequestReader:
    """Takes a connection's bytes until one request is complete.

    Args:
        head_max: size of a request line and its headers.

    Attributes:
        headers: names in lower case; None before the head is complete.
        target: as sent.
        path: path and query of the target.
        chunks: pieces of the body that nobody has taken yet.
        complete: the last byte of the request is here.
        left: bytes of a body with a length that are still to come.
        rest: what came behind the request.
        keep_alive: the client wants, and allows, another request on this connection.
    """

    def __init__(self, head_max: int) -> None:
        self.method = b""
        self.target = b""
        self.path = b""
        self.version = b""
        self.headers: list[tuple[bytes, bytes]] | None = None
        self.chunks: deque[bytes] = deque()
        self.complete = False
        self.left = 0
        self.rest = b""
        self.keep_alive = False
        self.waits_for_continue = False
        self._head_max = head_max
        self._kept = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._chunked: httptools.HttpRequestParser | None = None

    @property
    def begun(self) -> bool:
        """Some of a head is here."""
        return bool(self._kept)

    def feed(self, data: bytes) -> None:
        """Takes the next bytes.

        Raises:
            RefusedError: this is no request for the application; nothing more may be fed.
        """
        if self.headers is None:
            data = self._take_head(data)
            if self.headers is None:
                return
        if data:
            self._take_body(data)

    def took(self, size: int) -> None:
        """So many bytes of a body with a length were read elsewhere than by `feed`; no more than `left`."""
        self.left -= size
        self.complete = self.left == 0

    def _take_head(self, data: bytes) -> bytes:
        """Reads the head, or keeps what there is of it; returns what follows it."""
        data = self._kept + data if self._kept else data.lstrip(b"\r\n")
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(data) > self._head_max:
                raise RefusedError(HEAD_TOO_LARGE)
            self._kept = data
            return b""
        if end > self._head_max:
            raise RefusedError(HEAD_TOO_LARGE)
        self._kept = b""
        self._read_head(data[:end])
        return data[end:]

    def _read_head(self, head: bytes) -> None:
        line = _LINE.match(head)
        if line is None:
            raise RefusedError(MALFORMED)
        self.method, self.version = line[1], line[3]
        if self.version not in _HTTP_ONE:
            raise RefusedError(HTTP_ONE_ONLY)
        if self.method == b"CONNECT":
            raise RefusedError(NO_CONNECT)
        path = path_of(self.method, line[2])
        if path is None:
            raise RefusedError(BAD_TARGET)
        parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass  # an offer to switch to another protocol may be ignored (RFC 9110 7.8)
        except httptools.HttpParserInvalidMethodError as error:
            raise RefusedError(UNKNOWN_METHOD) from error
        except httptools.HttpParserError as error:
            raise RefusedError(self._fault()) from error
        self.keep_alive = self.version == b"1.1"
        self._read_fields(parser)
        self.path = path
        self.headers = self._fields

    def _fault(self) -> Refusal:
        """What was wrong with a head that llhttp did not take."""
        codings = [value for name, value in self._fields if name == b"transfer-encoding"]
        return NO_CODING if codings and codings[-1].lower() != b"chunked" else MALFORMED

    def _read_fields(self, parser: httptools.HttpRequestParser) -> None:
        """Framing and connection, from the header fields."""
        hosts = 0
        self.complete = True
        for name, value in self._fields:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                self.left = int(value)
                self.complete = self.left == 0
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked" or self.version == b"1.0":
                    raise RefusedError(NO_CODING)
                self._chunked = parser
                self.complete = False
            elif name == b"connection":
                self.keep_alive &= b"close" not in value.lower()
            elif name == b"expect":
                self.waits_for_continue = value.lower() == b"100-continue" and self.version == b"1.1"
            elif name == b"upgrade" and b"websocket" in value.lower():
                raise RefusedError(NO_WEBSOCKET)
        if hosts > 1 or (hosts == 0 and self.version == b"1.1") or not self.target.isascii():
            raise RefusedError(MALFORMED)

    def _take_body(self, data: bytes) -> None:
        if self.complete:
            self.rest += data
        elif self._chunked is not None:
            try:
                self._chunked.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                if not self._is_complete():
                    raise RefusedError(MALFORMED) from error
                self.keep_alive = False  # what is wrong came behind the request, and cannot be given back
        else:
            if len(data) > self.left:
                self.rest = data[self.left :]
                data = data[: self.left]
            self.chunks.append(data)
            self.left -= len(data)
            self.complete = self.left == 0

    def _is_complete(self) -> bool:
        """After feeding llhttp, which changes `complete` behind the type checker's back."""
        return self.complete

    # What llhttp calls

    def on_message_begin(self) -> None:
        """The first byte of a request, or of another one behind chunks, which cannot be given back."""
        if self.headers is not None:
            self.keep_alive = False

    def on_url(self, target: bytes) -> None:
        """The target, or a piece of it."""
        if self.headers is None:
            self.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or a trailer, which nobody needs."""
        if self.headers is None:
            self._fields.append((name.lower(), value))

    def on_body(self, data: bytes) -> None:
        """A piece of a chunked body."""
        if not self.complete:
            self.chunks.append(data)

    def on_message_complete(self) -> None:
        """The end of a chunked body; of others it is known here."""
        if self.headers is not None:
            self.complete = True


def path_of(method: bytes, target: bytes) -> bytes | None:
    """Path and query of a target: origin form, absolute form, `OPTIONS *` (RFC 9112 3.2); None for others."""
    if target.startswith(b"/") or (target == b"*" and method == b"OPTIONS"):
        return target
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in {b"http", b"https"}:
        return None
    slash, query = rest.find(b"/"), rest.find(b"?")
    if slash >= 0 and not 0 <= query < slash:
        return rest[slash:]
    return b"/" + (rest[query:] if query >= 0 else b"")
