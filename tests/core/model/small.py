"""The worlds that every run of the tests searches; seconds each."""

from __future__ import annotations

from governor.core.counting import ENSEMBLE
from governor.core.evidence import OnFall
from tests.core.model.backend import COUNTED, OLD
from tests.core.model.bounds import Bounds
from tests.core.model.cases import (
    BESIDE,
    BY_PROCESS,
    CARRIED,
    DOUBT,
    EITHER,
    ENSEMBLE_OUTCOMES,
    ERRORS,
    KNOWN,
    LATER,
    OVERTAKEN,
    QUIET,
    QUIET_TWO,
    REPLACED,
    Case,
    new_case,
)
from tests.core.model.judge import DRAIN, EARLY_COUNT, FOREIGN, LATE_COUNT, RELOAD, WARM_UP, WINDOW, WRONG_RELEASE

SMALL: dict[str, Case] = {
    # What always holds
    "one call, processes now known and now not": new_case(
        Bounds(calls=1, outcomes=ERRORS, boots=EITHER, stamps=EITHER, restarts=1, stale_lanes=True),
        12_824,
        QUIET,
        BY_PROCESS,
        OVERTAKEN,
        "awaiting_baseline ended by process_ended",
    ),
    "one call, everything slow": new_case(
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
        4_786,
        QUIET,
        OVERTAKEN,
        REPLACED,
    ),
    "errors that count or not": new_case(
        Bounds(outcomes=(*ERRORS, "rejected"), slow_send=True, undelivered=True), 10_897, QUIET_TWO
    ),
    "three calls": new_case(Bounds(calls=3, disciplined=True), 12_432, QUIET_TWO),
    "two readings at a time": new_case(
        Bounds(calls=1, readers=2, restarts=1, outcomes=ERRORS), 14_362, "stale", OVERTAKEN
    ),
    "a restart, every process known": new_case(
        Bounds(restarts=1, boots=KNOWN, stamps=KNOWN, stale_lanes=True), 26_779, QUIET_TWO, BY_PROCESS, CARRIED, LATER
    ),
    "a restart, no process known": new_case(
        Bounds(restarts=1), 25_312, QUIET_TWO, BY_PROCESS, OVERTAKEN, LATER, "quarantined", "quarantined ended by quiet"
    ),
    "a reload, every process known": new_case(
        Bounds(reloads=1, boots=KNOWN, stamps=KNOWN, slow_entry=True), 28_473, "reload", REPLACED, BESIDE, "quarantined"
    ),
    "statistics and metrics of different moments": new_case(
        Bounds(reloads=1, metrics=True, split=True, disciplined=True),
        52_539,
        "reload",
        REPLACED,
        OVERTAKEN,
        QUIET_TWO,
    ),
    "versions come and go": new_case(
        Bounds(calls=1, versions=("1", "2"), version_changes=1, restarts=1),
        18_230,
        "reload",
        "unknown_fall",
        BY_PROCESS,
    ),
    "an ensemble": new_case(Bounds(rule=ENSEMBLE, outcomes=ENSEMBLE_OUTCOMES[:2]), 24_212, QUIET_TWO),
    "a model that turns out to be an ensemble": new_case(Bounds(recounts=1), 12_409, QUIET_TWO),
    "warm-up": new_case(
        Bounds(calls=1, warm_up=2, warm_up_after=2, restarts=1, reloads=1, on_fall=OnFall.HOLD), 4_930, QUIET
    ),
    "a decoupled model": new_case(Bounds(counts_early=True, provable=False), 10_787, "quarantined"),
    "an operator releases what is over": new_case(Bounds(releases=1, honest_releases=True), 4_912, QUIET_TWO),
    "an operator starts the ledger afresh": new_case(
        Bounds(fresh_starts=1, honest_releases=True, restarts=1, boots=KNOWN, stamps=KNOWN, disciplined=True),
        20_485,
        QUIET_TWO,
        BY_PROCESS,
    ),
    "a first warm-up while the load is under way": new_case(
        Bounds(
            calls=1, warm_up_after=1, slow_load=True, reloads=1, marks=True, metrics=True, boots=KNOWN, stamps=KNOWN
        ),
        3_820,
        QUIET,
        REPLACED,
        "quarantined",
    ),
    # What ends early, and why
    "a fall means restart": new_case(
        Bounds(restarts=1, on_fall=OnFall.RESTART, disciplined=True), 10_520, BY_PROCESS, "contested", excuses=(WINDOW,)
    ),
    "a reload taken for a restart": new_case(
        Bounds(reloads=1, disciplined=True), 11_342, BY_PROCESS, excuses=(RELOAD,)
    ),
    "a foreign caller": new_case(Bounds(foreign=1), 14_643, "contested", "contested no more", excuses=(FOREIGN,)),
    "an operator releases what executes": new_case(Bounds(releases=1), 6_754, "contested", excuses=(WRONG_RELEASE,)),
    "an operator starts the ledger afresh while something executes": new_case(
        Bounds(fresh_starts=1, disciplined=True), 5_748, "contested", excuses=(WRONG_RELEASE,)
    ),
    "a count later than the settle time": new_case(
        Bounds(lag_is_short=False), 5_027, "contested", excuses=(LATE_COUNT,)
    ),
    "a load that begins to warm up": new_case(
        Bounds(calls=1, warm_up_after=1, reloads=1, on_fall=OnFall.HOLD), 1_886, OVERTAKEN, excuses=(WARM_UP,)
    ),
    "a decoupled model nobody recognised": new_case(Bounds(counts_early=True), 9_491, QUIET, excuses=(EARLY_COUNT,)),
    "two processes at a time": new_case(
        Bounds(calls=1, drains=True, restarts=1, boots=KNOWN, stamps=KNOWN), 1_232, BY_PROCESS, excuses=(DRAIN,)
    ),
    # What stays held
    "live: nothing goes wrong but connections": new_case(
        Bounds(disciplined=True, undelivered=True, slow_send=True), 1_521, QUIET_TWO, held=()
    ),
    "live: errors": new_case(Bounds(disciplined=True, outcomes=ERRORS), 4_128, QUIET_TWO, DOUBT, held=(COUNTED,)),
    "live: two versions": new_case(Bounds(disciplined=True, versions=("1", "2")), 4_937, QUIET_TWO, held=()),
    "live: a restart, every process known": new_case(
        Bounds(disciplined=True, restarts=1, boots=KNOWN, stamps=KNOWN), 6_085, QUIET_TWO, BY_PROCESS, held=()
    ),
    "live: a reload, every process known, metrics": new_case(
        Bounds(disciplined=True, reloads=1, boots=KNOWN, stamps=KNOWN, metrics=True, marks=True),
        20_502,
        QUIET_TWO,
        REPLACED,
        held=(COUNTED,),
    ),
    "live: a reload that no number shows": new_case(
        Bounds(disciplined=True, reloads=1, boots=KNOWN, stamps=KNOWN, metrics=True),
        13_741,
        QUIET_TWO,
        REPLACED,
        held=(OLD, COUNTED),
    ),
}
