"""What an operator wants to know of a claim and the ledger has no use for: whom it serves, and why it is stuck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from governor.core.evidence import Life

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from governor.core.claims import Claim
    from governor.core.evidence import Verdict
    from governor.errors import GovernorError
    from governor.identity.call import Call
    from governor.triton.outcomes import CallKind


@dataclass(slots=True)
class ClaimNote:
    """One claim's.

    Attributes:
        key: who asked: a session's id for a prompt, else the caller (`address 127.0.0.1`).
        prompt_id: the prompt that the call was made for; None for a call that is none's.
        kind: how the model was called.
        epoch: number of the epoch in which the call was dispatched; None before.
        broke: why its connection is gone; None while it lives.
        quarantined: why no counter can prove its end any more; None while one can.
    """

    key: str
    prompt_id: str | None
    kind: CallKind
    epoch: int | None = None
    broke: str | None = None
    quarantined: str | None = None


class ClaimNotes:
    """Notes on the claims that exist, by claim id."""

    def __init__(self) -> None:
        self._notes: dict[int, ClaimNote] = {}

    def open(self, claim_id: int, call: Call) -> None:
        """A call got its credit."""
        self._notes[claim_id] = ClaimNote(call.key, call.request.prompt_id, call.request.kind)

    def get(self, claim_id: int) -> ClaimNote | None:
        """What is known of a claim."""
        return self._notes.get(claim_id)

    def dispatched(self, claim_id: int, epoch: int) -> None:
        """Its request is about to leave."""
        self._notes[claim_id].epoch = epoch

    def broke(self, claim_id: int, error: GovernorError) -> None:
        """Its connection is gone."""
        self._notes[claim_id].broke = error.message

    def quarantined(self, verdict: Verdict, claims: Mapping[int, Claim]) -> None:
        """A reading left claims that no counter can prove any more."""
        for claim_id in verdict.quarantined:
            note, claim = self._notes.get(claim_id), claims.get(claim_id)
            if note is not None and claim is not None:
                note.quarantined = _why(claim, verdict.life)

    def close(self, claim_id: int) -> None:
        """A claim is none any more."""
        self._notes.pop(claim_id, None)

    def keep(self, claims: Collection[int]) -> None:
        """Forgets claims that are none any more. Costs nothing while none has ended."""
        if len(self._notes) > len(claims):
            self._notes = {claim_id: note for claim_id, note in self._notes.items() if claim_id in claims}


def _why(claim: Claim, life: Life) -> str:
    """In words that docs/runbook.md goes on from."""
    if life is Life.UNKNOWN_FALL:
        return "a counter fell, and without boot identity nobody can say whether the call ended with its process (E8)"
    if not claim.countable:
        return "the model is decoupled: its counter proves no end (E12)"
    return "the model was reloaded while the call executed, and no process counter shows its end (E7)"
