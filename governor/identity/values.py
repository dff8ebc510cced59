"""What an identity is called, bounded by, counts and shows: values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.core.claims import Claim, ClaimState
    from governor.core.evidence import LedgerSnapshot, LedgerTotals, OnFall
    from governor.identity.chronicle import Chronicle
    from governor.triton.metadata import ModelFacts


@dataclass(frozen=True, slots=True, order=True)
class IdentityKey:
    """Names an identity: two servers with a model of the same name are two identities."""

    backend: str
    model: str

    def __str__(self) -> str:
        return f"{self.backend}/{self.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySettings:
    """The bounds of one identity. Times in seconds."""

    slots: int
    max_waiting: int
    lane_idle_s: float
    call_limit_s: float
    poll_interval_s: float
    settle_s: float
    on_fall: OnFall
    max_unprovable_age_s: float | None = None


@dataclass(slots=True)
class IdentityTotals:
    """Counts since the identity was made; they only grow."""

    calls: int = 0
    refused: int = 0
    undelivered: int = 0
    broken: int = 0
    answered: int = 0
    abandoned: int = 0
    readings: int = 0
    readings_failed: int = 0


@dataclass(frozen=True, slots=True)
class IdentityStatistics:
    """A copy of what an identity shows to metrics, readiness and the operator.

    Attributes:
        oldest_waiting_s: seconds that the longest waiting call has waited; None when none waits.
        oldest_claims_s: seconds since the oldest claim of each state got its credit; only states that have one.
        chronicle: how long things took; no copy.
    """

    key: IdentityKey
    ledger: LedgerSnapshot
    ledger_totals: LedgerTotals
    totals: IdentityTotals
    waiting: int
    polling: bool
    last_reading_error: str | None
    facts: ModelFacts | None
    chronicle: Chronicle
    oldest_waiting_s: float | None
    oldest_claims_s: dict[ClaimState, float]


def oldest_ages_s(claims: Iterable[Claim], now_s: float) -> dict[ClaimState, float]:
    """Seconds since the oldest claim of each state got its credit."""
    oldest: dict[ClaimState, float] = {}
    for claim in claims:
        oldest[claim.state] = max(oldest.get(claim.state, 0.0), now_s - claim.opened_at_s)
    return oldest
