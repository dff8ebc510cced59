"""Which events can happen in a state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.core.claims import ClaimState
from tests.core.model.backend import (
    CLOSED,
    COUNTED,
    COUNTED_EARLY,
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
    Call,
)

if TYPE_CHECKING:
    from tests.core.model.world import Event, World


def events(world: World) -> list[Event]:
    """Every event that can happen now."""
    found: list[Event] = []
    for index, call in enumerate(world.backend.calls):
        if call.stage == NEW:
            if _may_send(world):
                _sending(world, index, found)
            break  # calls are alike: the first that was not sent is the next
        _working(world, index, call, found)
        _connected(world, index, call, found)
    _reading(world, found)
    _changing(world, found)
    _passing(world, found)
    return found


def _may_send(world: World) -> bool:
    return not (world.bounds.disciplined and world.ledger.wants_baseline(world.now))


def _sending(world: World, index: int, found: list[Event]) -> None:
    bounds, backend = world.bounds, world.backend
    for stamped in bounds.stamps:
        if bounds.disciplined and stamped and world.ledger.boot != backend.boot:
            continue
        if bounds.slow_send:
            found.append(("send", index, stamped))
        elif bounds.slow_entry:
            found.append(("send and deliver", index, stamped))
        else:
            found += [("send and deliver", index, stamped, version) for version in backend.counts]
        if bounds.delivery_lost:
            found.append(("send and drop", index, stamped))
        if bounds.stale_lanes and backend.process > 1:
            found.append(("send on a dead lane", index, stamped))


def _working(world: World, index: int, call: Call, found: list[Event]) -> None:
    bounds, versions = world.bounds, world.backend.counts
    if call.stage == SENT:
        if bounds.slow_entry or call.link == DEAD:
            found.append(("deliver", index))
        else:
            found += [("deliver", index, version) for version in versions]
        if bounds.undelivered or call.link == DEAD:
            found.append(("cut", index))
    elif call.stage == FLIGHT:
        found += [("enter", index, version) for version in versions]
    elif call.stage == RUNS:
        _running(world, index, call, found)
    elif call.stage == ENDED:
        found.append(("count", index))


def _running(world: World, index: int, call: Call, found: list[Event]) -> None:
    bounds = world.bounds
    if bounds.counts_early and call.load != OLD and call.due != COUNTED_EARLY:
        found.append(("count early", index))
    for outcome in bounds.outcomes:
        if OUTCOMES[outcome].adds:
            found.append(("end", index, outcome))
        if call.link == UP:
            found.append(("end and answer", index, outcome))


def _connected(world: World, index: int, call: Call, found: list[Event]) -> None:
    if call.stage == SENT:
        return
    if call.link in {UP, DEAD}:
        if call.stage == COUNTED or (call.link == UP and call.stage in {ENDED, NEVER}):
            found.append(("answer", index))
        found.append(("break", index))
        if world.bounds.callers_leave and world.ledger.claims[index + 1].state is ClaimState.RUNNING:
            found.append(("caller leaves", index))
    elif _may_release(world, index, call):
        found.append(("release", index))


def _may_release(world: World, index: int, call: Call) -> bool:
    held = call.link == CLOSED and index + 1 in world.ledger.claims
    return held and world.left.releases > 0 and not (world.bounds.honest_releases and call.executes)


def _reading(world: World, found: list[Event]) -> None:
    bounds = world.bounds
    for index, reader in enumerate(world.readers):
        if reader is None:
            if bounds.slow_begin or bounds.metrics_first:
                found.append(("begin", index))
            else:
                found += [("begin and sample", index, known) for known in bounds.boots]
            continue
        if reader.stats is None and (reader.series is not None or not bounds.metrics_first):
            found += [("sample", index, known) for known in bounds.boots]
        if bounds.split and reader.series is None:
            found.append(("sample metrics", index))
        if reader.stats is not None and (reader.series is not None or not bounds.split):
            found.append(("apply", index))
            if _may_start_afresh(world):
                found.append(("start afresh", index))


def _may_start_afresh(world: World) -> bool:
    broken = (call for call in world.backend.calls if call.link == CLOSED)
    return world.left.fresh_starts > 0 and not (world.bounds.honest_releases and any(call.executes for call in broken))


def _changing(world: World, found: list[Event]) -> None:
    left, backend = world.left, world.backend
    if left.restarts:
        found.append(("restart",))
    if left.reloads:
        _loading(world, found)
    if left.version_changes:
        if len(backend.counts) > 1:
            found += [("remove version", version) for version in backend.counts]
        if "9" not in backend.counts:
            found.append(("add version", "9"))
    if left.recounts:
        found.append(("becomes an ensemble",))
    if left.foreign:
        found.append(("foreign call counted",))


def _loading(world: World, found: list[Event]) -> None:
    backend = world.backend
    if world.bounds.slow_load and not backend.loading:
        found.append(("begin load",))
        return
    for version in backend.counts:
        found.append(("reload", version))
        if world.bounds.series_reset and not backend.busy:
            found.append(("reload, metrics reset", version))


def _passing(world: World, found: list[Event]) -> None:
    # A half counted end is wholly counted within the settle time, too.
    waits = any(call.stage in {FLIGHT, ENDED} for call in world.backend.calls)
    if not (waits and world.bounds.lag_is_short):
        found.append(("tick",))
    if world.bounds.moments:
        found.append(("a moment",))
