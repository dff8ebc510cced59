"""Reads one HTTP/1.1 answer from bytes, and knows exactly where it ends. No I/O.

The head is read by llhttp (httptools), and so are chunks. A body with a length is counted here, without a copy.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import httptools

if TYPE_CHECKING:
    from governor.triton.wire import Headers

_HEAD_MAX: Final = 64 * 1024
_BODY_ENDS_BY_CLOSE: Final = -1


class NotHttpError(Exception):
    """The peer sent something that is not an HTTP/1.1 answer."""


class AnswerParser:
    """Takes the bytes that follow a request, until `complete`.

    Args:
        bodiless: the answer to a HEAD request has no body, whatever its head says.

    Attributes:
        status: HTTP status code; 0 before the head is complete.
        headers: header fields in order, names as received.
        chunks: pieces of the body that nobody has taken yet.
        complete: the last byte arrived, as the answer's own framing says.
        framed: the answer has an end of its own: a length, chunks, or no body. One that ends by closing proves
            nothing: a crash in the middle of it looks the same.
        reusable: the peer keeps the connection open, and nothing came behind the answer.
    """

    def __init__(self, *, bodiless: bool = False) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.chunks: deque[bytes] = deque()
        self.complete = False
        self.framed = True
        self.reusable = False
        self._bodiless = bodiless
        self._kept = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._chunked: httptools.HttpResponseParser | None = None
        self.left = 0
        """Bytes of a body with a length that are still to come."""

    @property
    def in_head(self) -> bool:
        """Some of a head is here, of an interim answer or of the answer itself, and not all of it."""
        return bool(self._kept)

    def feed(self, data: bytes) -> None:
        """Takes the next bytes.

        Raises:
            NotHttpError: they are no HTTP; nothing more may be fed.
        """
        while not self.status:
            data = self._take_head(data)
            if not data:
                return
        if data:
            self._take_body(data)

    def _take_head(self, data: bytes) -> bytes:
        """Reads a head, or keeps what there is of it; returns what follows it."""
        if self._kept:
            data = self._kept + data
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(data) > _HEAD_MAX or not b"HTTP/1.".startswith(data[:7]):
                raise NotHttpError(f"no status line and headers within {_HEAD_MAX} bytes")
            self._kept = data
            return b""
        self._kept = b""
        self._fields = []
        parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(data[:end])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise NotHttpError(str(error) or type(error).__name__) from error
        status = parser.get_status_code()
        if status == 101:
            raise NotHttpError("it switched protocols unasked")
        if status >= 200:  # what comes before is an interim answer
            self._begin_body(status, parser)
        return data[end:]

    def _begin_body(self, status: int, parser: httptools.HttpResponseParser) -> None:
        length = coding = None
        headers: list[tuple[str, str]] = []
        for raw_name, raw_value in self._fields:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            headers.append((name, value))
            lowered = name.lower()
            if lowered == "content-length":
                length = int(value)
            elif lowered == "transfer-encoding":
                coding = value.lower()
        self.headers = tuple(headers)
        self.reusable = parser.should_keep_alive()
        if self._bodiless or status in {204, 304}:
            self.complete = True
        elif coding is not None:
            if coding != "chunked":
                raise NotHttpError(f"Transfer-Encoding {coding!r} is not chunked")
            self._chunked = parser
        elif length is not None:
            self.left = length
            self.complete = length == 0
        else:
            self.left = _BODY_ENDS_BY_CLOSE
            self.framed = self.reusable = False
        self.status = status

    def _take_body(self, data: bytes) -> None:
        if self.complete:
            self.reusable = False
        elif self._chunked is not None:
            self._take_chunks(self._chunked, data)
        elif self.left == _BODY_ENDS_BY_CLOSE:
            self.chunks.append(data)
        else:
            if len(data) > self.left:
                data = data[: self.left]
                self.reusable = False
            self.chunks.append(data)
            self.left -= len(data)
            self.complete = self.left == 0

    def _take_chunks(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                raise NotHttpError(str(error) or type(error).__name__) from error
            self.reusable = False  # what is wrong came behind the answer

    # What llhttp calls

    def on_message_begin(self) -> None:
        """The first byte of an answer, or of another one behind it."""
        if self.complete:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or a trailer of a chunked body, which nobody needs."""
        if not self.status:
            self._fields.append((name, value))

    def on_body(self, data: bytes) -> None:
        """A piece of a chunked body."""
        if not self.complete:
            self.chunks.append(data)

    def on_message_complete(self) -> None:
        """The end of a chunked body; of others it is known here."""
        if self._chunked is not None:
            self.complete = True
