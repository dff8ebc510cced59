"""What a finished call adds to a counter (E5, E12)."""

from __future__ import annotations

from itertools import product

import pytest

from governor.core.counting import ENSEMBLE, PLAIN, CountRule, Counts, Reading

# What one call of each kind adds to S and F, as measured.
PLAIN_ENDS = {"success": (1, 0), "error response": (1, 0), "raise": (0, 1)}
ENSEMBLE_ENDS = {"success": (1, 0), "failure": (0, 2), "failure, one version": (0, 1)}


@pytest.mark.parametrize("end", PLAIN_ENDS.values(), ids=PLAIN_ENDS)
def test_every_end_of_a_plain_model_adds_exactly_one(end: tuple[int, int]) -> None:
    assert PLAIN.measure(Counts(*end)) == PLAIN.most == 1


@pytest.mark.parametrize("end", ENSEMBLE_ENDS.values(), ids=ENSEMBLE_ENDS)
def test_every_end_of_an_ensemble_adds_one_or_two(end: tuple[int, int]) -> None:
    assert 1 <= ENSEMBLE.measure(Counts(*end)) <= ENSEMBLE.most == 2


def test_the_sum_of_success_and_fail_would_let_an_ensembles_failure_pass_for_two_ends() -> None:
    """Why an ensemble has a rule of its own: one failure counts like two calls of a plain model."""
    assert PLAIN.measure(Counts(0, 2)) == 2 * PLAIN.most
    assert ENSEMBLE.measure(Counts(0, 2)) == ENSEMBLE.most


@pytest.mark.parametrize("rule", [PLAIN, ENSEMBLE], ids=["plain", "ensemble"])
def test_no_end_makes_the_measure_fall_and_ends_add_up(rule: CountRule) -> None:
    for success, fail, more_success, more_fail in product(range(3), repeat=4):
        before, more = rule.measure(Counts(success, fail)), rule.measure(Counts(more_success, more_fail))
        assert rule.measure(Counts(success + more_success, fail + more_fail)) == before + more >= before


def test_a_reading_knows_no_more_than_it_was_told() -> None:
    reading = Reading(Counts(3, 0))
    assert (reading.versions, reading.life, reading.process, reading.boot) == (frozenset(), (), None, None)
