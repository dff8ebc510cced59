"""What operators see, in wire spelling. Pure. Every list is bounded.

Ages are whole milliseconds before `atMs`. Whoever compares two states leaves them out (`without_ages`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from governor.core.claims import ClaimState
from governor.diagnosis import diagnose
from governor.errors import GovernorError
from governor.identity import inspect

from .ids import id_of_name, identity_id

if TYPE_CHECKING:
    from governor.core.counting import Counts
    from governor.errors import JsonValue
    from governor.identity import (
        ClaimView,
        ForgottenClaim,
        Identity,
        IdentityStatistics,
        IdentityView,
        ReadingsView,
        WaitingView,
    )
    from governor.identity.notes import ClaimNote
    from governor.operations import RestartResult
    from governor.recent import RecentEvent
    from governor.service import Governor
    from governor.session import Session

    from ..views import View

    _Sessions = defaultdict[Identity, list[Session]]

CLAIMS_SHOWN: Final = 64
"""Claims of one identity in a list of identities; `/admin/identities/:id` shows more."""
CLAIMS_SHOWN_MAX: Final = 1024
QUEUES_SHOWN: Final = 16
"""Sessions with prompts, and callers that wait, of one identity: those with the most of them."""
IDENTITIES_SHOWN: Final = 100
IDENTITIES_SHOWN_MAX: Final = 1000
_STATES: Final = tuple(state for state in ClaimState if state is not ClaimState.ENDED)


def state(governor: Governor, *, size: int = IDENTITIES_SHOWN, after: str | None = None) -> View:
    """Everything: the governor, and a page of its identities in the order of their ids.

    Args:
        governor: whose.
        size: identities of this page.
        after: the id of the last identity of the page before.
    """
    statistics = governor.statistics()
    by_id = {identity_id(key): identity for key, identity in governor.identities.items()}
    ids = sorted(wanted for wanted in by_id if after is None or wanted > after)
    sessions = _by_identity(governor)
    told: View = {
        "v": 1,
        "atMs": governor.now_ms(),
        "startedAtMs": governor.started_at_ms,
        "draining": statistics.draining,
        "stopping": statistics.stopping,
        "sessions": {
            "live": statistics.sessions,
            "pendingPrompts": statistics.pending_prompts,
            "activePrompts": statistics.active_prompts,
        },
        "lastEventId": governor.recent.last_id,
        "identitiesTotal": len(by_id),
        "identities": [_identity(governor, by_id[wanted], sessions, CLAIMS_SHOWN) for wanted in ids[:size]],
    }
    if len(ids) > size:
        told["nextAfter"] = ids[size - 1]
    return told


def identity_view(governor: Governor, identity: Identity, *, claims_max: int = CLAIMS_SHOWN) -> View:
    """One identity with its `claims_max` oldest claims."""
    return _identity(governor, identity, _by_identity(governor), claims_max)


def _identity(governor: Governor, identity: Identity, sessions: _Sessions, claims_max: int) -> View:
    seen = inspect(identity, claims_max=claims_max, waiting_max=QUEUES_SHOWN)
    statistics, ledger = seen.statistics, seen.statistics.ledger
    diagnosis = diagnose(identity, governor.backends[identity.key.backend])
    return {
        "id": identity_id(identity.key),
        "backend": identity.key.backend,
        "model": identity.key.model,
        "leaving": not governor.fleet.is_served(identity),
        "names": [name for name, served in governor.models.items() if served.identity is identity],
        "usable": diagnosis.problem is None,
        "problem": diagnosis.problem,
        "remarks": [*diagnosis.remarks],
        "credits": {"slots": ledger.slots, "free": max(0, ledger.free), "held": ledger.slots - ledger.free},
        "handsOutCredits": not seen.held,
        "states": _states(statistics),
        "claimsTotal": ledger.slots - ledger.free,
        "claims": [_claim(claim) for claim in seen.claims],
        "epoch": ledger.epoch,
        "boot": ledger.boot,
        "hasBaseline": ledger.has_baseline,
        "witnesses": {
            "model": _witness(ledger.model_bound, ledger.model_high),
            "process": _witness(ledger.process_bound, ledger.process_high),
        },
        "reading": _reading(seen.readings),
        "readingError": statistics.last_reading_error,
        "readingErrorAgeMs": _ms(seen.readings.error_age_s) if statistics.last_reading_error else None,
        "readingWaitAgeMs": _ms(seen.readings.waiting_s),
        "polling": statistics.polling,
        "contested": ledger.contested,
        "queue": {
            "waiting": statistics.waiting,
            "limit": seen.max_waiting,
            "oldestAgeMs": _ms(statistics.oldest_waiting_s),
            "callersTotal": seen.waiting_keys,
            "callers": [_waiting(waiting) for waiting in seen.waiting],
        },
        "sessions": {**_totals_of(sessions[identity]), **_queues(sessions[identity])},
        "facts": _facts(seen),
        "totals": _totals(seen),
    }


def work_left(governor: Governor) -> View:
    """Whether new work is let in, and how much of the old has not ended."""
    statistics = governor.statistics()
    identities = statistics.identities
    return {
        "draining": statistics.draining,
        "liveSessions": statistics.sessions,
        "pendingPrompts": statistics.pending_prompts,
        "waitingCalls": sum(identity.waiting for identity in identities),
        "heldSlots": sum(identity.ledger.slots - identity.ledger.free for identity in identities),
    }


def leaving(governor: Governor) -> list[JsonValue]:
    """The identities that no model has any more, and what of them has not ended."""
    sessions = _by_identity(governor)
    return [
        {
            "identity": identity_id(identity.key),
            "states": _states(identity.statistics()),
            "waitingCalls": identity.statistics().waiting,
            "pendingPrompts": sum(session.pending_count for session in sessions[identity]),
        }
        for identity in governor.identities.values()
        if not governor.fleet.is_served(identity)
    ]


def recent_event(event: RecentEvent) -> View:
    """One entry of the ring of recent events."""
    return {
        "id": event.id,
        "atMs": event.at_ms,
        "lastAtMs": event.last_ms,
        "count": event.count,
        "kind": event.kind,
        "identity": id_of_name(event.identity) if event.identity is not None else None,
        **{key: value for key, value in event.data.items() if value is not None},
    }


def restart_result(result: RestartResult) -> View:
    """What a forced restart did to one identity."""
    told: View = {"identity": identity_id(result.key), "previousEpoch": result.previous_epoch}
    outcome = result.outcome
    if isinstance(outcome, GovernorError):
        return {**told, "ok": False, "error": outcome.message, "code": outcome.code, **outcome.details}
    return {
        **told,
        "ok": True,
        "epoch": outcome.epoch,
        "provenClaims": outcome.proven,
        "forgottenClaims": [forgotten_claim(claim) for claim in outcome.forgotten],
        "openClaims": outcome.open_claims,
    }


def forgotten_claim(claim: ForgottenClaim) -> View:
    """A claim that was released without proof."""
    return {"id": claim.id, "state": claim.state.value, "ageMs": int(claim.age_s * 1000), **_note(claim.note)}


def without_ages(value: JsonValue) -> JsonValue:
    """The same without what changes by the mere passing of time."""
    if isinstance(value, dict):
        return {key: without_ages(inner) for key, inner in value.items() if not key.lower().endswith(("agems", "atms"))}
    if isinstance(value, list):
        return [without_ages(inner) for inner in value]
    return value


def _states(statistics: IdentityStatistics) -> View:
    return {claim_state.value: statistics.ledger.states[claim_state] for claim_state in _STATES}


def _claim(claim: ClaimView) -> View:
    return {
        "id": claim.id,
        "state": claim.state.value,
        "releasable": claim.state.is_broken,
        "ageMs": int(claim.age_s * 1000),
        "delivered": claim.delivered_age_s is not None,
        "deliveredAgeMs": _ms(claim.delivered_age_s),
        "boot": claim.boot,
        **_note(claim.note),
    }


def _note(note: ClaimNote | None) -> View:
    if note is None:
        return {}
    serves: View = {"caller": note.key}
    if note.prompt_id is not None:
        serves = {"sessionId": note.key, "promptId": note.prompt_id}
    return {
        "epoch": note.epoch,
        "kind": note.kind.value,
        "serves": serves,
        "broke": note.broke,
        "quarantined": note.quarantined,
    }


def _witness(bound: int | None, high: int | None) -> JsonValue:
    return None if bound is None or high is None else {"bound": bound, "highest": high}


def _reading(readings: ReadingsView) -> JsonValue:
    reading = readings.reading
    if reading is None:
        return None
    return {
        "ageMs": _ms(readings.age_s),
        "model": _counts(reading.model),
        "process": _counts(reading.process),
        "boot": reading.boot,
        "versions": [*sorted(reading.versions)],
    }


def _counts(counts: Counts | None) -> JsonValue:
    return None if counts is None else {"success": counts.success, "fail": counts.fail}


def _by_identity(governor: Governor) -> _Sessions:
    found: _Sessions = defaultdict(list)
    for session in governor.sessions.values():
        found[session.served.identity].append(session)
    return found


def _totals_of(sessions: list[Session]) -> View:
    return {
        "live": len(sessions),
        "pendingPrompts": sum(session.pending_count for session in sessions),
        "activePrompts": sum(session.has_active_prompt for session in sessions),
    }


def _queues(sessions: list[Session]) -> View:
    """Those with prompts, the longest first."""
    busy = [session for session in sessions if session.pending_count]
    longest = sorted(busy, key=lambda session: (-session.pending_count, session.number))[:QUEUES_SHOWN]
    return {
        "queuesTotal": len(busy),
        "queues": [
            {
                "sessionId": session.id,
                "pendingPrompts": session.pending_count,
                "active": session.has_active_prompt,
            }
            for session in longest
        ],
    }


def _waiting(waiting: WaitingView) -> JsonValue:
    return {
        ("sessionId" if waiting.is_session else "caller"): waiting.key,
        "waiting": waiting.count,
        "oldestAgeMs": _ms(waiting.oldest_s),
    }


def _facts(seen: IdentityView) -> JsonValue:
    facts = seen.statistics.facts
    if facts is None:
        return None
    return {
        "decoupled": facts.decoupled,
        "ensemble": facts.ensemble,
        "warmsUp": facts.warms_up,
        "instances": facts.instance_count,
        "maxBatchSize": facts.max_batch_size,
        "versions": [*facts.versions],
    }


def _totals(seen: IdentityView) -> View:
    totals, ledger = seen.statistics.totals, seen.statistics.ledger_totals
    return {
        "calls": totals.calls,
        "answered": totals.answered,
        "undelivered": totals.undelivered,
        "broken": totals.broken,
        "abandoned": totals.abandoned,
        "refused": totals.refused,
        "readingsFailed": totals.readings_failed,
        "provenQuiet": ledger.proven_quiet,
        "provenProcessEnded": ledger.proven_process_ended,
        "releasedUnproven": ledger.released_unproven,
        "baselineMissing": ledger.baseline_missing,
        "restarts": ledger.restarts,
        "reloads": ledger.reloads,
        "unknownFalls": ledger.unknown_falls,
        "contested": ledger.contested,
    }


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)
