"""The one port through which simulated time passes."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer:
    """One callback that waits for its time.

    Attributes:
        due: when, in seconds of the scheduler's clock.
    """

    __slots__ = ("_callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Never call it. Cancelling twice, or after the call, does nothing."""
        self._callback = None

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled or has been called."""
        return self._callback is None

    def fire(self) -> None:
        """Call it, once."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Scheduler(Protocol):
    """What the simulated Triton needs of time."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back after `delay_s` seconds; callbacks that are due together run in the order they were made."""


class Timetable:
    """The pending timers of a scheduler, earliest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def add(self, due: float, callback: Callable[[], None]) -> Timer:
        """Keep a timer for `due`."""
        timer = Timer(due, callback)
        heapq.heappush(self._heap, (due, next(self._order), timer))
        return timer

    def next_due(self) -> float | None:
        """When the earliest timer is due; None where none waits."""
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Timer | None:
        """Take the earliest timer out if it is due at `now`."""
        due = self.next_due()
        if due is None or due > now:
            return None
        return heapq.heappop(self._heap)[2]


class ManualScheduler:
    """A scheduler whose time moves only when told: for tests and for simulations without trio."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._timetable = Timetable()

    def now(self) -> float:
        """The time reached so far."""
        return self._now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back once `advance` has passed `delay_s` seconds."""
        return self._timetable.add(self._now + max(0.0, delay_s), callback)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, calling every timer at its own time."""
        end = self._now + seconds
        while (timer := self._timetable.pop_due(end)) is not None:
            self._now = max(self._now, timer.due)
            timer.fire()
        self._now = end
