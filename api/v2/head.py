"""What is read of an inference request before it is passed on: its JSON if that is small, and how long it may wait.

Triton must not die of a request: so the JSON of any size, compressed or not, is searched for what it would die of.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from governor.errors import BodyTooLargeError, InvalidRequestError
from governor.requests import refuse
from governor.triton.hugeshapes import find_fatal_shape
from governor.triton.nesting import find_fatal_nesting
from governor.triton.outcomes import CallKind
from governor.triton.requestcheck import CHECKED_BYTES_MAX, RequestHead

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.triton.wire import Body

TIMEOUT_HEADER: Final = b"triton-timeout"
"""A caller's bound on its wait for a slot, in microseconds, as Triton's request parameter `timeout`."""
UNPACKED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Length of the JSON in a compressed request."""
_LENGTH_HEADER: Final = b"inference-header-content-length"
_ENCODINGS: Final = frozenset({b"gzip", b"deflate"})
_PLAIN: Final = frozenset({None, b"", b"identity"})
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


class _Form(NamedTuple):
    """How a request is written: its `Content-Encoding`, and what it says of the length of its JSON."""

    encoding: bytes | None
    length: bytes | None

    @classmethod
    def of(cls, fields: Iterable[tuple[bytes, bytes]]) -> _Form:
        encoding, length = None, None
        for name, value in fields:
            # Of fields that are given twice Triton takes the first.
            if name == b"content-encoding" and encoding is None:
                encoding = value
            elif name == _LENGTH_HEADER and length is None:
                length = value
        return cls(encoding, length)

    @property
    def json_bytes(self) -> int | None:
        """Length of the JSON; None where all of the body is, or where Triton might take the field for any number."""
        return int(self.length) if self.length is not None and self.length.isdigit() and len(self.length) < 10 else None


def request_head(fields: Iterable[tuple[bytes, bytes]], kind: CallKind, version: str | None, body: Body) -> RequestHead:
    """The part of a request that can be checked.

    Raises:
        RequestRefusedError: Triton would die of it, or may.
        BodyTooLargeError: its JSON is compressed, and too long to look at.
        InvalidRequestError: `invalid_encoding`: it is not compressed as it says.
    """
    form = _Form.of(fields)
    _refuse_fatal(kind, form, body)
    if form.encoding not in _PLAIN:
        return RequestHead.of(kind, version, b"")
    size = len(body)
    if kind is CallKind.INFER and form.length is not None:
        size = form.json_bytes or 0
    if not 0 < size <= min(len(body), CHECKED_BYTES_MAX):
        return RequestHead.of(kind, version, b"")
    return RequestHead.of(kind, version, bytes(body[:size]), len(body) - size)


def json_before_tensors(fields: Iterable[tuple[bytes, bytes]], body_bytes: int) -> int | None:
    """Length of the JSON with which an `infer` request begins, if that can be checked before the rest is here.

    None where there is nothing behind it, or it is too long, compressed, or of a length that is not understood.
    """
    form = _Form.of(fields)
    size = form.json_bytes if form.encoding in _PLAIN else None
    return size if size is not None and 0 < size <= min(body_bytes - 1, CHECKED_BYTES_MAX) else None


def head_before_tensors(version: str | None, text: bytes, body_bytes: int) -> RequestHead:
    """The part of a request that can be checked, from its JSON alone; `json_before_tensors` says how long that is.

    Raises:
        RequestRefusedError: Triton would die of it, or may.
    """
    refuse(find_fatal_nesting(text) or find_fatal_shape(text, body_bytes=body_bytes))
    return RequestHead.of(CallKind.INFER, version, text, body_bytes - len(text))


def _refuse_fatal(kind: CallKind, form: _Form, body: Body) -> None:
    if kind is not CallKind.INFER:
        # Without tensors, shapes and compression.
        refuse(find_fatal_nesting(body) if form.encoding in _PLAIN else None)
        return
    size, room = form.json_bytes, len(body)
    if form.encoding in _PLAIN:
        text: Body = body if size is None else memoryview(body)[:size]
    elif form.encoding in _ENCODINGS:
        text, room = _unpacked(body, size), max(room, UNPACKED_BYTES_MAX)
    else:
        return  # Triton knows no other
    refuse(find_fatal_nesting(text) or find_fatal_shape(text, body_bytes=room))


def _unpacked(body: Body, size: int | None) -> bytes:
    """The JSON of a compressed request, or what there is of it if its end is missing, as Triton reads it."""
    if size == 0:
        return b""
    longest = UNPACKED_BYTES_MAX + 1
    try:
        text = zlib.decompressobj(_GZIP_OR_ZLIB).decompress(body, min(size or longest, longest))
    except zlib.error as error:
        raise InvalidRequestError(
            f"The body is not compressed as its Content-Encoding says: {error}", code="invalid_encoding"
        ) from None
    if len(text) > UNPACKED_BYTES_MAX:
        raise BodyTooLargeError(
            f"The JSON in the compressed body exceeds {UNPACKED_BYTES_MAX} bytes; send it uncompressed, or its tensors "
            "as binary data",
            limit=UNPACKED_BYTES_MAX,
        )
    return text


def longest_wait_s(fields: Iterable[tuple[bytes, bytes]], head: RequestHead, longest_ms: int) -> float:
    """How long a request may wait for a slot, in seconds: what the operator allows, or less if the caller says so.

    Raises:
        InvalidRequestError: `invalid_timeout`: the header is no number of microseconds.
    """
    given = next((value for name, value in fields if name == TIMEOUT_HEADER), None)
    if given is not None and not (given.isdigit() and len(given) < 19):
        raise InvalidRequestError(
            f"{TIMEOUT_HEADER.decode()} must be a whole number of microseconds", code="invalid_timeout"
        )
    wishes_us = [us for us in (int(given or 0), head.timeout_us or 0) if us > 0]
    return min([longest_ms / 1000, *(us / 1_000_000 for us in wishes_us)])
