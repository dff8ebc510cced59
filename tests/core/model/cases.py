"""A world and what must come of it.

`excuses` and `held` say what the design cannot know, and nothing else may come of a world:

- `excuses`: why a claim may have ended while its work executed (`judge.py`);
- `held`: what became of the work of claims that are still held after everything has ended (`liveness.py`).

`states` is pinned, so that a change that quietly takes behaviour away shows in review.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.core.model.liveness import FATES

if TYPE_CHECKING:
    from tests.core.model.bounds import Bounds

QUIET_TWO = "quiet ended two claims"
QUIET = "reconciling ended by quiet"
BY_PROCESS = "reconciling ended by process_ended"
DOUBT = "a doubt was resolved"
LATER = "a process proven dead ended what broke later"
CARRIED = "an open claim was carried into a new process"
OVERTAKEN = "an overtaken counter hid a new life"
REPLACED = "a claim lost the model's counter"
BESIDE = "quiet was proven beside a claim that lost the model's counter"

KNOWN, EITHER = (True,), (True, False)
ERRORS = ("ok", "error, counted", "error, uncounted")
ENSEMBLE_OUTCOMES = ("ensemble ok", "ensemble failed, counted twice", "ensemble failed, counted once")


@dataclass(frozen=True)
class Case:
    """A world and what must come of it.

    Attributes:
        bounds: the world.
        states: how many states it has.
        excuses: the exceptions that occur in it, each of which must.
        sometimes: situations that must be reached.
        held: what may stay held; None where that is not looked at.
    """

    bounds: Bounds
    states: int
    excuses: frozenset[str] = frozenset()
    sometimes: frozenset[str] = field(default=frozenset({QUIET}))
    held: frozenset[str] | None = None


def new_case(
    bounds: Bounds, states: int, *sometimes: str, excuses: tuple[str, ...] = (), held: tuple[str, ...] | None = None
) -> Case:
    """A world, the situations it must reach (a quiet proof, if none are named), its exceptions, and what it holds."""
    fates = None if held is None else frozenset(FATES[fate] for fate in held)
    return Case(bounds, states, frozenset(excuses), frozenset(sometimes) or frozenset({QUIET}), fates)
