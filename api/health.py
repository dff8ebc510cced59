"""`GET /readyz`: can the governor achieve anything, and if not, why (A8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.core.claims import ClaimState
from governor.identity import IdentityKey

if TYPE_CHECKING:
    from governor.errors import JsonValue
    from governor.identity import IdentityStatistics
    from governor.service import Governor


def readiness(governor: Governor) -> tuple[bool, dict[str, JsonValue]]:
    """Whether at least one model can be used now, and the details as the body of the answer."""
    statistics = governor.statistics()
    by_key = {identity.key: identity for identity in statistics.identities}
    problems = governor.problems()
    models: dict[str, JsonValue] = {}
    usable = 0
    for name, served in governor.models.items():
        identity = by_key[IdentityKey(served.config.backend, served.config.triton_model)]
        reason = problems.get(name) or _all_quarantined(identity)
        models[name] = {"usable": reason is None, "reason": reason}
        usable += reason is None
    ready = usable > 0 and not statistics.draining
    body: dict[str, JsonValue] = {"ready": ready, "draining": statistics.draining, "models": models}
    body["identities"] = [shown for identity in statistics.identities if (shown := _remarkable(identity)) is not None]
    return ready, body


def _all_quarantined(identity: IdentityStatistics) -> str | None:
    held = identity.ledger.states.get(ClaimState.QUARANTINED, 0)
    if held < identity.ledger.slots:
        return None
    return f"all {held} slots are held by calls that nothing can prove ended; restart the backend"


def _remarkable(identity: IdentityStatistics) -> dict[str, JsonValue] | None:
    """What an operator should know of an identity; None when there is nothing."""
    waiting_on_evidence = (ClaimState.RECONCILING, ClaimState.AWAITING_BASELINE, ClaimState.QUARANTINED)
    counts = {state: identity.ledger.states.get(state, 0) for state in waiting_on_evidence}
    if not (any(counts.values()) or identity.ledger.contested or identity.last_reading_error):
        return None
    return {
        "backend": identity.key.backend,
        "model": identity.key.model,
        "slots": identity.ledger.slots,
        "freeSlots": identity.ledger.free,
        "reconciling": counts[ClaimState.RECONCILING],
        "awaitingBaseline": counts[ClaimState.AWAITING_BASELINE],
        "quarantined": counts[ClaimState.QUARANTINED],
        "contested": identity.ledger.contested,
        "lastReadingError": identity.last_reading_error,
    }
