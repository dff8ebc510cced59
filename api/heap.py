"""Keeps Python's collector of cycles from stopping the service, and what large answers took ready for the next one."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

SESSIONS_STEP: Final = 1000
"""Sessions that may be added before those that live are settled: walking so many takes 10 to 15 ms with all else."""
_LOOK_S: Final = 1.0
KEPT_FREE_BYTES: Final = 32 * 2**20
"""So much freed memory stays with the process."""
MAPPED_BYTES: Final = 4 * 2**20
"""A block of so many bytes is mapped by itself, and is always given back at once."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's `mallopt`."""


def keep_freed_memory() -> bool:
    """To be called once, by a process that serves: what an answer has freed is used again for the next one.

    An answer that comes faster than its caller takes it lies in memory for a while. By itself glibc then gives the end
    of the heap back to the system, and the next answer pays for every page anew: a quarter of what 10 MB cost
    (ADR-0019). Whoever sets glibc's own variables has decided otherwise.

    Returns:
        False where there is no such allocator, or it was set already; nothing has changed then.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_FREE_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, MAPPED_BYTES))


def settle_heap() -> None:
    """To be called once, by a process that serves, when everything is imported.

    What was made so far lives as long as the process. Walking it for cycles took 60 ms at a time, during which nothing
    was answered: measured under overload, the 99th percentile of refusals fell from 50 to 8 ms by this.
    """
    gc.collect()
    gc.freeze()


async def settle_sessions(count: Callable[[], int]) -> None:
    """Settles what lives whenever many more sessions live than before, until it is cancelled.

    While 100,000 sessions came to live, full passes stopped the service eleven times, for 540 ms at the longest; with
    this 59 times, for 15 ms at the longest (docs/performance.md). A session that ends is given back without the
    collector, but whatever else lives in the moment of settling and becomes a cycle later is not found any more. That
    is bounded by how seldom it is done, once per `SESSIONS_STEP` more sessions than before, and when few are left
    all is walked.

    Args:
        count: how many sessions live now.
    """
    settled = 0
    while True:
        await trio.sleep(_LOOK_S)
        sessions = count()
        if sessions >= settled + SESSIONS_STEP:
            settled = sessions
            settle_heap()
        elif settled and sessions <= SESSIONS_STEP // 2:
            settled = 0
            gc.unfreeze()
            settle_heap()
