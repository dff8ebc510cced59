"""The truth about a backend: what executes, what was counted, and where a reading would look.

One process at a time answers at the URL. It has loads of the model, one per version; an older load that still
executes something runs on beside its successor, where the statistics no longer show it (E7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NEW, SENT, FLIGHT, RUNS, ENDED, COUNTED = "new", "sent", "flight", "runs", "ended", "counted"
"""Where a call's work stands: not begun; leaving; in the server's hands but in no load yet; executing; over and not
(wholly) counted; over and counted."""
NEVER, DIED, DROPPED = "never", "died", "dropped"
"""Nothing of it will ever be counted: over, or not delivered; died with its process; lost by the server."""

UP, DEAD, CLOSED, ANSWERED = "up", "dead", "closed", "answered"
"""A call's connection: alive; dead and nobody noticed; known to be dead; the answer arrived."""

COUNTED_EARLY = -1
"""In place of what is due: a call that executes and was counted already."""

OLD = ""
"""In place of a version: a load that the statistics no longer show."""


@dataclass(slots=True)
class Call:
    """One call and the truth about it.

    Attributes:
        stage: see above.
        link: see above; "" before the call was sent.
        load: the version whose current load executes it, or OLD.
        due: what its end has yet to add to the counters.
        least, most: what its answer says it counts.
    """

    stage: str = NEW
    link: str = ""
    load: str = OLD
    due: int = 0
    least: int = 0
    most: int = 0

    @property
    def executes(self) -> bool:
        """Its work is under way or may still begin."""
        return self.stage in (FLIGHT, RUNS)


class Outcome(NamedTuple):
    """How a call can end: what it adds to the counter, and what its answer can honestly say it adds (E5)."""

    adds: int
    least: int
    most: int


OUTCOMES = {
    "ok": Outcome(1, 1, 1),
    "error, counted": Outcome(1, 0, 1),
    "error, uncounted": Outcome(0, 0, 1),
    "rejected": Outcome(0, 0, 0),
    # an ensemble, by 2S + F
    "ensemble ok": Outcome(2, 2, 2),
    "ensemble failed, counted twice": Outcome(2, 0, 2),
    "ensemble failed, counted once": Outcome(1, 0, 2),
    "ensemble failed, uncounted": Outcome(0, 0, 2),
}


@dataclass(slots=True)
class Backend:
    """The processes and loads.

    Attributes:
        counts: what the statistics show, by version.
        series: what the process's metrics show.
        process: number of the process.
        warm_up: what a load that begins now counts before its first call.
        warms_up: the same of the last that began.
        loading: a load has warmed up and does not serve yet, so its predecessor still does.
        life: number of process, load and set of versions together; every change of one of them is a new life.
        calls: every call there will be.
    """

    counts: dict[str, int]
    calls: list[Call]
    series: int = 0
    process: int = 1
    life: int = 1
    warm_up: int = 0
    warms_up: int = 0
    loading: bool = False

    @property
    def boot(self) -> str:
        """The identity of the process, where it can be had."""
        return f"B{self.process}"

    def restart(self, *, drains: bool) -> None:
        """The process dies with everything in it, and the next one answers.

        With `drains` the old one finishes what it executes although the next one answers already: the one thing
        that the ledger takes for impossible.
        """
        for call in self.calls:
            call.load = OLD
            if drains and call.stage == RUNS:
                continue
            if call.link == UP:
                call.link = DEAD
            if call.stage in (FLIGHT, RUNS, ENDED):
                call.stage, call.due = DIED, 0
        self.loading = False
        self.counts = dict.fromkeys(self.counts, self.warm_up)
        self.series = self.warm_up * len(self.counts)
        self.warms_up = self.warm_up
        self.process += 1
        self.life += 1

    def begin_load(self) -> None:
        """A load warms up, which the process counts at once."""
        self.loading = True
        self.series += self.warm_up

    def reload(self, version: str) -> None:
        """A version is loaded anew; what its old load executes runs on (E7)."""
        self._retire(version)
        self.counts[version] = self.warm_up
        self.series += 0 if self.loading else self.warm_up
        self.loading = False
        self.warms_up = self.warm_up
        self.life += 1

    def remove(self, version: str) -> None:
        """A version goes and takes its count with it; what it executes runs on."""
        self._retire(version)
        del self.counts[version]
        self.life += 1

    def add(self, version: str) -> None:
        """A version comes and brings its own count."""
        self.counts[version] = self.warm_up
        self.series += self.warm_up
        self.warms_up = self.warm_up
        self.life += 1

    @property
    def busy(self) -> bool:
        """Something is on its way, executes, or is still to be counted."""
        return any(call.stage in (FLIGHT, RUNS, ENDED) for call in self.calls)

    def count_early(self, call: Call) -> None:
        """The call is counted while it executes, and will not be counted again (E12)."""
        call.due = COUNTED_EARLY
        self.counts[call.load] += 1
        self.series += 1

    def end(self, call: Call, outcome: Outcome) -> None:
        """The call's work is over."""
        counted_early = call.due == COUNTED_EARLY
        call.due, call.least, call.most = outcome
        if counted_early:
            call.due = 0
        call.stage = ENDED if call.due else COUNTED if counted_early else NEVER

    def count(self, call: Call) -> None:
        """One step of counting a call's end."""
        # A success is one step whatever it adds; an ensemble's failure is counted one by one.
        step = call.due if call.least else 1
        call.due -= step
        if call.load != OLD:
            self.counts[call.load] += step
        self.series += step
        if not call.due:
            call.stage = COUNTED

    def _retire(self, version: str) -> None:
        for call in self.calls:
            if call.load == version:
                call.load = OLD
