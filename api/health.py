"""`GET /readyz`: can the governor achieve anything, and if not, why (A8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.core.claims import ClaimState
from governor.diagnosis import diagnose

if TYPE_CHECKING:
    from governor.errors import JsonValue
    from governor.identity import IdentityStatistics
    from governor.service import Governor


def readiness(governor: Governor) -> tuple[bool, dict[str, JsonValue]]:
    """Whether at least one model can be used now, and the details as the body of the answer."""
    statistics = governor.statistics()
    found = {
        identity.key: diagnose(identity, governor.backends[identity.key.backend])
        for identity in governor.identities.values()
    }
    models: dict[str, JsonValue] = {}
    usable = 0
    for name, served in governor.models.items():
        reason = found[served.identity.key].problem
        models[name] = {"usable": reason is None, "reason": reason}
        usable += reason is None
    ready = usable > 0 and not statistics.draining
    body: dict[str, JsonValue] = {"ready": ready, "draining": statistics.draining, "models": models}
    body["problems"] = [
        f"{key}: {sentence}"
        for key, diagnosis in found.items()
        for sentence in (diagnosis.problem, *diagnosis.remarks)
        if sentence is not None
    ]
    body["identities"] = [shown for identity in statistics.identities if (shown := _remarkable(identity)) is not None]
    return ready, body


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
