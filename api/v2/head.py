"""What is read of an inference request before it is passed on: its JSON if that is small, and how long it may wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from governor.errors import InvalidRequestError
from governor.triton.outcomes import CallKind
from governor.triton.requestcheck import CHECKED_BYTES_MAX, RequestHead

if TYPE_CHECKING:
    from collections.abc import Iterable

TIMEOUT_HEADER: Final = b"triton-timeout"
"""A caller's bound on its wait for a slot, in microseconds, as Triton's request parameter `timeout`."""
_LENGTH_HEADER: Final = b"inference-header-content-length"


def request_head(
    fields: Iterable[tuple[bytes, bytes]], kind: CallKind, version: str | None, body: bytes
) -> RequestHead:
    """The part of a request that can be checked."""
    encoding, length = None, None
    for name, value in fields:
        if name == b"content-encoding" and encoding is None:
            encoding = value
        elif name == _LENGTH_HEADER and length is None:
            length = value
    if encoding not in {None, b"", b"identity"}:
        return RequestHead.of(kind, version, b"")
    size = len(body)
    if kind is CallKind.INFER and length is not None:
        size = int(length) if length.isdigit() and len(length) < 10 else 0
    if not 0 < size <= min(len(body), CHECKED_BYTES_MAX):
        return RequestHead.of(kind, version, b"")
    return RequestHead.of(kind, version, body[:size], len(body) - size)


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
