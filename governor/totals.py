"""What is counted over all sessions of one governor; the numbers only grow."""

from __future__ import annotations

from dataclasses import dataclass, field

from governor.core.prompts import Outcome
from governor.histogram import Histogram


def _by_outcome() -> dict[Outcome, Histogram]:
    return {outcome: Histogram() for outcome in Outcome}


@dataclass(slots=True)
class ServiceTotals:
    """Counts since the governor was made.

    Attributes:
        sessions_opened: sessions that were made.
        prompts_admitted: accepted prompts.
        prompts_refused: prompts refused because their session's queue was full.
        prompts_s: settled prompts by outcome: seconds from admission to the end for the caller.
        subscribers_evicted: event streams that were ended because their reader was too slow.
    """

    sessions_opened: int = 0
    prompts_admitted: int = 0
    prompts_refused: int = 0
    subscribers_evicted: int = 0
    prompts_s: dict[Outcome, Histogram] = field(default_factory=_by_outcome)
