"""A histogram of durations, cheap enough for the hot path: no lock, no labels, one search among few bounds."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper bounds in seconds, from a small model's answer to the longest call that is given time."""


class Histogram:
    """Counts durations in seconds by `BOUNDS_S`.

    Attributes:
        sum_s: of all durations.
    """

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self.sum_s = 0.0
        self._counts = [0] * (len(BOUNDS_S) + 1)

    def observe(self, duration_s: float) -> None:
        """Counts one."""
        self._counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self._counts)

    def cumulative(self) -> list[int]:
        """How many were at most as long as each bound, and last of all how many there were."""
        return list(accumulate(self._counts))
