"""Why an identity achieves nothing, and what else an operator should know of it: each in one sentence (A8).

It decides nothing. Routes for probes and for operators tell the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from governor.core.claims import ClaimState

if TYPE_CHECKING:
    from governor.backend import Backend
    from governor.identity import Identity, IdentityStatistics

STUCK_S: Final = 10.0
"""Slots that are all held by broken calls for so long are no passing matter any more."""
HUNG_S: Final = 30.0
"""What should happen every moment and did not for so long hangs."""
_WAITING: Final = (ClaimState.RECONCILING, ClaimState.AWAITING_BASELINE)
_BROKEN: Final = (*_WAITING, ClaimState.QUARANTINED)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with an identity.

    Attributes:
        problem: why no call can achieve anything now; None when one can.
        remarks: what else is out of the ordinary.
    """

    problem: str | None
    remarks: tuple[str, ...]


def diagnose(identity: Identity, backend: Backend) -> Diagnosis:
    """What is wrong now."""
    statistics = identity.statistics()
    problem = backend.status.problem_of(identity.key.model) or _held(statistics)
    found = [_watcher(backend), _poller(identity, statistics), _evidence(statistics, problem)]
    return Diagnosis(problem, tuple(remark for remark in found if remark is not None))


def _held(statistics: IdentityStatistics) -> str | None:
    """All slots are held by calls that nobody waits for an answer of."""
    ledger = statistics.ledger
    counts = {state: ledger.states.get(state, 0) for state in _BROKEN}
    broken, quarantined = sum(counts.values()), counts[ClaimState.QUARANTINED]
    if broken < ledger.slots:
        return None
    held = "the only slot is held by a call" if broken == 1 else f"all {broken} slots are held by calls"
    if broken == quarantined:
        return f"{held} that nothing can prove ended; restart the backend, or release {'it' if broken == 1 else 'them'}"
    waiting_s = _oldest_s(statistics)
    if waiting_s < STUCK_S:
        return None
    why = statistics.last_reading_error
    because = f"readings fail: {why}" if why is not None else "no reading has shown their end"
    return f"{held} whose connection broke, for up to {waiting_s:.0f} s; {because}"


def _watcher(backend: Backend) -> str | None:
    age_s = backend.check_age_s
    limit_s = HUNG_S + 3 * backend.config.health_interval_ms / 1000
    if age_s is None or age_s < limit_s:
        return None
    return f"the last health check of its backend ended {age_s:.0f} s ago; the watcher hangs"


def _poller(identity: Identity, statistics: IdentityStatistics) -> str | None:
    """Readings are wanted and none comes, not even a failed one."""
    if not statistics.polling:
        return None
    ended_at_s = identity.watch.ended_at_s
    since_last_s = trio.current_time() - ended_at_s if ended_at_s is not None else float("inf")
    silent_s = min(since_last_s, _oldest_s(statistics))
    if silent_s < HUNG_S + 3 * identity.settings.poll_interval_s:
        return None
    return f"readings are wanted, and for {silent_s:.0f} s none has come, nor failed; the poller hangs"


def _evidence(statistics: IdentityStatistics, problem: str | None) -> str | None:
    if statistics.ledger.contested:
        return "somebody else calls the model: nothing is proven by its counter until that ends"
    if statistics.last_reading_error is not None and problem is None:
        return f"the last reading failed: {statistics.last_reading_error}"
    return None


def _oldest_s(statistics: IdentityStatistics) -> float:
    return max((statistics.oldest_claims_s.get(state, 0.0) for state in _WAITING), default=0.0)
