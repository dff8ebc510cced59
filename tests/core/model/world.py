"""A backend's truth, a ledger that sees only its shadow, and every event that can happen to the two.

The world obeys the facts that the ledger is allowed to rely on, and nothing else:

- a call that we saw answered is counted before the next tick of the clock (the settle time), a delivered call has
  entered a load before it; everything else may take for ever;
- a reading shows one moment between `begin` and `apply`;
- one process at a time answers.

`World.check` compares what the ledger did with the truth after every event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from governor.core.claims import ClaimEvent, ClaimState
from governor.core.counting import PLAIN, Counts, CountRule, Reading
from governor.core.evidence import Life, OnFall, Ticket, Verdict
from governor.core.ledger import Ledger
from tests.core.model.backend import (
    ANSWERED,
    CLOSED,
    COUNTED,
    DEAD,
    ENDED,
    FLIGHT,
    NEVER,
    NEW,
    OLD,
    OUTCOMES,
    RUNS,
    SENT,
    UP,
    Backend,
    Call,
)
from tests.core.model.frozen import Frozen, freeze_ledger, freeze_ticket, restore_ledger, restore_ticket

Event = tuple[str | int | None, ...]


class BrokenRuleError(AssertionError):
    """The ledger did what it must never do."""


@dataclass(frozen=True)
class Bounds:
    """What may happen in a world, and how often.

    Attributes:
        calls: how many calls there are.
        outcomes: the names of the outcomes a call can have.
        boots: the boot identities a reading can have: known (True), unknown (False) or either.
        stamps: the same for the connection of a call.
        metrics: readings carry the process's own counters.
        split: statistics and metrics of one reading show different moments.
        readers: readings that can be under way at a time.
        slow_entry: a delivered call enters a load some time later.
        on_delivery_lost: the server may drop a delivered call.
        lag_is_short: the facts about the settle time hold.
        disciplined: the driver takes a reading before a delivery whenever the ledger wants one (E4).
        warm_up: what a load counts before its first call; `warm_up_after` for loads after the first process's.
    """

    calls: int = 2
    outcomes: tuple[str, ...] = ("ok",)
    rule: CountRule = PLAIN
    provable: bool = True
    on_fall: OnFall = OnFall.SEEN
    boots: tuple[bool, ...] = (False,)
    stamps: tuple[bool, ...] = (False,)
    metrics: bool = False
    split: bool = False
    readers: int = 1
    restarts: int = 0
    reloads: int = 0
    series_reset: bool = False
    versions: tuple[str, ...] = ("1",)
    version_changes: int = 0
    slow_entry: bool = False
    undelivered: bool = False
    delivery_lost: bool = False
    callers_leave: bool = False
    lag_is_short: bool = True
    disciplined: bool = False
    foreign: int = 0
    releases: int = 0
    honest_releases: bool = False
    warm_up: int = 0
    warm_up_after: int | None = None


@dataclass(slots=True)
class Reader:
    """One reading under way."""

    ticket: Ticket
    stats: tuple[int, frozenset[str], str | None, int, int] | None = None
    series: int | None = None


@dataclass(slots=True)
class Left:
    """How often something may still happen."""

    restarts: int
    reloads: int
    version_changes: int
    foreign: int
    releases: int


class World:
    """One state. `events` lists what can happen next, `do` makes it happen and checks the rules."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.now = 0
        self.backend = Backend(
            counts=dict.fromkeys(bounds.versions, bounds.warm_up),
            series=bounds.warm_up * len(bounds.versions),
            calls=[Call() for _ in range(bounds.calls)],
            warm_up=bounds.warm_up if bounds.warm_up_after is None else bounds.warm_up_after,
        )
        self.ledger = Ledger(
            slots=bounds.calls, rule=bounds.rule, provable=bounds.provable, settle_s=1, on_fall=bounds.on_fall
        )
        self.readers: list[Reader | None] = [None] * bounds.readers
        self.left = Left(bounds.restarts, bounds.reloads, bounds.version_changes, bounds.foreign, bounds.releases)
        self.last_life = self.last_process = 0
        self.wrong_release = False
        self.verdict: Verdict | None = None
        self.excuses: set[str] = set()
        self.seen: set[str] = set()

    # What can happen

    def events(self) -> list[Event]:
        """Every event that can happen now."""
        events: list[Event] = []
        for index, call in enumerate(self.backend.calls):
            if call.stage == NEW:
                if not (self.bounds.disciplined and self.ledger.wants_baseline(self.now)):
                    events += [("send", index, stamped) for stamped in self.bounds.stamps]
                break  # calls are alike: the next one to be sent is the first that was not
            self._call_events(index, call, events)
        for index, reader in enumerate(self.readers):
            if reader is None:
                events.append(("begin", index))
                continue
            if reader.stats is None:
                events += [("sample", index, known) for known in self.bounds.boots]
            if self.bounds.split and reader.series is None:
                events.append(("sample metrics", index))
            if reader.stats is not None and (reader.series is not None or not self.bounds.split):
                events.append(("apply", index))
        self._backend_events(events)
        return events

    def _call_events(self, index: int, call: Call, events: list[Event]) -> None:
        bounds = self.bounds
        if call.stage == SENT:
            events.append(("deliver", index))
            if bounds.delivery_lost and call.link == UP:
                events.append(("deliver, dropped", index))
            if bounds.undelivered or call.link == DEAD:
                events.append(("cut", index))
            return
        if call.stage == FLIGHT:
            events += [("enter", index, version) for version in self.backend.counts]
        elif call.stage == RUNS:
            events += [("end", index, outcome) for outcome in bounds.outcomes]
        elif call.stage == ENDED:
            events.append(("count", index))
        if call.link in (UP, DEAD):
            if call.stage == COUNTED or (call.link == UP and (call.stage == ENDED or (call.stage == NEVER and call.most >= 0))):
                events.append(("answer", index))
            events.append(("break", index))
            claim = self.ledger.claims[index + 1]
            if bounds.callers_leave and claim.state is ClaimState.RUNNING:
                events.append(("caller leaves", index))
        elif call.link == CLOSED and self.left.releases and index + 1 in self.ledger.claims:
            if not (bounds.honest_releases and call.executes):
                events.append(("release", index))

    def _backend_events(self, events: list[Event]) -> None:
        left, backend = self.left, self.backend
        if left.restarts:
            events.append(("restart",))
        if left.reloads:
            for version in backend.counts:
                events.append(("reload", version))
                if self.bounds.series_reset and not any(
                    call.stage in (RUNS, ENDED) and call.load in (OLD, version) for call in backend.calls
                ):
                    events.append(("reload, metrics reset", version))
        if left.version_changes:
            events += [("remove version", version) for version in backend.counts if len(backend.counts) > 1]
            if "9" not in backend.counts:
                events.append(("add version", "9"))
        if left.foreign:
            events.append(("foreign call counted",))
        if not self.bounds.lag_is_short or self._settled():
            events.append(("tick",))

    def _settled(self) -> bool:
        return not any(
            call.stage == FLIGHT or (call.stage == ENDED and call.link == ANSWERED) for call in self.backend.calls
        )

    # What it does

    def do(self, event: Event) -> None:
        """Makes an event happen.

        Raises:
            BrokenRuleError: the ledger broke a rule by it.
        """
        self.verdict = None
        name, *args = event
        {
            "send": self._send,
            "deliver": self._deliver,
            "deliver, dropped": self._deliver_dropped,
            "cut": self._cut,
            "enter": self._enter,
            "end": self._end,
            "count": self._count,
            "answer": self._answer,
            "break": self._break,
            "caller leaves": self._caller_leaves,
            "release": self._release,
            "begin": self._begin,
            "sample": self._sample,
            "sample metrics": self._sample_metrics,
            "apply": self._apply,
            "restart": self._restart,
            "reload": self._reload,
            "reload, metrics reset": self._reload_reset,
            "remove version": self._remove_version,
            "add version": self._add_version,
            "foreign call counted": self._foreign,
            "tick": self._tick,
        }[name](*args)
