"""One counter and its bound (E5, E10)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.witness import Witness


@pytest.mark.parametrize(
    ("value", "most", "quiet", "contested"),
    [
        (9, 1, False, False),
        (10, 1, True, False),
        (11, 1, True, True),
        (8, 2, False, False),
        (9, 2, True, False),
        (10, 2, True, False),
        (11, 2, True, True),
    ],
)
def test_quiet_is_closer_to_the_bound_than_one_unfinished_call(
    value: int, most: int, quiet: bool, contested: bool
) -> None:
    """E5: one unfinished call would leave the counter `most` below. E10: nothing of ours carries it above."""
    witness = Witness(bound=10, high=5)
    assert witness.quiet(value, most) is quiet
    assert witness.contested(value) is contested


@pytest.mark.parametrize(("value", "fell"), [(4, True), (5, False), (6, False)])
def test_a_fall_is_measured_against_the_highest_reading(value: int, fell: bool) -> None:
    """E6. The bound has no part in it."""
    assert Witness(bound=10, high=5).fell(value) is fell


def test_a_dispatch_raises_the_bound_and_a_call_that_never_counts_lowers_it_again() -> None:
    witness = Witness(bound=10, high=5)
    witness.may_count(2)
    assert witness.bound == 12
    witness.never_counts(2)
    assert witness == Witness(bound=10, high=5)


@pytest.mark.parametrize(
    ("value", "outstanding", "bound", "high"),
    [
        (7, 1, 8, 7),  # a lower bound than before
        (7, 3, 10, 7),  # the same
        (7, 9, 10, 7),  # a higher one: both are true, the lower is kept
        (3, 0, 3, 5),  # the highest reading stays
    ],
)
def test_of_two_true_bounds_the_lower_one_is_kept(value: int, outstanding: int, bound: int, high: int) -> None:
    witness = Witness(bound=10, high=5)
    witness.observe(value, outstanding)
    assert witness == Witness(bound=bound, high=high)


CALLS = st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=12)


@settings(deadline=None)
@given(start=st.integers(0, 5), calls=CALLS, looks=st.sets(st.integers(0, 30)))
def test_quiet_means_that_nothing_is_unfinished(start: int, calls: list[tuple[int, bool]], looks: set[int]) -> None:
    """However the calls of an ensemble end and whenever one looks: never quiet while one is under way (E5)."""
    most, counter = 2, start
    witness, unfinished = Witness(bound=start, high=start), list[int]()
    for moment, (adds, finish) in enumerate(calls):
        witness.may_count(most)
        if adds == 0:
            witness.never_counts(most)  # the request never left completely (E3)
        else:
            unfinished.append(adds)
        if finish and unfinished:
            counter += unfinished.pop(0)
        if moment in looks:
            assert not witness.contested(counter)
            assert not (unfinished and witness.quiet(counter, most))
            witness.observe(counter, most * len(unfinished))
    for adds in unfinished:
        counter += adds
    witness.observe(counter, 0)
    assert witness.quiet(counter, most)
