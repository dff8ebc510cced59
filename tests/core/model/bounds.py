"""How large a world is: what may happen in it, and how often."""

from __future__ import annotations

from dataclasses import dataclass

from governor.core.counting import PLAIN, CountRule
from governor.core.evidence import OnFall


@dataclass(frozen=True)
class Bounds:
    """What may happen in a world, and how often.

    Attributes:
        calls: how many calls there are.
        outcomes: the outcomes a call can have (`backend.OUTCOMES`).
        boots: whether a reading knows its process: True, False, or either each time.
        stamps: the same for the connection of a call.
        marks: readings carry a number that shows every new life (`Reading.life`).
        metrics: readings carry the process's own counters.
        split: statistics and metrics of one reading may show different moments.
        metrics_first: the metrics are read before the statistics, never after them.
        readers: how many readings can be under way at a time.
        slow_begin: a reading shows a moment some time after it was asked for.
        slow_send: a call is delivered some time after its first byte left.
        drains: the next process answers while the last one still finishes what it executes.
        stale_lanes: a call may be sent on a connection whose process is dead.
        slow_restart: a process takes longer than the settle time to come back.
        slow_entry: a delivered call enters a load some time later.
        undelivered: a connection may break before the last byte left.
        delivery_lost: the server may drop a delivered call and its connection.
        callers_leave: callers may leave their calls.
        moments: time also passes by less than the settle time.
        lag_is_short: the facts about the settle time hold.
        disciplined: the driver takes a reading before a delivery whenever the ledger wants one (E4), or when the
            connection's stamp shows another process than the ledger knows.
        counts_early: a call may be counted while it executes (E12).
        recounts: how often the configuration may turn out to be an ensemble's.
        foreign: calls of somebody else that are counted.
        releases: claims that an operator releases; `fresh_starts`: how often the operator has the ledger forget all
            broken ones; `honest_releases`: both only when their work is over.
        warm_up: what the first load counts before its first call; `warm_up_after`: what later ones count.
        slow_load: the metrics show a new load's warm-up before the statistics show the load.
    """

    calls: int = 2
    outcomes: tuple[str, ...] = ("ok",)
    rule: CountRule = PLAIN
    provable: bool = True
    on_fall: OnFall = OnFall.SEEN
    boots: tuple[bool, ...] = (False,)
    stamps: tuple[bool, ...] = (False,)
    marks: bool = False
    metrics: bool = False
    split: bool = False
    metrics_first: bool = False
    readers: int = 1
    restarts: int = 0
    slow_restart: bool = False
    drains: bool = False
    stale_lanes: bool = False
    reloads: int = 0
    series_reset: bool = False
    versions: tuple[str, ...] = ("1",)
    version_changes: int = 0
    slow_begin: bool = False
    slow_send: bool = False
    slow_entry: bool = False
    undelivered: bool = False
    delivery_lost: bool = False
    callers_leave: bool = False
    moments: bool = False
    lag_is_short: bool = True
    disciplined: bool = False
    counts_early: bool = False
    recounts: int = 0
    foreign: int = 0
    releases: int = 0
    fresh_starts: int = 0
    honest_releases: bool = False
    warm_up: int = 0
    warm_up_after: int = 0
    slow_load: bool = False
