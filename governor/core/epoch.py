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
        if reading.versions != self.versions:
            # A version that comes brings its own count, one that goes takes it away while the others go on: the sum
            # starts anew, and a fall says nothing about the process.
            return Life.RELOAD
        fell = self.model.fell(rule.measure(reading.model)) or any(
            new < old for old, new in zip(self.marks, reading.life, strict=False)
        )
        if not fell:
            return Life.SAME
        same_process = self.boot is not None and self.boot == reading.boot
        return Life.RELOAD if same_process or self._process_went_on(reading, rule) else Life.UNKNOWN_FALL

    def _process_went_on(self, reading: Reading, rule: CountRule) -> bool:
        """E7: the process's own counter survives a reload and does not survive a restart."""
        if self.process is None or reading.process is None:
            return False
        return not self.process.fell(rule.measure(reading.process))

    def keep_highest(self, reading: Reading, rule: CountRule) -> None:
        """E6: a fall is told against the highest reading, also against one that proves nothing."""
        self.marks = tuple(map(max, zip(self.marks, reading.life, strict=False))) if self.marks else reading.life
        if self.model is not None:
            self.model.high = max(self.model.high, rule.measure(reading.model))
        if self.process is not None and reading.process is not None:
            self.process.high = max(self.process.high, rule.measure(reading.process))

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
        if self.process is None or self.process.fell(value) or self.process.contested(value):
            self.process = Witness(bound=value + by_process, high=value)
        else:
            self.process.observe(value, by_process)


@dataclass(slots=True)
class Unsettled:
    """What was let go of and may not be in the counter yet: a count lags its answer by up to the settle time.

    A reading asked for at some moment shows everything that had settled by then, and perhaps nothing that was let go
    of since, however long the reading takes. So a ticket holds the one number and `since` is the difference.

    Attributes:
        settle_s: the settle time in seconds.
        doubtful: a bound may be higher than the counter can get, because an answer may not have been counted or a
            baseline may contain it already; an exact reading ends the doubt.
    """

    settle_s: float
    doubtful: bool = False
    _let_go: int = 0
    _pending: int = 0
    _recent: deque[tuple[float, int, str | None]] = field(default_factory=deque)

    def add(self, now_s: float, most: int, boot: str | None) -> None:
        """A call that adds up to `most` ended in the process `boot` just now or a moment ago."""
        self._let_go += most
        self._pending += most
        self._recent.append((now_s, most, boot))
        self._settle(now_s)

    def reweigh(self, factor: int) -> None:
        """The counter is measured anew, and a call adds up to `factor` times what it did."""
        self._let_go += self._pending * (factor - 1)
        self._pending *= factor
        self._recent = deque((let_go_at_s, most * factor, boot) for let_go_at_s, most, boot in self._recent)

    def process_ended(self, boot: str) -> None:
        """What ended in the process `boot` and was not counted by now never will be (E6)."""
        never = sum(most for _, most, of_boot in self._recent if of_boot == boot)
        self._let_go -= never
        self._pending -= never
        self._recent = deque(entry for entry in self._recent if entry[2] != boot)

    def settled(self, now_s: float) -> int:
        """How much of all that was ever let go of is in what a reading asked for now shows."""
        self._settle(now_s)
        return self._let_go - self._pending

    def since(self, ticket: Ticket) -> int:
        """The most that may be added after what the ticket's reading shows, by what was let go of."""
        return self._let_go - ticket.settled

    def all_settled(self, now_s: float) -> bool:
        """A reading asked for now would show everything."""
        self.settled(now_s)
        return not self._pending

    def _settle(self, now_s: float) -> None:
        while self._recent and self._recent[0][0] <= now_s - self.settle_s:
            self._pending -= self._recent.popleft()[1]
