"""A backend's truth, a ledger that sees only its shadow, and every event that can happen to the two.

The world obeys the facts that the ledger may rely on, and nothing else:

- a call that we saw answered is counted, and a delivered call has entered a load, before the clock's next tick (a
  settle time passes between two ticks); everything else may take for ever;
- a reading shows one moment between `begin` and `apply` (with `split`: one moment for each of its two halves);
- one process at a time answers at the URL.

A call's end and the count of it are one event unless its answer comes between the two: until it is counted, a call
that is over looks to the ledger like one that executes, and the latter is the harder case.

What the ledger makes of it is held against the truth after every event (`judge.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from governor.core.counting import ENSEMBLE, Counts, Reading
from governor.core.evidence import Life
from governor.core.ledger import Ledger
from tests.core.model import enabled, judge
from tests.core.model.backend import (
    ANSWERED,
    CLOSED,
    DEAD,
    DIED,
    DROPPED,
    FLIGHT,
    NEVER,
    OLD,
    OUTCOMES,
    RUNS,
    SENT,
    UP,
    Backend,
    Call,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.core.evidence import Ticket
    from tests.core.model.bounds import Bounds

Arg = str | int | bool
Event = tuple[str, *tuple[Arg, ...]]

SETTLE, TICK, MOMENT = 1, 2, 2**-20
"""Seconds: two times of one tick are less than the settle time apart, of two ticks more."""


@dataclass(slots=True)
class Reader:
    """One reading under way: what was asked, and what each half showed once it was sampled."""

    ticket: Ticket
    stats: judge.Sample | None = None
    series: int | None = None


@dataclass(slots=True)
class Left:
    """How often something may still happen."""

    restarts: int
    reloads: int
    version_changes: int
    recounts: int
    foreign: int
    releases: int
    fresh_starts: int


class World:
    """One state. `events` lists what can happen next; `do` makes it happen and checks the rules.

    Attributes:
        last: life and process of the reading that the ledger took last, and the process it last knew of.
        tainted: the exception because of which a claim ended early; its work's end may pass for another's.
        excuses: the named exceptions that were needed so far, in every state this object ever was in.
        seen: the interesting situations, in the same sense.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.now = 0.0
        self.backend = Backend(
            counts=dict.fromkeys(bounds.versions, bounds.warm_up),
            series=bounds.warm_up * len(bounds.versions),
            calls=[Call() for _ in range(bounds.calls)],
            warm_up=bounds.warm_up_after,
            warms_up=bounds.warm_up,
        )
        self.ledger = Ledger(
            slots=bounds.calls, rule=bounds.rule, provable=bounds.provable, settle_s=SETTLE, on_fall=bounds.on_fall
        )
        self._read_configuration()
        self.readers: list[Reader | None] = [None] * bounds.readers
        self.left = Left(
            bounds.restarts,
            bounds.reloads,
            bounds.version_changes,
            bounds.recounts,
            bounds.foreign,
            bounds.releases,
            bounds.fresh_starts,
        )
        self.last = (0, 0, 0)
        self.tainted: str | None = None
        self.excuses: set[str] = set()
        self.seen: set[str] = set()

    def do(self, event: Event) -> None:
        """Makes an event happen.

        Raises:
            BrokenRuleError: the ledger did what it must never do.
        """
        _EVENTS[event[0]](self, *event[1:])
        judge.check_states(self)

    def events(self) -> list[Event]:
        """Every event that can happen now."""
        return enabled.events(self)

    # What the ledger's driver does

    def send(self, index: int, stamped: bool) -> None:
        """A call takes a credit and begins to leave."""
        claim_id = self.ledger.open(0)
        assert claim_id == index + 1, "calls are sent in order"
        self.ledger.dispatch(claim_id, self.backend.boot if stamped else None)
        self.backend.calls[index] = Call(SENT, UP)

    def deliver(self, index: int, version: str = OLD) -> None:
        """The last byte left; without a version the call is not in a load yet."""
        self.ledger.delivered(index + 1, self.now)
        call = self.backend.calls[index]
        call.stage, call.load = (DIED if call.link == DEAD else RUNS if version else FLIGHT), version

    def send_and_deliver(self, index: int, stamped: bool, version: str = OLD) -> None:
        """Both at once."""
        self.send(index, stamped)
        self.deliver(index, version)

    def send_and_drop(self, index: int, stamped: bool) -> None:
        """The last byte left, and the server loses the call and its connection."""
        self.send_and_deliver(index, stamped)
        call = self.backend.calls[index]
        call.stage, call.link = DROPPED, DEAD

    def cut(self, index: int) -> None:
        """The connection is gone before the last byte left."""
        assert self.ledger.lost(index + 1), "E3: what was not delivered ends at once"
        call = self.backend.calls[index]
        call.stage, call.link = NEVER, CLOSED

    def send_on_dead_lane(self, index: int, stamped: bool) -> None:
        """A call leaves on a connection whose process died."""
        self.send(index, stamped)
        self.backend.calls[index].link = DEAD
        self.ledger.claims[index + 1].boot = f"B{self.backend.process - 1}" if stamped else None

    def answer(self, index: int) -> None:
        """The answer arrives; the counter may lag it."""
        call = self.backend.calls[index]
        self.ledger.answered(index + 1, self.now, least=call.least, most=call.most)
        call.link = ANSWERED

    def lose(self, index: int) -> None:
        """The connection is found to be gone without an answer."""
        assert not self.ledger.lost(index + 1), "a delivered call does not end by its connection's end"
        self.backend.calls[index].link = CLOSED

    def leave(self, index: int) -> None:
        """The caller leaves."""
        self.ledger.caller_left(index + 1)

    def release(self, index: int) -> None:
        """An operator releases a claim, rightly or wrongly."""
        self.ledger.release(index + 1, self.now)
        self.left.releases -= 1
        if self.backend.calls[index].executes:
            self.tainted = judge.WRONG_RELEASE

    def begin(self, index: int) -> None:
        """A reading is asked for."""
        self.readers[index] = Reader(self.ledger.begin_reading(self.now))

    def sample(self, index: int, known: bool) -> None:
        """The backend answers a reading."""
        reader, backend = self.readers[index], self.backend
        assert reader is not None
        reader.stats = judge.Sample(
            sum(backend.counts.values()),
            frozenset(backend.counts),
            backend.boot if known else None,
            backend.life,
            backend.process,
        )
        if self.bounds.metrics and not self.bounds.split:
            reader.series = backend.series

    def begin_and_sample(self, index: int, known: bool) -> None:
        """Both at once."""
        self.begin(index)
        self.sample(index, known)

    def sample_metrics(self, index: int) -> None:
        """The backend's metrics answer a reading."""
        reader = self.readers[index]
        assert reader is not None
        reader.series = self.backend.series

    def apply(self, index: int) -> None:
        """The reading arrives."""
        ticket, sample, reading = self._taken(index)
        before = judge.Before(self)
        verdict = self.ledger.apply(ticket, reading, self.now)
        judge.check_verdict(self, before, sample, verdict)
        if verdict.life not in {Life.STALE, Life.SAME}:
            self._read_configuration()

    def start_afresh(self, index: int) -> None:
        """The reading arrives, and an operator has every broken claim forgotten (E11)."""
        ticket, sample, reading = self._taken(index)
        before = judge.Before(self)
        verdict, forgotten = self.ledger.restart(ticket, reading, self.now)
        judge.check_verdict(self, before, sample, verdict)
        self.left.fresh_starts -= 1
        if any(self.backend.calls[claim_id - 1].executes for claim_id in forgotten):
            self.tainted = judge.WRONG_RELEASE

    def _read_configuration(self) -> None:
        """After every new life, and before another reading (E12)."""
        self.ledger.count_by(self.ledger._rule, provable=self.bounds.provable, warms_up=self.backend.warms_up > 0)

    def _taken(self, index: int) -> tuple[Ticket, judge.Sample, Reading]:
        reader = self.readers[index]
        assert reader is not None
        assert reader.stats is not None
        self.readers[index] = None
        return (
            reader.ticket,
            reader.stats,
            Reading(
                model=Counts(0, reader.stats.value),
                versions=reader.stats.versions,
                life=(-reader.stats.life,) if self.bounds.marks else (),
                process=None if reader.series is None else Counts(0, reader.series),
                boot=reader.stats.boot,
            ),
        )

    # What the backend does

    def enter(self, index: int, version: str) -> None:
        """A delivered call enters a load."""
        call = self.backend.calls[index]
        call.stage, call.load = RUNS, version

    def end(self, index: int, outcome: str) -> None:
        """The work is over and is counted, or one step of it is."""
        call = self.backend.calls[index]
        self.backend.end(call, OUTCOMES[outcome])
        if call.due:
            self.backend.count(call)

    def end_and_answer(self, index: int, outcome: str) -> None:
        """The work is over and the answer arrives before anything is counted."""
        self.backend.end(self.backend.calls[index], OUTCOMES[outcome])
        self.answer(index)

    def count_early(self, index: int) -> None:
        """The counter does not wait for the end of the work."""
        self.backend.count_early(self.backend.calls[index])

    def count(self, index: int) -> None:
        """The end is counted, or the next step of it."""
        self.backend.count(self.backend.calls[index])

    def restart(self) -> None:
        """The process dies, the next one answers."""
        self.left.restarts -= 1
        self.backend.restart(drains=self.bounds.drains)
        if self.bounds.slow_restart:
            self.tick()

    def begin_load(self) -> None:
        """A load that does not serve yet has warmed up."""
        self.backend.begin_load()

    def reload(self, version: str) -> None:
        """The model is loaded anew; what its old load executes runs on."""
        self.left.reloads -= 1
        self.backend.reload(version)

    def reload_reset(self, version: str) -> None:
        """The same with nothing in flight, and the process's own series begins anew."""
        self.reload(version)
        self.backend.series = 0

    def remove_version(self, version: str) -> None:
        """A version is unloaded; what it executes runs on."""
        self.left.version_changes -= 1
        self.backend.remove(version)

    def add_version(self, version: str) -> None:
        """A version is loaded beside the others."""
        self.left.version_changes -= 1
        self.backend.add(version)

    def recount(self) -> None:
        """The model's configuration is read and is an ensemble's."""
        self.left.recounts -= 1
        self.ledger.count_by(ENSEMBLE, provable=self.bounds.provable)

    def foreign(self) -> None:
        """A call of somebody else ends and is counted."""
        self.left.foreign -= 1
        version = next(iter(self.backend.counts))
        self.backend.counts[version] += 1
        self.backend.series += 1

    def tick(self) -> None:
        """More than a settle time passes."""
        self.now = int(self.now) + TICK

    def moment(self) -> None:
        """Less than a settle time passes, however often."""
        self.now += MOMENT


_EVENTS: dict[str, Callable[..., None]] = {
    "send": World.send,
    "deliver": World.deliver,
    "send and deliver": World.send_and_deliver,
    "send and drop": World.send_and_drop,
    "send on a dead lane": World.send_on_dead_lane,
    "cut": World.cut,
    "answer": World.answer,
    "break": World.lose,
    "caller leaves": World.leave,
    "release": World.release,
    "begin": World.begin,
    "sample": World.sample,
    "begin and sample": World.begin_and_sample,
    "sample metrics": World.sample_metrics,
    "apply": World.apply,
    "start afresh": World.start_afresh,
    "enter": World.enter,
    "end": World.end,
    "count early": World.count_early,
    "end and answer": World.end_and_answer,
    "count": World.count,
    "restart": World.restart,
    "begin load": World.begin_load,
    "reload": World.reload,
    "reload, metrics reset": World.reload_reset,
    "remove version": World.remove_version,
    "add version": World.add_version,
    "becomes an ensemble": World.recount,
    "foreign call counted": World.foreign,
    "tick": World.tick,
    "a moment": World.moment,
}

OF_A_CALL = frozenset(_EVENTS) - {
    *("begin", "sample", "begin and sample", "sample metrics", "apply", "start afresh"),
    *("restart", "begin load", "reload", "reload, metrics reset", "remove version", "add version", "tick", "a moment"),
    *("becomes an ensemble", "foreign call counted"),
}
"""The events whose first argument is the index of a call."""
