"""The operator's exits of one identity: explicit, logged, and counted as released without proof (E11).

Nothing here is taken by the governor on its own, except the maximum age where the operator has set one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from governor.core.claims import ClaimState
from governor.core.evidence import Life
from governor.errors import BackendUnavailableError, ClaimOpenError, GovernorError, UnknownClaimError

if TYPE_CHECKING:
    from governor.core.counting import Reading
    from governor.core.evidence import Ticket, Verdict
    from governor.core.ledger import Ledger

_log = structlog.get_logger(__name__)
_TRIES_MAX = 3
"""A reading that another one overtook tells nothing; it is asked for again so often."""
_AGE_CHECKS = 20
"""A claim is released at most one part in so many later than its maximum age."""


class Operated(Protocol):
    """What is needed of the identity."""

    reading_turn: trio.Lock

    def begin_reading(self) -> Ticket:
        """What is true before a reading is asked for."""

    async def read(self) -> Reading:
        """Asks the backend. Raises GovernorError when there is no reading to be had."""

    def report(self, verdict: Verdict) -> None:
        """Does and says what follows from a verdict."""

    def settle(self) -> None:
        """Hands free credits to waiting calls."""


@dataclass(frozen=True, slots=True)
class ForgottenClaim:
    """A claim that was released without proof.

    Attributes:
        id: the claim.
        state: what it was.
        age_s: seconds since it got its credit.
    """

    id: int
    state: ClaimState
    age_s: float


@dataclass(frozen=True, slots=True)
class RestartReport:
    """What a forced restart did.

    Attributes:
        epoch: number of the epoch that it began.
        proven: claims that the fresh reading proved ended.
        forgotten: claims that were released without proof.
        open_claims: claims that stay, because their connection lives.
    """

    epoch: int
    proven: int
    forgotten: tuple[ForgottenClaim, ...]
    open_claims: int


class OperatorExits:
    """The exits of one identity.

    Args:
        name: the identity, for messages.
        identity: the identity.
        ledger: its ledger.
    """

    def __init__(self, name: str, identity: Operated, ledger: Ledger) -> None:
        self._name = name
        self._identity = identity
        self._ledger = ledger

    async def restart(self) -> RestartReport:
        """Begins a new epoch at a fresh baseline and releases every broken claim, as a restart of the governor would.

        Raises:
            BackendUnavailableError: there is no fresh baseline to be had, so nothing was done; says why.
        """
        for _ in range(_TRIES_MAX):
            async with self._identity.reading_turn:
                ticket = self._identity.begin_reading()
                try:
                    reading = await self._identity.read()
                except GovernorError as error:
                    raise BackendUnavailableError(
                        f"A forced restart of {self._name} needs a fresh baseline, and there is none: {error.message}"
                    ) from error
                before = self._broken()
                verdict, released = self._ledger.restart(ticket, reading)
                if verdict.life is Life.STALE:
                    continue
                forgotten = tuple(before[claim_id] for claim_id in released)
                _log.warning("forced_restart", identity=self._name, forgotten=list(released))
                self._identity.report(verdict)
                return RestartReport(
                    epoch=self._ledger.snapshot().epoch,
                    proven=len(verdict.ended),
                    forgotten=forgotten,
                    open_claims=len(self._ledger.claims),
                )
        raise BackendUnavailableError(f"{self._name} changes faster than it can be read; try again")

    def release(self, claim_id: int, *, reason: str) -> ForgottenClaim:
        """Releases one broken claim.

        Raises:
            UnknownClaimError: there is no such claim.
            ClaimOpenError: its connection lives.
        """
        claim = self._ledger.claims.get(claim_id)
        if claim is None:
            raise UnknownClaimError(self._name, claim_id)
        if claim.state.is_open:
            raise ClaimOpenError(self._name, claim_id, claim.state.value)
        forgotten = self._broken()[claim_id]
        self._ledger.release(claim_id)
        _log.warning("claim_released", identity=self._name, claim=claim_id, state=forgotten.state.value, reason=reason)
        self._identity.settle()
        return forgotten

    async def release_aged(self, max_age_s: float) -> None:
        """Runs for ever: releases each quarantined claim that reaches the age the operator has set."""
        while True:
            await trio.sleep(max_age_s / _AGE_CHECKS)
            for claim in list(self._broken().values()):
                if claim.state is ClaimState.QUARANTINED and claim.age_s >= max_age_s:
                    self.release(claim.id, reason=f"older than {max_age_s:g} s")

    def _broken(self) -> dict[int, ForgottenClaim]:
        now_s = trio.current_time()
        return {
            claim.id: ForgottenClaim(claim.id, claim.state, now_s - claim.opened_at_s)
            for claim in self._ledger.claims.values()
            if claim.state.is_broken
        }
