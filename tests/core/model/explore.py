"""Breadth-first search over every order of events, and the shortest way to what went wrong."""

from __future__ import annotations

import gc
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.core.model.frozen import freeze, restore
from tests.core.model.judge import BrokenRuleError
from tests.core.model.world import OF_A_CALL, Event, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.core.model.bounds import Bounds


@dataclass
class Search:
    """What a search found.

    Attributes:
        states: how many different states there are.
        transitions: how many events were tried.
        excuses: the named exceptions that were needed.
        seen: the interesting situations that were reached.
    """

    states: int = 0
    transitions: int = 0
    excuses: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)


def search(bounds: Bounds, *, at_each: Callable[[World], None] | None = None, limit: int = 5_000_000) -> Search:
    """Visits every reachable state of a world once.

    Args:
        bounds: the world.
        at_each: called in every state; may change the world it gets; what it raises is a counterexample too.
        limit: the most states that are visited.

    Raises:
        BrokenRuleError: with the shortest way to it, as a readable transcript.
    """
    gc.disable()  # the search makes no cycles, and what it keeps is much
    try:
        return _search(bounds, at_each, limit)
    finally:
        gc.enable()


def _search(bounds: Bounds, at_each: Callable[[World], None] | None, limit: int) -> Search:
    world = World(bounds)
    frozen, _ = freeze(world)
    # States are known by their hash: 64 bits, so two of a million are taken for one with a chance of 1 in 10^7.
    known = {hash(frozen)}
    parents = array("q", [-1])
    ways: list[Event] = [("start",)]
    queue = deque([frozen])
    at, transitions = 0, 0
    while queue:
        frozen = queue.popleft()
        restore(world, frozen)
        events = world.events()
        if at_each is not None:
            try:
                at_each(world)
            except BrokenRuleError as broken:
                raise BrokenRuleError(_transcript(bounds, _way(at, parents, ways), broken)) from None
        for event in events:
            restore(world, frozen)
            try:
                world.do(event)
            except Exception as broken:  # noqa: BLE001  # whatever the ledger raises is a counterexample
                raise BrokenRuleError(_transcript(bounds, [*_way(at, parents, ways), event], broken)) from None
            transitions += 1
            after, _ = freeze(world)
            key = hash(after)
            if key not in known:
                known.add(key)
                parents.append(at)
                ways.append(event)
                queue.append(after)
                if len(known) > limit:
                    raise RuntimeError(f"more than {limit} states")
        at += 1
    return Search(len(known), transitions, world.excuses, world.seen)


def _way(at: int, parents: array[int], ways: list[Event]) -> list[Event]:
    way: list[Event] = []
    while at > 0:
        way.append(ways[at])
        at = parents[at]
    return way[::-1]


def _transcript(bounds: Bounds, way: list[Event], broken: Exception) -> str:
    """The way in words. Its calls keep their numbers, while those of a frozen state are in an order of its own."""
    world = World(bounds)
    order: list[int] = []
    lines = ["", f"after {len(way)} events: {broken}"]
    for step, (name, *args) in enumerate(way, 1):
        if name in OF_A_CALL and isinstance(args[0], int) and args[0] < len(order):
            args[0] = order[args[0]]
        event: Event = (str(name), *args)
        try:
            world.do(event)
        except Exception as error:  # noqa: BLE001  # the transcript ends where the world does
            lines.append(f"{step:3}  {show_event(event):32} {error}")
            break
        lines.append(f"{step:3}  {show_event(event):32} {show(world)}")
        _, order = freeze(world)
    return "\n".join(lines)


def show_event(event: Event) -> str:
    """An event in words; calls are numbered as their claims are."""
    name, *args = event
    words = [str(arg + 1) if isinstance(arg, int) and not isinstance(arg, bool) else str(arg) for arg in args]
    return " ".join([name, *words])


_FLAGS = ("seen", "resident", "replaced", "gone")


def show(world: World) -> str:
    """A state in one line: the truth, then what the ledger thinks."""
    ledger, backend = world.ledger, world.backend
    calls = " ".join(
        f"{index}:{call.stage}/{call.link}" + (f"@{call.load or 'old'}" if call.stage == "runs" else "")
        for index, call in enumerate(backend.calls, 1)
        if call.stage != "new"
    )
    claims = " ".join(
        ",".join([f"{claim.id}:{claim.state.value}", *(flag for flag in _FLAGS if getattr(claim, flag))])
        for claim in ledger.claims.values()
    )
    shot = ledger.snapshot()
    numbers = f"model {shot.model_high}/{shot.model_bound}"
    if shot.process_bound is not None:
        numbers += f" process {shot.process_high}/{shot.process_bound}"
    truth = f"{backend.boot} {'+'.join(map(str, backend.counts.values()))}"
    return f"[{truth} | {calls}] {numbers}{' contested' if ledger.contested else ''} | {claims}"
