"""The life of one claim, as a table.

This file holds every transition a claim can make and nothing else; `ledger.py` decides which event has happened.
A pair that is not in the table is impossible: asking for it raises and changes nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ClaimState(enum.Enum):
    """Where a claim stands (SPEC vocabulary).

    The first two are *open*: their connection lives and its answer is the proof. The next three are *broken*:
    the connection is dead and only evidence or an operator ends them.
    """

    RUNNING = "running"
    """Open; the caller waits."""
    TIMED_OUT = "timed_out"
    """Open; the caller already has another outcome (deadline, cancel, disconnect)."""
    RECONCILING = "reconciling"
    """Broken; a counter may still prove its end."""
    AWAITING_BASELINE = "awaiting_baseline"
    """Broken before any baseline was read."""
    QUARANTINED = "quarantined"
    """Broken; no counter can prove its end any more, only the end of its process or an operator."""
    ENDED = "ended"
    """The credit is free again."""

    @property
    def is_open(self) -> bool:
        """True while the claim's connection lives."""
        return self in _OPEN

    @property
    def is_broken(self) -> bool:
        """True once the connection died and the end is unknown."""
        return self in _BROKEN

    @property
    def waits_on_evidence(self) -> bool:
        """True while readings are taken for this claim's sake (E9)."""
        # Asked of every claim at each change: a search in a set of such members would be three calls.
        return self is ClaimState.RECONCILING or self is ClaimState.AWAITING_BASELINE


_OPEN = frozenset({ClaimState.RUNNING, ClaimState.TIMED_OUT})
_WAITING = frozenset({ClaimState.RECONCILING, ClaimState.AWAITING_BASELINE})
_BROKEN = _WAITING | {ClaimState.QUARANTINED}


class ClaimEvent(enum.Enum):
    """What can happen to a claim."""

    CALLER_LEFT = "caller_left"
    """The caller got its deadline, cancelled or disconnected; the call goes on (E2)."""
    ANSWERED = "answered"
    """A complete HTTP answer arrived, or the stream ended (E1)."""
    UNDELIVERED = "undelivered"
    """The request never left completely, so it never executes (E3)."""
    BROKE = "broke"
    """The connection died after delivery; a baseline exists (E5)."""
    BROKE_WITHOUT_BASELINE = "broke_without_baseline"
    """The same, but no baseline was read yet (E4)."""
    BASELINE_READ = "baseline_read"
    """The first reading of the epoch arrived (E4)."""
    QUIET = "quiet"
    """A counter showed that nothing of ours is left (E5)."""
    PROCESS_ENDED = "process_ended"
    """The process that ran it is gone (E6)."""
    UNPROVABLE = "unprovable"
    """The counter that could have proved it is gone, and the process may live on (E7, E8)."""
    RELEASED = "released"
    """An operator took responsibility (E11)."""


_S, _E = ClaimState, ClaimEvent

TRANSITIONS: dict[ClaimState, dict[ClaimEvent, ClaimState]] = {
    _S.RUNNING: {
        _E.CALLER_LEFT: _S.TIMED_OUT,
        _E.ANSWERED: _S.ENDED,
        _E.UNDELIVERED: _S.ENDED,
        _E.BROKE: _S.RECONCILING,
        _E.BROKE_WITHOUT_BASELINE: _S.AWAITING_BASELINE,
    },
    _S.TIMED_OUT: {
        _E.ANSWERED: _S.ENDED,
        _E.UNDELIVERED: _S.ENDED,
        _E.BROKE: _S.RECONCILING,
        _E.BROKE_WITHOUT_BASELINE: _S.AWAITING_BASELINE,
    },
    _S.RECONCILING: {
        _E.QUIET: _S.ENDED,
        _E.PROCESS_ENDED: _S.ENDED,
        _E.UNPROVABLE: _S.QUARANTINED,
        _E.RELEASED: _S.ENDED,
    },
    _S.AWAITING_BASELINE: {
        _E.BASELINE_READ: _S.RECONCILING,
        _E.PROCESS_ENDED: _S.ENDED,
        _E.UNPROVABLE: _S.QUARANTINED,
        _E.RELEASED: _S.ENDED,
    },
    _S.QUARANTINED: {
        _E.QUIET: _S.ENDED,
        _E.PROCESS_ENDED: _S.ENDED,
        _E.RELEASED: _S.ENDED,
    },
    _S.ENDED: {},
}
"""Every legal move. An open claim has no way out by QUIET, PROCESS_ENDED or RELEASED: that is E6."""


class IllegalTransitionError(Exception):
    """The ledger asked for a move the table does not have: a programming error, never a caller's."""


@dataclass(slots=True)
class Claim:
    """One inference's hold on a slot credit.

    Attributes:
        id: unique within its ledger.
        state: see `ClaimState`; changed by `move` alone.
        opened_at_s: when the credit was granted, in the driver's monotonic seconds.
        may_count: its request may have begun to leave, and no reading has shown that its process is gone: it may add
            to the counters yet.
        countable: its model's counter proved ends when it was dispatched (E12).
        boot: the process it went to, or a later one: its connection's stamp, or else the process of a reading that
            was asked for after its delivery; None when neither is known (E8).
        delivered_at_s: when that happened; None before.
        seen: a reading was asked for after its delivery, so no process later than that reading's has it (E8).
        resident: the same, and late enough for the call to have entered the loaded model; a load after that
            does not touch it (E7).
        replaced: a new life of the counter began while it was resident: the model's counter will never show its
            end (E7).
        crossed: a new load began since it was dispatched, so it may run in an older one than the model's counter
            shows (E7).
        gone: the process it went to has ended; once it is broken, it ends (E6).
    """

    id: int
    opened_at_s: float
    state: ClaimState = ClaimState.RUNNING
    may_count: bool = False
    countable: bool = True
    delivered_at_s: float | None = None
    boot: str | None = None
    seen: bool = False
    resident: bool = False
    replaced: bool = False
    crossed: bool = False
    gone: bool = False

    @property
    def delivered(self) -> bool:
        """Its request left completely: it may execute and may count (E3)."""
        return self.delivered_at_s is not None

    def delivered_before(self, moment_s: float) -> bool:
        """Was it? Then it cannot have gone to a later process than one that answers what was asked at that moment."""
        return self.delivered_at_s is not None and self.delivered_at_s < moment_s

    def move(self, event: ClaimEvent) -> ClaimState:
        """Makes the move the table names and returns the new state.

        Raises:
            IllegalTransitionError: the table has no such move; nothing has changed.
        """
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise IllegalTransitionError(f"claim {self.id}: {event.value} in state {self.state.value}")
        self.state = after
        return after
