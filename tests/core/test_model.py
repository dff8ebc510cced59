"""The ledger against every order of events of small worlds (invariants of SPEC E; `model/worlds.py` says which)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.core.model.explore import search
from tests.core.model.liveness import held
from tests.core.model.worlds import LARGE, SMALL, Case

if TYPE_CHECKING:
    from tests.core.model.world import World


def check(case: Case) -> None:
    """Searches a world and compares everything that came of it."""
    stays: set[str] = set()

    def look(world: World) -> None:
        stays.update(held(world))

    found = search(case.bounds, at_each=None if case.held is None else look)
    assert found.excuses == case.excuses, "why claims ended while their work executed"
    assert case.sometimes <= found.seen, "every situation the world is for must be reached"
    if case.held is not None:
        assert stays == case.held, "what became of the work of claims that stay held"
    assert found.states == case.states


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_no_order_of_events_breaks_a_rule(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE.values(), ids=LARGE)
def test_no_order_of_events_of_a_large_world_breaks_a_rule(case: Case) -> None:
    check(case)
