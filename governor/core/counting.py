"""What a finished call adds to a counter, and what one reading of the counters shows.

The end counter is S + F, summed over versions (E5). A plain model adds one to it for every call that ends. An
ensemble adds one for a success, but one or two for a failure; counting 2S + F instead puts every call of either
kind between 1 and 2, and a rule with `most=2` says so (ADR-0002).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests that ended at one counter, as the backend tells it: S and F (E5)."""

    success: int
    fail: int


@dataclass(frozen=True, slots=True)
class CountRule:
    """How a model's ends are counted.

    Attributes:
        success_weight: what one success adds to `measure`.
        most: the most that any one call can add to `measure`.
    """

    success_weight: int
    most: int

    def measure(self, counts: Counts) -> int:
        """The monotone number that a witness watches."""
        return self.success_weight * counts.success + counts.fail


PLAIN = CountRule(success_weight=1, most=1)
"""Every call that ends adds exactly one, however it ends."""

ENSEMBLE = CountRule(success_weight=2, most=2)
"""A success adds two, a failure one or two."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Evidence: one consistent observation of a backend's counters and of its boot identity.

    Attributes:
        model: S and F of the model's statistics, summed over its versions. Scope: one load of the model.
        versions: the versions the statistics named.
        life: further numbers of the same statistics that never fall while the model stays loaded; one that
            falls tells a new life even where the count has overtaken the old one.
        process: S and F of the process's own metrics, over all loads of the model; None when not read.
        boot: what identifies the backend's process; None when unknown (E8).
    """

    model: Counts
    versions: frozenset[str] = frozenset()
    life: tuple[int, ...] = ()
    process: Counts | None = None
    boot: str | None = None
