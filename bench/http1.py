"""Just enough HTTP/1.1 for measuring: requests as bytes, and answers read without copying what nobody looks at."""

from __future__ import annotations

import re
from typing import Final

HEAD_END: Final = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_LAST_CHUNK: Final = b"0\r\n\r\n"


def request(
    method: str,
    host: str,
    path: str,
    body: bytes = b"",
    headers: tuple[tuple[str, str], ...] = (),
    *,
    json: bool = True,
) -> bytes:
    """One request as it goes over the wire."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    if method != "GET":
        lines.append(f"Content-Type: application/{'json' if json else 'octet-stream'}")
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode() + HEAD_END + body


def length_of(head: bytes) -> int | None:
    """The Content-Length of a head; None where it has none."""
    found = _LENGTH.search(head)
    return int(found[1]) if found else None


def is_chunked(head: bytes) -> bool:
    """The body comes in chunks."""
    return _CHUNKED.search(head) is not None


class Answer:
    """Takes one answer's bytes as they come; one object serves a connection's answers one after the other.

    Attributes:
        status: 0 before the head is complete.
        complete: the last byte came.
        closes: the peer said that it closes the connection.
        body_bytes: bytes of the body (with the framing of chunks) so far.
    """

    def __init__(self) -> None:
        self._head = b""
        self._left: int | None = None
        self._tail = b""
        self.status = 0
        self.complete = False
        self.closes = False
        self.body_bytes = 0

    def reset(self) -> None:
        """The next answer is awaited."""
        self.__init__()  # type: ignore[misc]  # the shortest way to the same state

    def feed(self, data: bytes) -> None:
        """Takes bytes from the socket."""
        if self.status == 0:
            data = self._take_head(data)
            if self.status == 0:
                return
        self.body_bytes += len(data)
        if self._left is None:
            self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
            self.complete = self._tail == _LAST_CHUNK
        else:
            self._left -= len(data)
            self.complete = self._left <= 0

    def _take_head(self, data: bytes) -> bytes:
        if self._head:
            data = self._head + data
        end = data.find(HEAD_END)
        if end < 0:
            self._head = data
            return b""
        head = data[:end]
        self._head = b""
        status = int(head[9:12])
        if 100 <= status < 200:
            return self._take_head(data[end + len(HEAD_END) :])
        self.status = status
        self.closes = _CLOSE.search(head) is not None
        if not is_chunked(head):
            self._left = length_of(head) or 0
        return data[end + len(HEAD_END) :]
