"""Every planted fault is found by the model check, and not only by the number of states it pins."""

from __future__ import annotations

import pytest

from tests.core.model.check import check
from tests.core.model.large import LARGE
from tests.core.model.small import SMALL
from tests.core.mutants import MUTANTS, Mutant

WORLDS = {**SMALL, **LARGE}


def test_every_rule_has_a_mutant() -> None:
    assert len(MUTANTS) > 30


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_the_model_check_finds_it(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        check(WORLDS[mutant.world], pinned=False)
