"""Larger worlds; half a minute each."""

from __future__ import annotations

from governor.core.counting import ENSEMBLE
from governor.core.evidence import OnFall
from tests.core.model.backend import COUNTED, DIED, DROPPED, OLD
from tests.core.model.bounds import Bounds
from tests.core.model.cases import (
    BY_PROCESS,
    CARRIED,
    EITHER,
    ENSEMBLE_OUTCOMES,
    ERRORS,
    KNOWN,
    OVERTAKEN,
    QUIET,
    QUIET_TWO,
    REPLACED,
    Case,
    new_case,
)
from tests.core.model.judge import FOREIGN, RELOAD, WINDOW

LARGE: dict[str, Case] = {
    "a reload that begins to warm up, metrics before statistics": new_case(
        Bounds(reloads=1, warm_up_after=1, marks=True, metrics=True, split=True, metrics_first=True, disciplined=True),
        110_244,
        QUIET_TWO,
        REPLACED,
    ),
    "a model that warms up, reloads and metrics": new_case(
        Bounds(reloads=2, warm_up=1, warm_up_after=1, metrics=True, boots=KNOWN, stamps=KNOWN, disciplined=True),
        54_383,
        QUIET_TWO,
        REPLACED,
        "quarantined",
    ),
    "a reload that begins to warm up, statistics before metrics": new_case(
        Bounds(calls=1, reloads=1, warm_up_after=1, marks=True, metrics=True, split=True),
        6_117,
        REPLACED,
    ),
    "a reload within the settle time": new_case(
        Bounds(reloads=1, boots=KNOWN, stamps=KNOWN, slow_entry=True, moments=True, disciplined=True),
        54_858,
        REPLACED,
        QUIET_TWO,
    ),
    "one call, everything that can go wrong with it": new_case(
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
        114_555,
        QUIET,
        BY_PROCESS,
        OVERTAKEN,
        REPLACED,
        "awaiting_baseline ended by process_ended",
    ),
    "one call, two restarts, a reload and metrics": new_case(
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
        696_396,
        QUIET,
        BY_PROCESS,
        OVERTAKEN,
        REPLACED,
    ),
    "a restart, shown by other numbers": new_case(Bounds(restarts=1, marks=True), 33_509, QUIET_TWO, BY_PROCESS),
    "three calls, errors": new_case(Bounds(calls=3, outcomes=ERRORS), 151_340, QUIET_TWO),
    "three calls, a restart, every process known": new_case(
        Bounds(calls=3, restarts=1, boots=KNOWN, stamps=KNOWN, disciplined=True), 67_160, QUIET_TWO, BY_PROCESS, CARRIED
    ),
    "three calls, a reload, every process known": new_case(
        Bounds(calls=3, reloads=1, boots=KNOWN, stamps=KNOWN, disciplined=True),
        166_862,
        QUIET_TWO,
        REPLACED,
        "quarantined",
    ),
    "everything slow": new_case(
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
        104_974,
        QUIET_TWO,
        BY_PROCESS,
        CARRIED,
    ),
    "a restart, processes now known and now not": new_case(
        Bounds(restarts=1, boots=EITHER, stamps=EITHER),
        321_160,
        QUIET_TWO,
        BY_PROCESS,
        CARRIED,
        OVERTAKEN,
        "quarantined",
    ),
    "a restart and a reload, processes now known and now not": new_case(
        Bounds(
            restarts=1, reloads=1, boots=EITHER, stamps=EITHER, slow_entry=True, on_fall=OnFall.HOLD, disciplined=True
        ),
        602_871,
        QUIET_TWO,
        BY_PROCESS,
        CARRIED,
        OVERTAKEN,
        REPLACED,
    ),
    "two restarts, no process known": new_case(
        Bounds(restarts=2), 70_513, QUIET_TWO, BY_PROCESS, OVERTAKEN, "quarantined"
    ),
    "two restarts, a fall means restart": new_case(
        Bounds(restarts=2, on_fall=OnFall.RESTART), 69_255, BY_PROCESS, "contested", excuses=(WINDOW,)
    ),
    "two restarts, a fall means nothing": new_case(
        Bounds(restarts=2, on_fall=OnFall.HOLD), 72_177, QUIET_TWO, "quarantined"
    ),
    "a restart and a reload, no process known": new_case(
        Bounds(restarts=1, reloads=1), 128_299, BY_PROCESS, OVERTAKEN, excuses=(RELOAD,)
    ),
    "a restart and a reload, metrics": new_case(
        Bounds(restarts=1, reloads=1, metrics=True, slow_entry=True),
        190_096,
        "reload",
        "unknown_fall",
        BY_PROCESS,
        REPLACED,
    ),
    "a restart and a reload, metrics, every process known": new_case(
        Bounds(
            restarts=1,
            reloads=1,
            metrics=True,
            slow_entry=True,
            series_reset=True,
            boots=KNOWN,
            stamps=KNOWN,
        ),
        216_949,
        "reload",
        BY_PROCESS,
        REPLACED,
        CARRIED,
    ),
    "a restart and a reload, statistics and metrics of different moments": new_case(
        Bounds(restarts=1, reloads=1, metrics=True, split=True), 686_596, "reload", "unknown_fall", BY_PROCESS, REPLACED
    ),
    "a reload, metrics of earlier moments": new_case(
        Bounds(reloads=1, metrics=True, split=True, slow_begin=True), 239_759, "reload", QUIET_TWO, REPLACED
    ),
    "two versions, one goes or another comes, and a restart": new_case(
        Bounds(versions=("1", "2"), version_changes=1, restarts=1, disciplined=True),
        330_840,
        "reload",
        "unknown_fall",
        BY_PROCESS,
    ),
    "two versions, one goes or another comes, and one is reloaded": new_case(
        Bounds(versions=("1", "2"), version_changes=1, reloads=1, boots=KNOWN, stamps=KNOWN, disciplined=True),
        438_162,
        "reload",
        QUIET_TWO,
    ),
    "two readings at a time and a restart": new_case(
        Bounds(readers=2, restarts=1, boots=KNOWN, stamps=KNOWN), 212_245, "stale", BY_PROCESS, QUIET_TWO
    ),
    "two readings at a time and errors": new_case(Bounds(readers=2, outcomes=ERRORS), 86_012, "stale", QUIET_TWO),
    "an ensemble": new_case(
        Bounds(rule=ENSEMBLE, outcomes=(*ENSEMBLE_OUTCOMES, "ensemble failed, uncounted"), slow_send=True),
        39_593,
        QUIET_TWO,
    ),
    "an ensemble and a restart": new_case(
        Bounds(rule=ENSEMBLE, outcomes=ENSEMBLE_OUTCOMES, restarts=1, boots=KNOWN, stamps=KNOWN, disciplined=True),
        47_725,
        QUIET_TWO,
        BY_PROCESS,
    ),
    "warm-up, a restart and a reload": new_case(
        Bounds(warm_up=1, warm_up_after=1, restarts=1, reloads=1, on_fall=OnFall.HOLD), 130_798, QUIET_TWO, OVERTAKEN
    ),
    "a model that turns out to be an ensemble, and a restart": new_case(
        Bounds(recounts=1, restarts=1, boots=KNOWN, stamps=KNOWN), 77_582, QUIET_TWO, BY_PROCESS
    ),
    "deliveries are lost": new_case(Bounds(delivery_lost=True, restarts=1), 34_181, BY_PROCESS, "quarantined"),
    "two foreign calls": new_case(Bounds(foreign=2), 36_525, "contested", "contested no more", excuses=(FOREIGN,)),
    # What stays held
    "live: an undisciplined driver": new_case(Bounds(), 3_960, QUIET_TWO, held=(COUNTED,)),
    "live: a restart, no process known": new_case(
        Bounds(disciplined=True, restarts=1), 10_807, QUIET_TWO, BY_PROCESS, held=(COUNTED, DIED, OLD)
    ),
    "live: a reload, every process known": new_case(
        Bounds(disciplined=True, reloads=1, boots=KNOWN, stamps=KNOWN), 11_044, QUIET_TWO, REPLACED, held=(COUNTED, OLD)
    ),
    "live: a reload and a restart, every process known, metrics": new_case(
        Bounds(disciplined=True, reloads=1, restarts=1, boots=KNOWN, stamps=KNOWN, metrics=True, slow_restart=True),
        40_138,
        QUIET_TWO,
        REPLACED,
        held=(COUNTED, OLD),
    ),
    "live: deliveries are lost": new_case(
        Bounds(disciplined=True, delivery_lost=True, boots=KNOWN, stamps=KNOWN), 2_026, QUIET, held=(COUNTED, DROPPED)
    ),
    "live: an ensemble": new_case(
        Bounds(disciplined=True, rule=ENSEMBLE, outcomes=ENSEMBLE_OUTCOMES), 13_060, QUIET_TWO, held=(COUNTED,)
    ),
    "live: three calls, a restart, every process known": new_case(
        Bounds(calls=3, disciplined=True, restarts=1, boots=KNOWN, stamps=KNOWN, slow_restart=True),
        48_034,
        QUIET_TWO,
        BY_PROCESS,
        held=(),
    ),
}
