"""A large request's body on its way straight through, in pieces, all but its last byte ahead of a slot (ADR-0018)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from .head import json_before_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.identity.uploads import Upload

    from ..hardened import ReadInto

PIECE_BYTES: Final = 256 * 1024
"""What is held of a body at a time. Bodies up to this length are read whole: they gain nothing."""
YIELD_READS: Final = 4
"""After so many pieces of a body all others have a turn, at the latest. (After each would cost a tenth of the time.)"""


def text_bytes(fields: Iterable[tuple[bytes, bytes]], declared: int) -> int | None:
    """Length of the JSON before the raw tensors of a body that may go ahead; None for one that may not.

    What is to be checked must be at its beginning.
    """
    return json_before_tensors(fields, declared) if declared > PIECE_BYTES else None


class AheadBody:
    """A body of a declared length as it comes.

    Args:
        read_into: reads from the client.
        length: as declared, longer than one piece.
    """

    def __init__(self, read_into: ReadInto, length: int) -> None:
        self._read_into = read_into
        self._room = memoryview(bytearray(PIECE_BYTES))
        self._filled = 0
        self._left = length
        self._reads = 0

    async def text(self, size: int) -> bytes | None:
        """The first bytes, which stay part of the body; None when the client left before they were here."""
        while self._filled < size:
            if not await self._read():
                return None
        return bytes(self._room[:size])

    async def pass_to(self, upload: Upload) -> bool:
        """Hands on everything but the last byte, which is kept back; False when the client left before it was here.

        Raises:
            BackendUnavailableError: the backend did not take it.
        """
        while self._left:
            await upload.send(self._room[: self._filled])
            self._filled = 0
            if not await self._read():
                return False
        await upload.send(self._room[: self._filled - 1])
        upload.keep_back(bytes(self._room[self._filled - 1 : self._filled]))
        return True

    async def drain(self) -> bool:
        """Reads the rest away, so that an answer can be told; False when the client left instead."""
        while self._left:
            self._filled = 0
            if not await self._read():
                return False
        return True

    async def _read(self) -> bool:
        self._reads += 1
        if self._reads % YIELD_READS == 0:
            await trio.lowlevel.checkpoint()  # where neither end is ever waited for, the others must not starve
        size = await self._read_into(self._room[self._filled :])
        self._filled += size
        self._left -= size
        return size > 0
