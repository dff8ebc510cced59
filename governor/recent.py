"""What happened lately, for an operator who looks: a bounded ring of small facts (A7).

The log has all of it and for longer. A ring entry is made of plain JSON values and holds no text of a prompt.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from governor.core.claims import ClaimEvent
from governor.core.evidence import Life

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.core.evidence import Verdict
    from governor.errors import JsonValue

EVENTS_MAX: Final = 256
"""Events that are kept."""
_MERGE_MS: Final = 1_000
_MERGED: Final = frozenset({"call_refused", "prompt_refused", "call_broken"})


class Observer(Protocol):
    """Is told what happens to an identity."""

    def __call__(self, kind: str, identity: str | None = None, **data: JsonValue) -> None:
        """Takes note. Synchronous, and never fails."""


def unobserved(kind: str, identity: str | None = None, **data: JsonValue) -> None:
    """Nobody wants to know."""


@dataclass(slots=True)
class RecentEvent:
    """One entry.

    Attributes:
        id: counts up from 1 while the process lives.
        at_ms: when, in Unix milliseconds; of the first one where several are told as one.
        last_ms: when the last one of them happened.
        kind: what, such as `claims_ended`.
        identity: to which identity (`backend/model`); None for none in particular.
        data: further facts.
        count: how many of the same happened within a second of one another.
    """

    id: int
    at_ms: int
    last_ms: int
    kind: str
    identity: str | None
    data: dict[str, JsonValue]
    count: int = 1


class RecentEvents:
    """The ring.

    Args:
        now_ms: wall-clock time in Unix milliseconds.

    Attributes:
        last_id: id of the newest event; 0 before there is one.
        changes: grows with everything that is noted, merged or not.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._events: deque[RecentEvent] = deque(maxlen=EVENTS_MAX)
        self.last_id = 0
        self.changes = 0

    def note(self, kind: str, identity: str | None = None, **data: JsonValue) -> None:
        """Something happened. What comes in floods is told once with its number, so that it drives nothing else out."""
        now_ms = self._now_ms()
        self.changes += 1
        last = self._events[-1] if self._events else None
        if last is not None and kind in _MERGED and self._same(last, kind, identity, data, now_ms):
            last.count += 1
            last.last_ms = now_ms
            return
        self.last_id += 1
        self._events.append(RecentEvent(self.last_id, now_ms, now_ms, kind, identity, data))

    def after(self, last_id: int) -> list[RecentEvent]:
        """The kept events that are newer than an id, the oldest first."""
        return [event for event in self._events if event.id > last_id]

    @staticmethod
    def _same(last: RecentEvent, kind: str, identity: str | None, data: dict[str, JsonValue], now_ms: int) -> bool:
        fresh = now_ms - last.last_ms < _MERGE_MS
        return fresh and last.kind == kind and last.identity == identity and last.data == data


class VerdictTeller:
    """Tells an observer what readings changed.

    Args:
        observe: the observer.
        identity: whose readings they are.
    """

    def __init__(self, observe: Observer, identity: str) -> None:
        self._observe = observe
        self._identity = identity
        self._contested = False

    def tell(self, verdict: Verdict, epoch: int, boot: str | None) -> None:
        """A reading was applied; nothing is told where it changed nothing.

        Args:
            verdict: what it did.
            epoch: the epoch after it.
            boot: identity of the backend's process after it, where known.
        """
        if verdict.life in {Life.RESTART, Life.RELOAD, Life.UNKNOWN_FALL}:
            self._observe("epoch_began", self._identity, cause=verdict.life.value, epoch=epoch, boot=boot)
        for proof in (ClaimEvent.QUIET, ClaimEvent.PROCESS_ENDED):
            claims: list[JsonValue] = [claim_id for claim_id, by in verdict.ended if by is proof]
            if claims:
                self._observe("claims_proven", self._identity, proof=proof.value, claims=claims)
        if verdict.quarantined:
            life = verdict.life.value
            self._observe("claims_quarantined", self._identity, claims=[*verdict.quarantined], life=life)
        if verdict.contested and not self._contested:
            self._observe("identity_contested", self._identity)
        self._contested = verdict.contested
