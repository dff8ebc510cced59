"""One monotone counter that can prove quiet.

The whole proof rests on one number, the *bound*: the highest value the counter can ever show by our own calls,
given everything we delivered (ADR-0002). It starts as the baseline, grows by a call's most when the call is
dispatched, and shrinks when a call turns out never to count. A counter that reaches the bound has nothing of ours
left to wait for. Every later reading offers a new bound (its value plus all that may still count), and the lower
of two true bounds is a true bound.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Witness:
    """A counter's bound and the highest value it showed in this life.

    Attributes:
        bound: the counter cannot exceed it by our calls alone.
        high: the highest reading of this life; a lower one means a new life (E6, E7).
    """

    bound: int
    high: int

    def may_count(self, most: int) -> None:
        """A call that may add up to `most` was dispatched."""
        self.bound += most

    def never_counts(self, most: int) -> None:
        """A dispatched call turned out to add nothing (E3), or `most` less than assumed."""
        self.bound -= most

    def fell(self, value: int) -> bool:
        """True when `value` cannot belong to this life."""
        return value < self.high

    def contested(self, value: int) -> bool:
        """E10: more than all our calls together can have added, so somebody else calls the model."""
        return value > self.bound

    def quiet(self, value: int, most: int) -> bool:
        """E5: one unfinished call would leave the counter at least `most` below the bound."""
        return value > self.bound - most

    def observe(self, value: int, outstanding: int) -> None:
        """Takes over a reading of the same life.

        Args:
            value: what the counter showed.
            outstanding: the most that everything not known to be counted at that moment can still add.
        """
        self.high = max(self.high, value)
        self.bound = min(self.bound, value + outstanding)
