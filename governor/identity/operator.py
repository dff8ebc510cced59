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
from governor.errors import (
    BaselineUnavailableError,
    ClaimOpenError,
    EpochChangedError,
    GovernorError,
    UnknownClaimError,
)

if TYPE_CHECKING:
    from governor.core.counting import Reading
    from governor.core.evidence import Ticket, Verdict
    from governor.core.ledger import Ledger
    from governor.identity.notes import ClaimNote, ClaimNotes
    from governor.recent import Observer

_log = structlog.get_logger(__name__)
_TRIES_MAX = 3
"""A reading that another one overtook tells nothing; it is asked for again so often."""
_AGE_CHECKS = 20
"""A claim is released at most one part in so many later than its maximum age."""


class Operated(Protocol):
    """What is needed of the identity."""

    reading_turn: trio.Lock
    notes: ClaimNotes
    observe: Observer

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
        note: whom it served, and why it was stuck.
    """

    id: int
    state: ClaimState
    age_s: float
    note: ClaimNote | None = None


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

    async def restart(self, expected_epoch: int | None = None) -> RestartReport:
        """Begins a new epoch at a fresh baseline and releases every broken claim, as a restart of the governor would.

        Args:
            expected_epoch: the epoch that the operator has seen; nothing is done in another one.

        Raises:
            EpochChangedError: see `expected_epoch`.
            BaselineUnavailableError: there is no fresh baseline to be had, so nothing was done; says why.
        """
        for _ in range(_TRIES_MAX):
            async with self._identity.reading_turn:
                self.check_epoch(expected_epoch)
                ticket = self._identity.begin_reading()
                try:
                    reading = await self._identity.read()
                except GovernorError as error:
                    raise BaselineUnavailableError(
                        f"A forced restart of {self._name} needs a fresh baseline, and there is none: {error.message}"
                    ) from error
                self.check_epoch(expected_epoch)
                before = self._broken()
                verdict, released = self._ledger.restart(ticket, reading, trio.current_time())
                if verdict.life is Life.STALE:
                    continue
                forgotten = tuple(before[claim_id] for claim_id in released)
                _log.warning("forced_restart", identity=self._name, forgotten=list(released))
                self._identity.observe("forced_restart", self._name, claims=[*released], epoch=self._ledger.epoch)
                report = RestartReport(
                    epoch=self._ledger.epoch,
                    proven=len(verdict.ended),
                    forgotten=forgotten,
                    open_claims=len(self._ledger.claims),
                )
                # Only now: it hands the credits to whoever waits, whose claims are none that stayed.
                self._identity.report(verdict)
                return report
        raise BaselineUnavailableError(f"{self._name} changes faster than it can be read; try again")

    def check_epoch(self, expected_epoch: int | None) -> None:
        """Raises EpochChangedError unless this is the epoch that the operator has seen; None stands for any."""
        if expected_epoch is not None and expected_epoch != self._ledger.epoch:
            raise EpochChangedError(self._name, expected_epoch, self._ledger.epoch)

    def release(self, claim_id: int, *, reason: str, expected_epoch: int | None = None) -> ForgottenClaim:
        """Releases one broken claim.

        Raises:
            EpochChangedError: this is not the epoch that the operator has seen.
            UnknownClaimError: there is no such claim.
            ClaimOpenError: its connection lives.
        """
        self.check_epoch(expected_epoch)
        claim = self._ledger.claims.get(claim_id)
        if claim is None:
            raise UnknownClaimError(self._name, claim_id)
        if claim.state.is_open:
            raise ClaimOpenError(self._name, claim_id, claim.state.value)
        forgotten = self._broken()[claim_id]
        self._ledger.release(claim_id, trio.current_time())
        _log.warning("claim_released", identity=self._name, claim=claim_id, state=forgotten.state.value, reason=reason)
        self._identity.observe("claim_released", self._name, claims=[claim_id], reason=reason)
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
            claim.id: ForgottenClaim(
                claim.id, claim.state, now_s - claim.opened_at_s, self._identity.notes.get(claim.id)
            )
            for claim in self._ledger.claims.values()
            if claim.state.is_broken
        }
