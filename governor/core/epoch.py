"""An epoch: the lifetime of one counter (SPEC vocabulary), and how a reading relates to it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from governor.core.evidence import Life
from governor.core.witness import Witness

if TYPE_CHECKING:
    from governor.core.counting import CountRule, Reading
    from governor.core.evidence import Ticket


@dataclass(slots=True)
class Epoch:
    """One life of an identity's counters.

    Attributes:
        number: 0 before the first baseline, then counting up.
        boot: the process's identity, where known (E8).
        versions: the versions whose counts are summed.
        marks: the highest further numbers seen (`Reading.life`).
        model: the witness of model scope; None before the baseline.
        process: the witness of process scope; None where metrics are not read.
    """

    number: int = 0
    boot: str | None = None
    versions: frozenset[str] = frozenset()
    marks: tuple[int, ...] = ()
    model: Witness | None = None
    process: Witness | None = None

    def life_of(self, reading: Reading, rule: CountRule) -> Life:
        """Tells a restart from a reload from neither (E6, E7, E8), against the highest reading of this epoch."""
        if self.boot is not None and reading.boot is not None and self.boot != reading.boot:
            return Life.RESTART
        if self.model is None:
            return Life.BASELINE
        fell = self.model.fell(rule.measure(reading.model)) or any(
            new < old for old, new in zip(self.marks, reading.life, strict=False)
        )
        if not fell:
            # A version that comes brings its own count, one that goes takes it away: the sum starts anew.
            return Life.SAME if reading.versions == self.versions else Life.RELOAD
        same_process = self.boot is not None and self.boot == reading.boot
        return Life.RELOAD if same_process or self._process_went_on(reading, rule) else Life.UNKNOWN_FALL

    def _process_went_on(self, reading: Reading, rule: CountRule) -> bool:
        """E7: the process's own counter survives a reload and does not survive a restart."""
        if self.process is None or reading.process is None or self.process.high == 0:
            return False
        return not self.process.fell(rule.measure(reading.process))

    def observe(self, reading: Reading, rule: CountRule, *, by_model: int, by_process: int) -> None:
        """Takes over a reading of this life.

        Args:
            reading: the reading.
            rule: how ends are counted.
            by_model: the most that may still be added to the model's counter after it.
            by_process: the same for the process's counter.
        """
        self.boot = reading.boot if reading.boot is not None else self.boot
        self.versions = reading.versions
        self.marks = tuple(map(max, zip(self.marks, reading.life, strict=False))) if self.marks else reading.life
        value = rule.measure(reading.model)
        if self.model is None:
            self.model = Witness(bound=value + by_model, high=value)
        else:
            self.model.observe(value, by_model)
        if reading.process is None:
            return
        value = rule.measure(reading.process)
        if self.process is None or self.process.fell(value):
            self.process = Witness(bound=value + by_process, high=value)
        else:
            self.process.observe(value, by_process)


@dataclass(slots=True)
class RecentAnswers:
    """Answers that the counter may not show yet: it lags them by up to the settle time.

    Attributes:
        settle_s: the settle time in seconds.
        doubtful: a bound may be higher than the counter can get, because an answer may not have been counted
            or a baseline may contain it already; a reading without unsettled answers ends the doubt.
    """

    settle_s: float
    doubtful: bool = False
    _answers: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now_s: float, most: int) -> None:
        """A call that adds up to `most` was answered now."""
        self._answers.append((now_s, most))
        # A reading under way may have been begun a while ago; what is twice as old cannot matter to any.
        while self._answers[0][0] < now_s - 2 * self.settle_s:
            self._answers.popleft()

    def unsettled(self, ticket: Ticket) -> int:
        """The most that answers may add after a reading begun at the ticket's time."""
        settled_before_s = ticket.begun_at_s - self.settle_s
        return sum(most for answered_at_s, most in self._answers if answered_at_s > settled_before_s)

    def all_settled(self, now_s: float) -> bool:
        """A reading begun now would show every answer."""
        return not self._answers or self._answers[-1][0] <= now_s - self.settle_s
