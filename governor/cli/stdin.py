"""Standard input, read so that Ctrl-C ends the wait for it.

A thread that waits in a read cannot be told to stop, and Python waits for it at its end. So nothing is read before
there is something to read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, cast

import anyio

if TYPE_CHECKING:
    import io

_CHUNK_BYTES: Final = 65536


async def read_all(max_bytes: int) -> bytes:
    """Everything until its end, or somewhat more than `max_bytes` if there is more."""
    stream = cast("io.BufferedReader", sys.stdin.buffer)
    data = bytearray()
    while len(data) <= max_bytes:
        await _something_to_read()
        # As large as its buffer or larger: nothing stays behind in it, where waiting would not see it.
        chunk = stream.read1(_CHUNK_BYTES)
        if not chunk:
            break
        data += chunk
    return bytes(data)


async def read_line() -> str:
    """The next line that somebody types; empty at the end."""
    await _something_to_read()
    return sys.stdin.readline()


async def _something_to_read() -> None:
    try:
        await anyio.wait_readable(sys.stdin.fileno())
    except OSError:
        return  # a file, or what stands for one: reading it waits for nobody
