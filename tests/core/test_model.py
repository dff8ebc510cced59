"""The ledger against every order of events of small worlds (`model/cases.py`: what must come of them)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.core.model.check import check
from tests.core.model.explore import search
from tests.core.model.judge import BrokenRuleError
from tests.core.model.large import LARGE
from tests.core.model.small import SMALL
from tests.core.mutants import MUTANTS

if TYPE_CHECKING:
    from tests.core.model.cases import Case


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_no_order_of_events_breaks_a_rule(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE.values(), ids=LARGE)
def test_no_order_of_events_of_a_large_world_breaks_a_rule(case: Case) -> None:
    check(case)


def test_a_broken_rule_is_told_by_the_shortest_way_to_it() -> None:
    mutant = MUTANTS["quiet one too early"]
    with mutant.applied(), pytest.raises(BrokenRuleError) as broken:
        search(SMALL[mutant.world].bounds)
    lines = str(broken.value).strip().splitlines()
    assert lines[0] == "after 6 events: claim 1 ended by quiet while its work executes"
    assert [line[5:37].strip() for line in lines[1:]] == [
        "begin and sample 1 False",
        "apply 1",
        "send and deliver 1 False 1",
        "break 1",
        "begin and sample 1 False",
        "apply 1",
    ]
