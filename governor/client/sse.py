"""Server-sent events out of bytes, without I/O. Pure.

The rules are those of the HTML standard: lines end with LF, CR or CRLF, wherever the pieces of a connection happen to
be cut; several `data` lines of an event are joined by line breaks; a byte order mark may come first; fields that are
not known, and comments, are passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from .errors import SseFramingError

SSE_BYTES_MAX: Final = 16 * 1024 * 1024
"""The most bytes that one event may have."""
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class SseFrame:
    """One event as it came over the wire.

    Attributes:
        data: its `data` lines, joined by line breaks.
        event: its `event` field; empty without one.
        id: its `id` field; None without one.
    """

    data: str
    event: str = ""
    id: str | None = None


class SseParser:
    """Takes bytes as they come and gives whole events.

    Args:
        max_bytes: the most bytes that one event may have.
    """

    def __init__(self, *, max_bytes: int = SSE_BYTES_MAX) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._first_line = True
        self._after_cr = False
        self._data: list[bytes] = []
        self._event = b""
        self._id: bytes | None = None
        self._size = 0

    def feed(self, piece: bytes) -> list[SseFrame]:
        """The events that are complete with this piece.

        Raises:
            SseFramingError: one event is larger than allowed.
        """
        if self._after_cr and piece:
            self._after_cr = False
            piece = piece[1:] if piece[:1] == b"\n" else piece
        looked_at = len(self._rest)
        self._rest += piece
        frames: list[SseFrame] = []
        line_start = 0
        for end in _LINE_END.finditer(self._rest, looked_at):
            frame = self._line(bytes(self._rest[line_start : end.start()]))
            if frame is not None:
                frames.append(frame)
            line_start = end.end()
            # The line feed of this line end may be the first byte of the next piece.
            self._after_cr = line_start == len(self._rest) and end[0] == b"\r"
        del self._rest[:line_start]
        self._check_size(len(self._rest))
        return frames

    def end(self) -> SseFrame | None:
        """The stream has ended: the last event, if only the blank line behind it is missing."""
        last = bytes(self._rest)
        self._rest.clear()
        frame = self._line(last) if last else None
        return frame if frame is not None else self._dispatch()

    def _line(self, line: bytes) -> SseFrame | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._check_size(len(value))
            self._size += len(value)
            self._data.append(value)
        elif name == b"event":
            self._event = value
        elif name == b"id" and b"\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> SseFrame | None:
        frame = None
        if self._data:
            event_id = self._id.decode("utf-8", "replace") if self._id is not None else None
            frame = SseFrame(
                b"\n".join(self._data).decode("utf-8", "replace"), self._event.decode("utf-8", "replace"), event_id
            )
        self._clear()
        return frame

    def _clear(self) -> None:
        self._data = []
        self._event = b""
        self._id = None
        self._size = 0

    def _check_size(self, more: int) -> None:
        if self._size + more > self._max_bytes:
            raise SseFramingError(f"An event of the stream is larger than {self._max_bytes} bytes")
