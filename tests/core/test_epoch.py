"""An epoch and how a reading relates to it (E6 to E8), and what has not settled yet (E4, E5)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.counting import ENSEMBLE, PLAIN, Counts, Reading
from governor.core.epoch import Epoch, Unsettled
from governor.core.evidence import Life, Ticket
from governor.core.witness import Witness


def epoch(*, boot: str | None = None, process: int | None = None, marks: tuple[int, ...] = ()) -> Epoch:
    return Epoch(
        number=1,
        boot=boot,
        versions=frozenset({"1"}),
        marks=marks,
        model=Witness(bound=12, high=10),
        process=None if process is None else Witness(bound=process + 2, high=process),
    )


def reading(
    count: int,
    *,
    boot: str | None = None,
    process: int | None = None,
    life: tuple[int, ...] = (),
    versions: tuple[str, ...] = ("1",),
) -> Reading:
    return Reading(Counts(count, 0), frozenset(versions), life, None if process is None else Counts(process, 0), boot)


@pytest.mark.parametrize(
    ("known", "shown", "life"),
    [
        # Nothing fell.
        (epoch(), reading(10), Life.SAME),
        (epoch(), reading(11), Life.SAME),
        (epoch(boot="B1"), reading(10, boot="B1"), Life.SAME),
        (epoch(boot="B1"), reading(10), Life.SAME),
        (epoch(), reading(10, boot="B1"), Life.SAME),
        (epoch(marks=(5, 5)), reading(10, life=(5, 6)), Life.SAME),
        (epoch(marks=(5,)), reading(10), Life.SAME),
        # E6, E8: another process, whatever it counts.
        (epoch(boot="B1"), reading(0, boot="B2"), Life.RESTART),
        (epoch(boot="B1"), reading(10, boot="B2"), Life.RESTART),
        (epoch(boot="B1"), reading(99, boot="B2", versions=("1", "2")), Life.RESTART),
        (epoch(boot="B1", process=20), reading(0, boot="B2", process=20), Life.RESTART),
        # E7: the same process.
        (epoch(boot="B1"), reading(9, boot="B1"), Life.RELOAD),
        (epoch(boot="B1", marks=(5, 5)), reading(10, boot="B1", life=(9, 4)), Life.RELOAD),
        (epoch(process=20), reading(9, process=20), Life.RELOAD),
        (epoch(boot="B1", process=20), reading(9, process=20), Life.RELOAD),
        # Other versions: the sum says nothing about the process.
        (epoch(), reading(99, versions=("1", "2")), Life.RELOAD),
        (epoch(), reading(0, versions=("2",)), Life.RELOAD),
        # E8: nobody can say.
        (epoch(), reading(9), Life.UNKNOWN_FALL),
        (epoch(boot="B1"), reading(9), Life.UNKNOWN_FALL),
        (epoch(), reading(9, boot="B1"), Life.UNKNOWN_FALL),
        (epoch(marks=(5,)), reading(10, life=(4,)), Life.UNKNOWN_FALL),
        (epoch(process=20), reading(9, process=19), Life.UNKNOWN_FALL),
        (epoch(process=20), reading(9), Life.UNKNOWN_FALL),
        (epoch(), reading(9, process=20), Life.UNKNOWN_FALL),
    ],
)
def test_what_a_reading_tells_of_the_counters_life(known: Epoch, shown: Reading, life: Life) -> None:
    before = repr(known)
    assert known.life_of(shown, PLAIN) is life
    assert repr(known) == before, "to ask changes nothing"


def test_the_first_reading_is_the_baseline() -> None:
    """E4."""
    assert Epoch().life_of(reading(7), PLAIN) is Life.BASELINE
    assert Epoch(boot="B1").life_of(reading(7, boot="B1"), PLAIN) is Life.BASELINE


def test_another_process_is_another_one_before_any_baseline() -> None:
    """E6: the process of an epoch may be known before its counters are (after `count_by`)."""
    assert Epoch(boot="B1").life_of(reading(7, boot="B2"), PLAIN) is Life.RESTART


def test_a_fall_is_told_by_the_rules_own_measure() -> None:
    """E12: S + F fell from 12 to 11, 2S + F rose."""
    known = Epoch(model=Witness(bound=20, high=ENSEMBLE.measure(Counts(2, 10))))
    assert known.life_of(Reading(Counts(6, 5)), ENSEMBLE) is Life.SAME
    assert known.life_of(Reading(Counts(1, 11)), ENSEMBLE) is Life.UNKNOWN_FALL


def test_a_baseline_begins_both_witnesses_at_what_was_read_and_what_may_still_come() -> None:
    """E4: a bound is too high rather than too low."""
    begun = Epoch()
    begun.observe(reading(10, boot="B1", process=30, life=(7,)), PLAIN, by_model=2, by_process=3, crossed=False)
    assert begun == Epoch(
        boot="B1",
        versions=frozenset({"1"}),
        marks=(7,),
        model=Witness(bound=12, high=10),
        process=Witness(bound=33, high=30),
        elsewhere=20,
    )


def test_a_later_reading_lowers_the_bounds_and_raises_the_highest() -> None:
    known = epoch(boot="B1", process=30, marks=(5, 5))
    known.observe(reading(11, boot="B1", process=31, life=(4, 9)), PLAIN, by_model=0, by_process=0, crossed=False)
    assert (known.model, known.process) == (Witness(bound=11, high=11), Witness(bound=31, high=31))
    assert known.marks == (5, 9)


def test_a_reading_that_does_not_tell_its_process_does_not_make_it_unknown() -> None:
    """E8."""
    known = epoch(boot="B1")
    known.observe(reading(10), PLAIN, by_model=0, by_process=0, crossed=False)
    assert known.boot == "B1"


def test_metrics_that_cannot_be_read_leave_their_witness_as_it_is() -> None:
    known = epoch(process=30)
    known.observe(reading(10), PLAIN, by_model=0, by_process=0, crossed=False)
    assert known.process == Witness(bound=32, high=30)


def test_a_series_that_was_started_anew_is_watched_anew() -> None:
    """E7: with the process unchanged a fall of its counter is no evidence of anything."""
    known = epoch(process=30)
    known.observe(reading(10, process=1), PLAIN, by_model=0, by_process=2, crossed=False)
    assert known.process == Witness(bound=3, high=1)


@pytest.mark.parametrize(("crossed", "bound"), [(False, 33), (True, 31)])
def test_e7_what_other_loads_count_is_ours_only_where_we_may_run_in_them(crossed: bool, bound: int) -> None:
    """Otherwise it is the warm-up of a load that does not serve, and the bound must not contain it."""
    known = Epoch()
    known.observe(reading(10, process=30), PLAIN, by_model=0, by_process=1, crossed=False)
    known.observe(reading(10, process=31), PLAIN, by_model=1, by_process=2, crossed=crossed)
    assert known.process == Witness(bound=bound, high=31)


def test_metrics_that_come_later_begin_with_everything_that_may_still_count() -> None:
    known = epoch()
    known.observe(reading(10, process=30), PLAIN, by_model=0, by_process=2, crossed=False)
    assert known.process == Witness(bound=32, high=30)


def ticket(unsettled: Unsettled, now_s: float) -> Ticket:
    return Ticket(after=0, begun_at_s=now_s, settled=unsettled.settled(now_s))


def test_an_answer_is_unsettled_for_the_settle_time() -> None:
    """E4: the counter lags the answer; at exactly the settle time it has caught up."""
    unsettled = Unsettled(settle_s=1)
    unsettled.add(5.0, 2, None)
    assert unsettled.since(ticket(unsettled, 5.0)) == 2
    assert unsettled.since(ticket(unsettled, 5.9)) == 2
    assert not unsettled.all_settled(5.9)
    assert unsettled.since(ticket(unsettled, 6.0)) == 0
    assert unsettled.all_settled(6.0)


def test_what_is_answered_after_a_reading_was_asked_for_is_not_in_it_however_long_it_takes() -> None:
    unsettled = Unsettled(settle_s=1)
    asked = ticket(unsettled, 0.0)
    unsettled.add(1.0, 1, None)
    assert unsettled.all_settled(60.0)
    assert unsettled.since(asked) == 1


def test_e06_what_a_dead_process_answered_last_is_awaited_no_longer() -> None:
    """E6: only that process's: what another one answered, or nobody knows which, may still be counted."""
    unsettled = Unsettled(settle_s=1)
    asked = ticket(unsettled, 0.0)
    for most, boot in ((1, "B1"), (2, None), (4, "B2")):
        unsettled.add(0.5, most, boot)
    unsettled.process_ended("B1")
    assert unsettled.since(asked) == 6
    assert unsettled.since(ticket(unsettled, 1.4)) == 6
    assert unsettled.since(ticket(unsettled, 1.5)) == 0
    assert unsettled.all_settled(1.5)


def test_nothing_unsettled_is_settled() -> None:
    unsettled = Unsettled(settle_s=1)
    assert unsettled.all_settled(0.0)
    assert unsettled.since(ticket(unsettled, 0.0)) == 0
    assert not unsettled.doubtful


STEPS = st.lists(
    st.tuples(st.sampled_from(["wait", "add", "add unknown", "end", "ask"]), st.integers(1, 4)),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)
@given(STEPS)
def test_nothing_is_left_out_before_it_has_settled_and_nothing_is_kept_for_ever(steps: list[tuple[str, int]]) -> None:
    """Against a plain list of what was let go of and when, with a settle time of four quarters of a second."""
    unsettled, now = Unsettled(settle_s=1.0), 0
    process, let_go = 1, list[tuple[int, int, int | None]]()
    tickets: list[tuple[int, Ticket]] = []
    for step, number in steps:
        if step == "wait":
            now += number
        elif step.startswith("add"):
            boot = process if step == "add" else None
            unsettled.add(now / 4, number, None if boot is None else f"B{boot}")
            let_go.append((now, number, boot))
        elif step == "end":
            unsettled.process_ended(f"B{process}")
            let_go = [entry for entry in let_go if entry[2] != process]
            process += 1
        else:
            tickets.append((now, ticket(unsettled, now / 4)))
        for asked, given_out in tickets:
            assert unsettled.since(given_out) == sum(most for at, most, _ in let_go if at + 4 > asked)
    assert unsettled.all_settled((now + 4) / 4)
