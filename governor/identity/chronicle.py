"""What an operator can learn of an identity's past: how long things took, and one log event for each change.

It decides nothing. The hot path only adds numbers; whatever makes text happens when a connection broke, a reading
failed, or a verdict changed something.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from governor.core.claims import ClaimEvent
from governor.core.evidence import Life
from governor.histogram import Histogram
from governor.triton.failures import of_question

if TYPE_CHECKING:
    from collections.abc import Container

    from governor.core.claims import Claim
    from governor.core.evidence import Verdict
    from governor.core.ledger import Ledger
    from governor.errors import GovernorError
    from governor.identity.call import Call

_log = structlog.get_logger(__name__)
NEW_LIVES: Final = frozenset({Life.RESTART, Life.RELOAD, Life.UNKNOWN_FALL})
_REQUEST_ID_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class _Break:
    """A broken claim: since when, and whose it was."""

    at_s: float
    whose: dict[str, str]


class Chronicle:
    """The past of one identity.

    Args:
        name: the identity, for the log.

    Attributes:
        wait_s: from asking for a slot credit to getting it, of the calls that got one.
        service_s: from getting a credit to the complete answer, of the calls that were answered.
        proof_lag_s: from the break of a call to the proof of its end, by proof.
        reading_error: why the last reading failed; None when it did not.
    """

    def __init__(self, name: str) -> None:
        self.wait_s = Histogram()
        self.service_s = Histogram()
        self.proof_lag_s = {ClaimEvent.QUIET: Histogram(), ClaimEvent.PROCESS_ENDED: Histogram()}
        self.reading_error: str | None = None
        self._failures_told: set[str] = set()
        self._name = name
        self._breaks: dict[int, _Break] = {}
        self._contests_told = 0
        self._contested = False

    def broke(self, claim: Claim, call: Call, error: GovernorError, now_s: float, living: Container[int]) -> None:
        """A call's connection died after its delivery.

        Args:
            claim: its claim.
            call: the call.
            error: what happened to the connection.
            now_s: now.
            living: ids of all claims; what is remembered of others, which an operator released, is forgotten.
        """
        self._breaks = {claim_id: kept for claim_id, kept in self._breaks.items() if claim_id in living}
        self._breaks[claim.id] = _Break(now_s, _whose(call))
        _log.warning(
            "call_broken",
            identity=self._name,
            claim=claim.id,
            state=claim.state.value,
            error=error.message,
            **self._breaks[claim.id].whose,
        )

    def failed(self, error: GovernorError) -> None:
        """A reading failed; each kind of failure is said once until a reading is had again.

        Not each time that the words differ: an endpoint without its server may refuse now and hang up then.
        """
        self.reading_error = of_question(error.message)
        if error.code not in self._failures_told:
            self._failures_told.add(error.code)
            _log.warning("reading_failed", identity=self._name, error=self.reading_error, code=error.code)

    def judged(self, verdict: Verdict, ledger: Ledger, now_s: float) -> None:
        """A reading was applied."""
        if self.reading_error is not None:
            self.reading_error = None
            self._failures_told.clear()
            _log.info("readings_resumed", identity=self._name)
        if verdict.life in NEW_LIVES:
            now = ledger.snapshot()
            _log.warning("epoch_began", identity=self._name, cause=verdict.life.value, epoch=now.epoch, boot=now.boot)
        for claim_id, proof in verdict.ended:
            self._ended(claim_id, proof, now_s)
        for claim_id in verdict.quarantined:
            whose = self._breaks[claim_id].whose if claim_id in self._breaks else {}
            _log.warning("claim_quarantined", identity=self._name, claim=claim_id, life=verdict.life.value, **whose)
        self._tell_contested(ledger)

    def _ended(self, claim_id: int, proof: ClaimEvent, now_s: float) -> None:
        broken = self._breaks.pop(claim_id, None)
        if broken is None:
            _log.info("claim_ended", identity=self._name, claim=claim_id, proof=proof.value)
            return
        lag_s = now_s - broken.at_s
        self.proof_lag_s[proof].observe(lag_s)
        _log.info(
            "claim_ended",
            identity=self._name,
            claim=claim_id,
            proof=proof.value,
            lag_s=round(lag_s, 3),
            **broken.whose,
        )

    def _tell_contested(self, ledger: Ledger) -> None:
        if ledger.totals.contested > self._contests_told:
            self._contests_told = ledger.totals.contested
            self._contested = True
            _log.error("identity_contested", identity=self._name)
        if self._contested and not ledger.contested:
            self._contested = False
            _log.info("identity_uncontested", identity=self._name)


def _whose(call: Call) -> dict[str, str]:
    """A prompt's call belongs to a session, any other to an address, which may have named its request."""
    if call.request.prompt_id is not None:
        return {"session": call.key, "prompt": call.request.prompt_id}
    headers = call.request.wire.headers
    named = next((value for name, value in headers if name.lower() == "x-request-id"), None)
    return {"caller": call.key} | ({"request": named[:_REQUEST_ID_MAX]} if named is not None else {})
