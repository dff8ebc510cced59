"""A ledger for tests, with the time and the fewest words to tell it what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.core.counting import PLAIN, CountRule, Counts, Reading
from governor.core.evidence import OnFall, Verdict
from governor.core.ledger import Ledger

if TYPE_CHECKING:
    from governor.core.claims import ClaimEvent, ClaimState

SETTLE_S = 1.0


class Driver:
    """A ledger and the time, in seconds."""

    def __init__(
        self, slots: int = 4, *, rule: CountRule = PLAIN, provable: bool = True, on_fall: OnFall = OnFall.SEEN
    ) -> None:
        self.ledger = Ledger(slots=slots, rule=rule, provable=provable, settle_s=SETTLE_S, on_fall=on_fall)
        self.now_s = 0.0

    def send(self, boot: str | None = None) -> int:
        """A call that is delivered at once."""
        claim = self.ledger.open(self.now_s)
        self.ledger.dispatch(claim, boot)
        self.ledger.delivered(claim, self.now_s)
        return claim

    def broken(self, boot: str | None = None) -> int:
        """A call whose connection died after its delivery, a moment ago."""
        claim = self.send(boot)
        assert not self.ledger.lost(claim)
        self.now_s += 0.25
        return claim

    def answer(self, claim: int, least: int = 1, most: int = 1) -> None:
        self.ledger.answered(claim, self.now_s, least=least, most=most)

    def read(
        self,
        count: int,
        *,
        boot: str | None = None,
        process: int | None = None,
        versions: tuple[str, ...] = ("1",),
    ) -> Verdict:
        """A reading that shows `count` successes, asked for and taken at once."""
        return self.ledger.apply(
            self.ledger.begin_reading(self.now_s),
            Reading(
                Counts(count, 0),
                frozenset(versions),
                process=None if process is None else Counts(process, 0),
                boot=boot,
            ),
            self.now_s,
        )

    def state(self, claim: int) -> ClaimState:
        return self.ledger.claims[claim].state

    @property
    def bound(self) -> int | None:
        return self.ledger.snapshot().model_bound


def ended(verdict: Verdict) -> dict[int, ClaimEvent]:
    return dict(verdict.ended)
