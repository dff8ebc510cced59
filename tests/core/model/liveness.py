"""Bounded liveness: once faults stop and the backend works on, what stays held?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.core.model.backend import COUNTED, DEAD, DIED, DROPPED, ENDED, FLIGHT, OLD, RUNS, SENT, UP

if TYPE_CHECKING:
    from tests.core.model.world import World

READINGS = 3
"""How many readings after its work's end every provable claim must have ended by."""

FATES = {
    DIED: "its process died, and nothing shows it",
    DROPPED: "the server lost it without executing it",
    OLD: "it was counted by an earlier load or process, which nothing shows",
    COUNTED: "it was counted, but the bound is too high",
}


def held(world: World) -> set[str]:
    """Lets everything come to its end without another fault, takes readings, and names what is still held then.

    Nothing is read until all work has ended, which is the hardest order: no reading can lower a bound in between.
    """
    _finish(world)
    for _ in range(READINGS):
        world.tick()
        world.begin(0)
        world.sample(0, world.bounds.boots[0])
        if world.bounds.split:
            world.sample_metrics(0)
        world.apply(0)
    return {_fate(world, claim_id) for claim_id in world.ledger.claims}


def _finish(world: World) -> None:
    world.readers = [None] * len(world.readers)
    outcome = world.bounds.outcomes[0]
    for index, call in enumerate(world.backend.calls):
        if call.stage == SENT:
            world.cut(index)
        if call.stage == FLIGHT:
            world.enter(index, next(iter(world.backend.counts)))
        if call.stage == RUNS:
            world.end(index, outcome)
        while call.stage == ENDED:
            world.count(index)
        if call.link == UP:
            world.answer(index)
        elif call.link == DEAD:
            world.lose(index)


def _fate(world: World, claim_id: int) -> str:
    call = world.backend.calls[claim_id - 1]
    if call.stage == COUNTED and call.load == OLD:
        return FATES[OLD]
    return FATES[call.stage]
