"""Keeps Python's collector of cycles from stopping the service."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

SESSIONS_STEP: Final = 1000
"""Sessions that may be added before those that live are settled: walking so many takes 10 to 15 ms with all else."""
_LOOK_S: Final = 1.0


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
