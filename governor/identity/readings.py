"""When an identity's backend was last asked for a reading, and what it said: for whoever looks at it (A7, A8)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from governor.core.counting import Reading


class ReadingWatch:
    """The last readings of one identity. Times are trio's, in seconds.

    Attributes:
        reading: the last one that was had; None so far.
        reading_at_s: when it came.
        failed_at_s: when one last could not be had, or made no sense; None so far.
        asked_at_s: since when one is being waited for; None while none is.
        ended_at_s: when waiting for one last ended, in whatever way; None so far.
    """

    def __init__(self) -> None:
        self.reading: Reading | None = None
        self.reading_at_s: float | None = None
        self.failed_at_s: float | None = None
        self.asked_at_s: float | None = None
        self.ended_at_s: float | None = None

    @contextmanager
    def asking(self) -> Iterator[Callable[[Reading], None]]:
        """While it is entered, a reading is waited for; what it gives takes the reading."""
        self.asked_at_s = trio.current_time()
        try:
            yield self._came
        finally:
            self.asked_at_s = None
            self.ended_at_s = trio.current_time()

    def failed(self) -> None:
        """There is none to be had."""
        self.failed_at_s = trio.current_time()

    def _came(self, reading: Reading) -> None:
        self.reading = reading
        self.reading_at_s = trio.current_time()
