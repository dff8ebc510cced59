"""The words in which evidence is asked for and answered: values only, no behaviour."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.core.claims import ClaimEvent, ClaimState


class OnFall(enum.Enum):
    """E8: what a falling counter means where no boot identity says whether the process died."""

    RESTART = "restart"
    """It died: every broken claim delivered before the reading ends (ADR-0040 as it stands)."""
    SEEN = "seen"
    """It died: broken claims that a reading of the same epoch saw end, the others are quarantined."""
    HOLD = "hold"
    """It may live: nothing ends, every broken claim is quarantined."""


class Life(enum.Enum):
    """How a reading relates to the epoch it was applied to."""

    STALE = "stale"
    """It was asked for before another reading was taken, and may show a moment before that one's."""
    BASELINE = "baseline"
    """It is the epoch's first."""
    SAME = "same"
    """The counters went on."""
    RESTART = "restart"
    """Another process answers: the boot identity changed (E6)."""
    RELOAD = "reload"
    """The same process, another load of the model or other versions of it (E7)."""
    UNKNOWN_FALL = "unknown_fall"
    """A counter fell and nobody can say which of the two it was (E8)."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What was true when a reading was asked for; taken before, given back with it.

    Attributes:
        after: how many readings had been taken by then.
        begun_at_s: when, in the driver's monotonic seconds; what the reading shows is not older than this.
        settled: how much of what was let go of in each process is certainly in what the reading shows
            (`epoch.Unsettled`).
    """

    after: int
    begun_at_s: float
    settled: Mapping[str | None, int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one reading did.

    Attributes:
        life: how the reading related to the epoch.
        ended: the claims that ended by it, each with its proof.
        quarantined: the claims that no counter can prove any more.
        contested: E10 holds after it.
    """

    life: Life
    ended: tuple[tuple[int, ClaimEvent], ...] = ()
    quarantined: tuple[int, ...] = ()
    contested: bool = False


@dataclass(slots=True)
class LedgerTotals:
    """Counts since the ledger was made; they only grow."""

    proven_quiet: int = 0
    proven_process_ended: int = 0
    baseline_missing: int = 0
    restarts: int = 0
    reloads: int = 0
    unknown_falls: int = 0
    contested: int = 0
    stale_readings: int = 0
    released_unproven: int = 0


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """A copy of what a ledger shows to metrics, readiness and the operator.

    Attributes:
        slots: credits there are.
        free: credits no claim holds.
        epoch: number of the current epoch; 0 before the first baseline.
        boot: boot identity of the last reading that had one.
        contested: E10 holds.
        has_baseline: the epoch has its baseline.
        states: claims by state, `ended` left out.
        model_bound, model_high: the model witness's numbers; None without a baseline.
        process_bound, process_high: the process witness's; None where metrics are not read.
    """

    slots: int
    free: int
    epoch: int
    boot: str | None
    contested: bool
    has_baseline: bool
    states: dict[ClaimState, int]
    model_bound: int | None
    model_high: int | None
    process_bound: int | None
    process_high: int | None
