"""An identity as an operator sees it: every claim with its age and reason, the queue, the last readings (A7)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.core.claims import Claim, ClaimState
    from governor.core.counting import Reading
    from governor.identity.call import Call
    from governor.identity.identity import Identity
    from governor.identity.notes import ClaimNote
    from governor.identity.values import IdentityStatistics


@dataclass(frozen=True, slots=True)
class ClaimView:
    """One claim. Times in seconds.

    Attributes:
        id: unique among the identity's claims while the governor's process lives.
        state: see `ClaimState`.
        age_s: since it got its credit.
        delivered_age_s: since its request had left completely; None before.
        boot: the backend's process that it went to, where known.
        note: whom it serves, and why it is stuck.
    """

    id: int
    state: ClaimState
    age_s: float
    delivered_age_s: float | None
    boot: str | None
    note: ClaimNote | None


@dataclass(frozen=True, slots=True)
class ReadingsView:
    """The last readings. Ages in seconds.

    Attributes:
        reading: the last one; None so far.
        age_s: since it came.
        error_age_s: since one last could not be had, or made no sense; None so far.
        waiting_s: since one is being waited for; None while none is.
    """

    reading: Reading | None
    age_s: float | None
    error_age_s: float | None
    waiting_s: float | None


@dataclass(frozen=True, slots=True)
class WaitingView:
    """The calls of one key that wait for a credit.

    Attributes:
        key: a session's id, or the caller.
        is_session: it is a session's.
        count: how many.
        oldest_s: for how many seconds the first of them has waited.
    """

    key: str
    is_session: bool
    count: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class IdentityView:
    """The whole.

    Attributes:
        statistics: numbers and states.
        claims: the oldest ones, as many as were asked for.
        readings: see `ReadingsView`.
        max_waiting: calls that may wait for a credit.
        waiting_keys: sessions and callers that wait for one.
        waiting: those with the most waiting calls, as many as were asked for.
        held: credits are not handed out, because an operator's restart waits for the running calls.
    """

    statistics: IdentityStatistics
    claims: tuple[ClaimView, ...]
    readings: ReadingsView
    max_waiting: int
    waiting_keys: int
    waiting: tuple[WaitingView, ...]
    held: bool


def inspect(identity: Identity, *, claims_max: int, waiting_max: int) -> IdentityView:
    """A copy of what is seen now, with the `claims_max` oldest claims and the `waiting_max` longest queues."""
    now_s = trio.current_time()
    return IdentityView(
        statistics=identity.statistics(),
        claims=tuple(_claim(claim, identity, now_s) for claim in islice(identity.claims.values(), claims_max)),
        readings=_readings(identity, now_s),
        max_waiting=identity.settings.max_waiting,
        waiting_keys=identity.queue.key_count,
        waiting=tuple(_waiting(*queue, now_s) for queue in identity.queue.longest(waiting_max)),
        held=identity.held,
    )


def _claim(claim: Claim, identity: Identity, now_s: float) -> ClaimView:
    return ClaimView(
        id=claim.id,
        state=claim.state,
        age_s=now_s - claim.opened_at_s,
        delivered_age_s=_since(claim.delivered_at_s, now_s),
        boot=claim.boot,
        note=identity.notes.get(claim.id),
    )


def _waiting(key: str, calls: Sequence[Call], now_s: float) -> WaitingView:
    first = calls[0]
    return WaitingView(key, first.request.prompt_id is not None, len(calls), now_s - first.submitted_at_s)


def _readings(identity: Identity, now_s: float) -> ReadingsView:
    watch = identity.watch
    return ReadingsView(
        reading=watch.reading,
        age_s=_since(watch.reading_at_s, now_s),
        error_age_s=_since(watch.failed_at_s, now_s),
        waiting_s=_since(watch.asked_at_s, now_s),
    )


def _since(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else now_s - at_s
