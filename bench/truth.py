"""The backend's own record of what really ran."""

from __future__ import annotations

import time
from array import array
from typing import TypedDict

_EVENTS_MAX = 20_000


class Told(TypedDict):
    """See `Truth.told`."""

    seconds: float
    running: int
    peak: int
    began: int
    ended: int
    waited: int
    busy: float
    service_ms: dict[str, float]
    events: list[tuple[float, int]]


class Truth:
    """What really happened, whatever anybody's client believes.

    Attributes:
        peak: the most executions that ran at the same time.
        waited: executions that found every instance busy.
    """

    def __init__(self) -> None:
        self.since_s = time.monotonic()
        self.running = 0
        self.peak = 0
        self.began = 0
        self.ended = 0
        self.waited = 0
        self._busy_s = 0.0
        self._changed_s = self.since_s
        self._first_s = 0.0
        self._service_ms = array("d")
        self._events: list[tuple[float, int]] = []

    def change(self, by: int, now_s: float) -> None:
        """One execution more, or one less."""
        self._busy_s += self.running * (now_s - self._changed_s)
        self._changed_s = now_s
        self.running += by
        self.peak = max(self.peak, self.running)
        if by > 0:
            self.began += 1
            self._first_s = self._first_s or now_s
        else:
            self.ended += 1
        if len(self._events) < _EVENTS_MAX:
            self._events.append((round(now_s - self.since_s, 6), self.running))

    def served(self, came_s: float, now_s: float) -> None:
        """The execution of a request that came at `came_s` has ended."""
        self._service_ms.append(1000 * (now_s - came_s))
        self.change(-1, now_s)

    def told(self) -> Told:
        """The truth so far; `busy` is the mean number of running executions from the first begin to the last end."""
        now_s = time.monotonic()
        ordered = sorted(self._service_ms)
        percentiles = {
            f"p{percent}": ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0
            for percent in (1, 50, 99)
        }
        return {
            "seconds": now_s - self.since_s,
            "running": self.running,
            "peak": self.peak,
            "began": self.began,
            "ended": self.ended,
            "waited": self.waited,
            "busy": self._busy_s / max(1e-9, self._changed_s - self._first_s),
            "service_ms": percentiles,
            "events": self._events,
        }
