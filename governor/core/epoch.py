"""An epoch: the lifetime of one counter (SPEC vocabulary), and how a reading relates to it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from governor.core.evidence import Life
from governor.core.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        elsewhere: the most by which the process's counter was above the model's: what other loads counted.
    """

    number: int = 0
    boot: str | None = None
    versions: frozenset[str] = frozenset()
    marks: tuple[int, ...] = ()
    model: Witness | None = None
    process: Witness | None = None
    elsewhere: int | None = None

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

    def observe(self, reading: Reading, rule: CountRule, *, by_model: int, by_process: int, crossed: bool) -> None:
        """Takes over a reading of this life.

        Args:
            reading: the reading.
            rule: how ends are counted.
            by_model: the most that may still be added to the model's counter after it.
            by_process: the same for the process's counter.
            crossed: a claim may run in an older load, so that other loads count for us. Otherwise what they count is
                the warm-up of a load that does not serve yet or never will, and the process's bound starts anew.
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
        by_all_loads = rule.measure(reading.process)
        elsewhere = by_all_loads - value
        foreign = self.elsewhere is not None and elsewhere > self.elsewhere
        self.elsewhere = elsewhere if self.elsewhere is None else max(elsewhere, self.elsewhere)
        if self.process is None or self.process.fell(by_all_loads) or (foreign and not crossed):
            self.process = Witness(bound=by_all_loads + by_process, high=by_all_loads)
        else:
            self.process.observe(by_all_loads, by_process)


@dataclass(slots=True)
class Unsettled:
    """What was let go of and may not be in the counter yet: a count lags its answer by up to the settle time.

    A reading asked for at some moment shows everything that had settled by then, and perhaps nothing that was let go
    of since, however long the reading takes. So a ticket holds the one number and `since` is the difference, for each
    process by itself, because what ended in one never comes to the counter of another.

    Attributes:
        settle_s: the settle time in seconds.
        doubtful: a bound may be higher than the counter can get, because an answer may not have been counted or a
            baseline may contain it already; an exact reading ends the doubt.
    """

    settle_s: float
    doubtful: bool = False
    _let_go: dict[str | None, int] = field(default_factory=dict)
    _recent: deque[tuple[float, int, str | None]] = field(default_factory=deque)

    def add(self, now_s: float, most: int, boot: str | None) -> None:
        """A call that adds up to `most` ended in the process `boot` just now or a moment ago."""
        self._let_go[boot] = self._let_go.get(boot, 0) + most
        self._recent.append((now_s, most, boot))
        self._settle(now_s)

    def reweigh(self, factor: int) -> None:
        """The counter is measured anew, and a call adds up to `factor` times what it did."""
        for _, most, boot in self._recent:
            self._let_go[boot] += most * (factor - 1)
        self._recent = deque((let_go_at_s, most * factor, boot) for let_go_at_s, most, boot in self._recent)

    def process_ended(self, boot: str) -> None:
        """What ended in the process `boot` is in no counter of a later one, however lately that was (E6)."""
        self._let_go.pop(boot, None)
        self._recent = deque(entry for entry in self._recent if entry[2] != boot)

    def settled(self, now_s: float) -> Mapping[str | None, int]:
        """How much of all that was ever let go of in each process is in what a reading asked for now shows."""
        self._settle(now_s)
        settled = dict(self._let_go)
        for _, most, boot in self._recent:
            settled[boot] -= most
        return settled

    def since(self, ticket: Ticket) -> int:
        """The most that may be added after what the ticket's reading shows, by what was let go of."""
        return sum(most - ticket.settled.get(boot, 0) for boot, most in self._let_go.items())

    def all_settled(self, now_s: float) -> bool:
        """A reading asked for now would show everything."""
        self._settle(now_s)
        return not self._recent

    def _settle(self, now_s: float) -> None:
        while self._recent and self._recent[0][0] <= now_s - self.settle_s:
            self._recent.popleft()
