"""The worlds that are searched, each with what must come of it.

`excuses` and `held` say what the design cannot know, and nothing else may come of a world:

- `excuses`: why a claim may have ended while its work executed (`judge.py`);
- `held`: what became of the work of claims that are still held after everything has ended (`liveness.py`).

`states` is pinned, so that a change that quietly takes behaviour away shows in review.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from governor.core.counting import ENSEMBLE
from governor.core.evidence import OnFall
from tests.core.model.backend import COUNTED, DIED, DROPPED, OLD
from tests.core.model.bounds import Bounds
from tests.core.model.judge import (
    DRAIN,
    EARLY_COUNT,
    FOREIGN,
    LATE_COUNT,
    RELOAD,
    WARM_UP,
    WARM_UP_METRICS,
    WINDOW,
    WRONG_RELEASE,
)
from tests.core.model.liveness import FATES

QUIET_TWO = "quiet ended two claims"
QUIET = "reconciling ended by quiet"
BY_PROCESS = "reconciling ended by process_ended"
DOUBT = "a doubt was resolved"
LATER = "a process proven dead ended what broke later"
CARRIED = "an open claim was carried into a new process"
OVERTAKEN = "an overtaken counter hid a new life"
REPLACED = "a claim lost the model's counter"
BESIDE = "quiet was proven beside a claim that lost the model's counter"

KNOWN, UNKNOWN, EITHER = (True,), (False,), (True, False)
ERRORS = ("ok", "error, counted", "error, uncounted")
ENSEMBLE_OUTCOMES = ("ensemble ok", "ensemble failed, counted twice", "ensemble failed, counted once")


@dataclass(frozen=True)
class Case:
    """A world and what must come of it.

    Attributes:
        states: how many states it has.
        excuses: the exceptions that occur in it, each of which must.
        sometimes: situations that must be reached.
        held: what may stay held; None where that is not looked at.
    """

    bounds: Bounds
    states: int
    excuses: frozenset[str] = frozenset()
    sometimes: frozenset[str] = field(default=frozenset({QUIET}))
    held: frozenset[str] | None = None


def _case(
    bounds: Bounds, states: int, *sometimes: str, excuses: tuple[str, ...] = (), held: tuple[str, ...] | None = None
) -> Case:
    fates = None if held is None else frozenset(FATES[fate] for fate in held)
    return Case(bounds, states, frozenset(excuses), frozenset(sometimes) or frozenset({QUIET}), fates)


SMALL: dict[str, Case] = {
    # What always holds
    "one call, processes now known and now not": _case(
        Bounds(calls=1, outcomes=ERRORS, boots=EITHER, stamps=EITHER, restarts=1, stale_lanes=True),
        11_731,
        QUIET,
        BY_PROCESS,
        OVERTAKEN,
        "awaiting_baseline ended by process_ended",
    ),
    "one call, everything slow": _case(
        Bounds(
            calls=1,
            outcomes=(*ERRORS, "rejected"),
            boots=KNOWN,
            stamps=KNOWN,
            reloads=1,
            slow_begin=True,
            slow_send=True,
            slow_entry=True,
            undelivered=True,
            delivery_lost=True,
            callers_leave=True,
        ),
        4_669,
        QUIET,
        OVERTAKEN,
        REPLACED,
    ),
    "errors that count or not": _case(
        Bounds(outcomes=(*ERRORS, "rejected"), slow_send=True, undelivered=True), 10_949, QUIET_TWO
    ),
    "three calls": _case(Bounds(calls=3, disciplined=True), 12_640, QUIET_TWO),
    "two readings at a time": _case(
        Bounds(calls=1, readers=2, restarts=1, outcomes=ERRORS), 14_371, "stale", OVERTAKEN
    ),
    "a restart, every process known": _case(
        Bounds(restarts=1, boots=KNOWN, stamps=KNOWN, stale_lanes=True), 25_401, QUIET_TWO, BY_PROCESS, CARRIED, LATER
    ),
    "a restart, no process known": _case(
        Bounds(restarts=1), 24_732, QUIET_TWO, BY_PROCESS, OVERTAKEN, LATER, "quarantined", "quarantined ended by quiet"
    ),
    "a reload, every process known": _case(
        Bounds(reloads=1, boots=KNOWN, stamps=KNOWN, slow_entry=True), 26_915, "reload", REPLACED, BESIDE, "quarantined"
    ),
    "a reload, with metrics": _case(
        Bounds(reloads=1, metrics=True, disciplined=True), 13_128, "reload", REPLACED, OVERTAKEN, QUIET_TWO
    ),
    "statistics and metrics of different moments": _case(Bounds(metrics=True, split=True), 16_648, QUIET_TWO),
    "versions come and go": _case(
        Bounds(calls=1, versions=("1", "2"), version_changes=1, restarts=1),
        15_962,
        "reload",
        "unknown_fall",
        BY_PROCESS,
    ),
    "an ensemble": _case(Bounds(rule=ENSEMBLE, outcomes=ENSEMBLE_OUTCOMES[:2]), 24_368, QUIET_TWO),
    "a model that turns out to be an ensemble": _case(Bounds(recounts=1), 11_481, QUIET_TWO),
    "warm-up": _case(
        Bounds(calls=1, warm_up=2, warm_up_after=2, restarts=1, reloads=1, on_fall=OnFall.HOLD), 4_939, QUIET
    ),
    "a decoupled model": _case(Bounds(counts_early=True, provable=False), 10_787, "quarantined"),
    "an operator releases what is over": _case(Bounds(releases=1, honest_releases=True), 4_974, QUIET_TWO),
    "an operator starts the ledger afresh": _case(
        Bounds(fresh_starts=1, honest_releases=True, restarts=1, boots=KNOWN, stamps=KNOWN, disciplined=True),
        19_897,
        QUIET_TWO,
        BY_PROCESS,
    ),
    # What ends early, and why
    "a fall means restart": _case(
        Bounds(restarts=1, on_fall=OnFall.RESTART, disciplined=True), 10_358, BY_PROCESS, "contested", excuses=(WINDOW,)
    ),
    "a reload taken for a restart": _case(Bounds(reloads=1, disciplined=True), 11_147, BY_PROCESS, excuses=(RELOAD,)),
    "a foreign caller": _case(Bounds(foreign=1), 15_671, "contested", "contested no more", excuses=(FOREIGN,)),
    "an operator releases what executes": _case(Bounds(releases=1), 6_928, "contested", excuses=(WRONG_RELEASE,)),
    "an operator starts the ledger afresh while something executes": _case(
        Bounds(fresh_starts=1, disciplined=True), 5_929, "contested", excuses=(WRONG_RELEASE,)
    ),
    "a count later than the settle time": _case(Bounds(lag_is_short=False), 5_111, "contested", excuses=(LATE_COUNT,)),
    "a load that warms up more than the last counted": _case(
        Bounds(calls=1, warm_up_after=1, reloads=1, on_fall=OnFall.HOLD), 1_490, OVERTAKEN, excuses=(WARM_UP,)
    ),
    "a decoupled model nobody recognised": _case(Bounds(counts_early=True), 9_707, QUIET, excuses=(EARLY_COUNT,)),
    "two processes at a time": _case(
        Bounds(calls=1, drains=True, restarts=1, boots=KNOWN, stamps=KNOWN), 1_209, BY_PROCESS, excuses=(DRAIN,)
    ),
    # What stays held
    "live: nothing goes wrong but connections": _case(
        Bounds(disciplined=True, undelivered=True, slow_send=True), 1_544, QUIET_TWO, held=()
    ),
    "live: errors": _case(Bounds(disciplined=True, outcomes=ERRORS), 4_167, QUIET_TWO, DOUBT, held=(COUNTED,)),
    "live: two versions": _case(Bounds(disciplined=True, versions=("1", "2")), 5_014, QUIET_TWO, held=()),
    "live: a restart, every process known": _case(
        Bounds(disciplined=True, restarts=1, boots=KNOWN, stamps=KNOWN), 6_086, QUIET_TWO, BY_PROCESS, held=(COUNTED,)
    ),
    "live: a reload, every process known, metrics": _case(
        Bounds(disciplined=True, reloads=1, boots=KNOWN, stamps=KNOWN, metrics=True),
        13_128,
        QUIET_TWO,
        REPLACED,
        held=(),
    ),
}

LARGE: dict[str, Case] = {
    "a reload that begins to warm up, metrics before statistics": _case(
        Bounds(reloads=1, warm_up_after=1, marks=True, metrics=True, split=True, metrics_first=True, disciplined=True),
        0,
        QUIET_TWO,
        REPLACED,
    ),
    "a reload that warms up and is noticed, metrics before statistics": _case(
        Bounds(
            reloads=1,
            warm_up=1,
            warm_up_after=1,
            marks=True,
            metrics=True,
            split=True,
            metrics_first=True,
            disciplined=True,
        ),
        0,
        QUIET_TWO,
        REPLACED,
    ),
    "a reload that warms up and is not noticed, metrics": _case(
        Bounds(calls=1, reloads=1, warm_up=1, warm_up_after=1, metrics=True), 0, QUIET, excuses=(WARM_UP_METRICS,)
    ),
    "a reload that begins to warm up, statistics before metrics": _case(
        Bounds(calls=1, reloads=1, warm_up_after=1, marks=True, metrics=True, split=True),
        0,
        REPLACED,
        excuses=(WARM_UP,),
    ),
    "a reload within the settle time": _case(
        Bounds(reloads=1, boots=KNOWN, stamps=KNOWN, slow_entry=True, moments=True, disciplined=True),
        0,
        REPLACED,
        QUIET_TWO,
    ),
    "one call, everything that can go wrong with it": _case(
        Bounds(
            calls=1,
            outcomes=(*ERRORS, "rejected"),
            boots=EITHER,
            stamps=EITHER,
            restarts=1,
            reloads=1,
            slow_begin=True,
            slow_send=True,
            slow_entry=True,
            undelivered=True,
            delivery_lost=True,
            callers_leave=True,
            on_fall=OnFall.HOLD,
        ),
        0,
        QUIET,
        BY_PROCESS,
        OVERTAKEN,
        REPLACED,
        "awaiting_baseline ended by process_ended",
    ),
    "one call, two restarts, a reload and metrics": _case(
        Bounds(
            calls=1,
            outcomes=ERRORS,
            boots=EITHER,
            stamps=EITHER,
            restarts=2,
            reloads=1,
            metrics=True,
            split=True,
            series_reset=True,
            on_fall=OnFall.HOLD,
        ),
        0,
        QUIET,
        BY_PROCESS,
        OVERTAKEN,
        REPLACED,
    ),
    "a restart, shown by other numbers": _case(Bounds(restarts=1, marks=True), 0, QUIET_TWO, BY_PROCESS),
    "three calls, errors": _case(Bounds(calls=3, outcomes=ERRORS), 0, QUIET_TWO),
    "three calls, a restart, every process known": _case(
        Bounds(calls=3, restarts=1, boots=KNOWN, stamps=KNOWN, disciplined=True), 0, QUIET_TWO, BY_PROCESS, CARRIED
    ),
    "three calls, a reload, every process known": _case(
        Bounds(calls=3, reloads=1, boots=KNOWN, stamps=KNOWN, disciplined=True),
        0,
        QUIET_TWO,
        REPLACED,
        "quarantined",
    ),
    "everything slow": _case(
        Bounds(
            outcomes=ERRORS,
            slow_begin=True,
            slow_send=True,
            slow_entry=True,
            undelivered=True,
            restarts=1,
            boots=KNOWN,
            stamps=KNOWN,
        ),
        0,
        QUIET_TWO,
        BY_PROCESS,
        CARRIED,
    ),
    "a restart, processes now known and now not": _case(
        Bounds(restarts=1, boots=EITHER, stamps=EITHER),
        0,
        QUIET_TWO,
        BY_PROCESS,
        CARRIED,
        OVERTAKEN,
        "quarantined",
    ),
    "a restart and a reload, processes now known and now not": _case(
        Bounds(
            restarts=1, reloads=1, boots=EITHER, stamps=EITHER, slow_entry=True, on_fall=OnFall.HOLD, disciplined=True
        ),
        0,
        QUIET_TWO,
        BY_PROCESS,
        CARRIED,
        OVERTAKEN,
        REPLACED,
    ),
    "two restarts, no process known": _case(Bounds(restarts=2), 0, QUIET_TWO, BY_PROCESS, OVERTAKEN, "quarantined"),
    "two restarts, a fall means restart": _case(
        Bounds(restarts=2, on_fall=OnFall.RESTART), 0, BY_PROCESS, "contested", excuses=(WINDOW,)
    ),
    "two restarts, a fall means nothing": _case(Bounds(restarts=2, on_fall=OnFall.HOLD), 0, QUIET_TWO, "quarantined"),
    "a restart and a reload, no process known": _case(
        Bounds(restarts=1, reloads=1), 0, BY_PROCESS, OVERTAKEN, excuses=(RELOAD,)
    ),
    "a restart and a reload, metrics": _case(
        Bounds(restarts=1, reloads=1, metrics=True, slow_entry=True),
        0,
        "reload",
        "unknown_fall",
        BY_PROCESS,
        REPLACED,
    ),
    "a restart and a reload, metrics, every process known": _case(
        Bounds(
            restarts=1,
            reloads=1,
            metrics=True,
            slow_entry=True,
            series_reset=True,
            boots=KNOWN,
            stamps=KNOWN,
        ),
        0,
        "reload",
        BY_PROCESS,
        REPLACED,
        CARRIED,
    ),
    "a restart and a reload, statistics and metrics of different moments": _case(
        Bounds(restarts=1, reloads=1, metrics=True, split=True), 0, "reload", "unknown_fall", BY_PROCESS, REPLACED
    ),
    "a reload, metrics of earlier moments": _case(
        Bounds(reloads=1, metrics=True, split=True, slow_begin=True), 0, "reload", QUIET_TWO, REPLACED
    ),
    "two versions, one goes or another comes, and a restart": _case(
        Bounds(versions=("1", "2"), version_changes=1, restarts=1, disciplined=True),
        0,
        "reload",
        "unknown_fall",
        BY_PROCESS,
    ),
    "two versions, one goes or another comes, and one is reloaded": _case(
        Bounds(versions=("1", "2"), version_changes=1, reloads=1, boots=KNOWN, stamps=KNOWN, disciplined=True),
        0,
        "reload",
        QUIET_TWO,
    ),
    "two readings at a time and a restart": _case(
        Bounds(readers=2, restarts=1, boots=KNOWN, stamps=KNOWN), 0, "stale", BY_PROCESS, QUIET_TWO
    ),
    "two readings at a time and errors": _case(Bounds(readers=2, outcomes=ERRORS), 0, "stale", QUIET_TWO),
    "an ensemble": _case(
        Bounds(rule=ENSEMBLE, outcomes=(*ENSEMBLE_OUTCOMES, "ensemble failed, uncounted"), slow_send=True),
        0,
        QUIET_TWO,
    ),
    "an ensemble and a restart": _case(
        Bounds(rule=ENSEMBLE, outcomes=ENSEMBLE_OUTCOMES, restarts=1, boots=KNOWN, stamps=KNOWN, disciplined=True),
        0,
        QUIET_TWO,
        BY_PROCESS,
    ),
    "warm-up, a restart and a reload": _case(
        Bounds(warm_up=1, warm_up_after=1, restarts=1, reloads=1, on_fall=OnFall.HOLD), 0, QUIET_TWO, OVERTAKEN
    ),
    "a model that turns out to be an ensemble, and a restart": _case(
        Bounds(recounts=1, restarts=1, boots=KNOWN, stamps=KNOWN), 0, QUIET_TWO, BY_PROCESS
    ),
    "deliveries are lost": _case(Bounds(delivery_lost=True, restarts=1), 0, BY_PROCESS, "quarantined"),
    "two foreign calls": _case(Bounds(foreign=2), 0, "contested", "contested no more", excuses=(FOREIGN,)),
    # What stays held
    "live: an undisciplined driver": _case(Bounds(), 0, QUIET_TWO, held=(COUNTED,)),
    "live: a restart, no process known": _case(
        Bounds(disciplined=True, restarts=1), 0, QUIET_TWO, BY_PROCESS, held=(COUNTED, DIED, OLD)
    ),
    "live: a reload, every process known": _case(
        Bounds(disciplined=True, reloads=1, boots=KNOWN, stamps=KNOWN), 0, QUIET_TWO, REPLACED, held=(COUNTED, OLD)
    ),
    "live: a reload and a restart, every process known, metrics": _case(
        Bounds(disciplined=True, reloads=1, restarts=1, boots=KNOWN, stamps=KNOWN, metrics=True, slow_restart=True),
        0,
        QUIET_TWO,
        REPLACED,
        held=(COUNTED, OLD),
    ),
    "live: deliveries are lost": _case(
        Bounds(disciplined=True, delivery_lost=True, boots=KNOWN, stamps=KNOWN), 0, QUIET, held=(COUNTED, DROPPED)
    ),
    "live: an ensemble": _case(
        Bounds(disciplined=True, rule=ENSEMBLE, outcomes=ENSEMBLE_OUTCOMES), 0, QUIET_TWO, held=(COUNTED,)
    ),
    "live: three calls, a restart, every process known": _case(
        Bounds(calls=3, disciplined=True, restarts=1, boots=KNOWN, stamps=KNOWN, slow_restart=True),
        0,
        QUIET_TWO,
        BY_PROCESS,
        held=(COUNTED,),
    ),
}
