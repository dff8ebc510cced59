"""Searches a world and compares everything that came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.core.model.explore import search
from tests.core.model.liveness import held

if TYPE_CHECKING:
    from tests.core.model.cases import Case
    from tests.core.model.world import World


def check(case: Case, *, pinned: bool = True) -> None:
    """Searches a world.

    Raises:
        AssertionError: something came of it that must not, or something did not that must; with `pinned`, also
            when it has another number of states than it had.
    """
    stays: set[str] = set()

    def look(world: World) -> None:
        stays.update(held(world))

    found = search(case.bounds, at_each=None if case.held is None else look)
    assert found.excuses == case.excuses, "why claims ended while their work executed"
    assert case.sometimes <= found.seen, "every situation the world is for must be reached"
    if case.held is not None:
        assert stays == case.held, "what became of the work of claims that stay held"
    assert not pinned or found.states == case.states
