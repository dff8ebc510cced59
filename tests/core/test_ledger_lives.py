"""Restarts, reloads, boot identity, other callers, the operator and odd models: E6 to E12, rule by rule."""

from __future__ import annotations

import pytest

from governor.core.claims import ClaimEvent, ClaimState, IllegalTransitionError
from governor.core.counting import ENSEMBLE, PLAIN, Counts, Reading
from governor.core.evidence import LedgerTotals, Life, OnFall, Verdict
from tests.core.ledger_driver import SETTLE_S, Driver, ended

# Restart


def test_e6_a_restart_ends_broken_claims_and_is_counted_once() -> None:
    driver = Driver()
    driver.read(100, boot="B1")
    claim = driver.broken("B1")
    assert ended(driver.read(0, boot="B2")) == {claim: ClaimEvent.PROCESS_ENDED}
    assert driver.read(0, boot="B2") == Verdict(Life.SAME)
    assert (driver.ledger.totals.restarts, driver.ledger.totals.proven_process_ended) == (1, 1)
    assert driver.ledger.boot == "B2"


def test_e6_a_hundred_and_nought_and_nought_is_one_restart() -> None:
    driver = Driver(on_fall=OnFall.RESTART)
    driver.read(100)
    old = driver.broken()
    assert ended(driver.read(0)) == {old: ClaimEvent.PROCESS_ENDED}
    new = driver.broken()
    assert driver.read(0) == Verdict(Life.SAME)
    assert driver.ledger.totals.unknown_falls == 1
    assert ended(driver.read(1)) == {new: ClaimEvent.QUIET}


@pytest.mark.parametrize("on_fall", OnFall, ids=lambda on_fall: on_fall.value)
@pytest.mark.parametrize("boot", [None, "B2"], ids=["fall", "restart"])
@pytest.mark.parametrize("leaves", [False, True], ids=["running", "timed out"])
def test_e6_an_open_claim_never_ends_by_a_restart(on_fall: OnFall, boot: str | None, leaves: bool) -> None:
    driver = Driver(on_fall=on_fall)
    driver.read(100, boot=boot and "B1")
    claim = driver.send(boot and "B1")
    if leaves:
        driver.ledger.caller_left(claim)
    driver.now_s += 5
    for count in (0, 0, 1, 0):
        assert not driver.read(count, boot=boot).ended
        assert driver.state(claim).is_open
    driver.answer(claim)
    assert driver.ledger.free == 4


def test_e6_an_open_claim_that_may_be_in_the_new_process_counts_there() -> None:
    driver = Driver()
    driver.read(100, boot="B1")
    driver.send("B2")
    driver.now_s += 5
    driver.read(3, boot="B2")
    assert driver.bound == 4


def test_e6_an_open_claim_of_a_dead_process_ends_at_the_first_reading_after_it_broke() -> None:
    driver = Driver()
    driver.read(100, boot="B1")
    claim = driver.send("B1")
    driver.now_s += 5
    driver.read(0, boot="B2")
    assert driver.bound == 0, "it will not be counted there"
    driver.ledger.lost(claim)
    assert ended(driver.read(0, boot="B2")) == {claim: ClaimEvent.PROCESS_ENDED}


def test_e6_an_answer_out_of_a_dead_process_leaves_the_new_bound_alone() -> None:
    driver = Driver()
    driver.read(100, boot="B1")
    claim = driver.send("B1")
    driver.now_s += 5
    driver.read(0, boot="B2")
    driver.answer(claim, 0, 0)
    assert driver.bound == 0


def test_e6_a_claim_delivered_when_the_reading_was_already_asked_for_is_not_ended_by_it() -> None:
    driver = Driver(on_fall=OnFall.RESTART)
    driver.read(100)
    driver.now_s = 1
    ticket = driver.ledger.begin_reading(driver.now_s)
    claim = driver.broken()
    assert driver.ledger.apply(ticket, Reading(Counts(0, 0), frozenset({"1"})), driver.now_s) == Verdict(
        Life.UNKNOWN_FALL
    )
    assert driver.state(claim) is ClaimState.RECONCILING


def test_e6_a_reading_that_was_overtaken_is_ignored_and_counted() -> None:
    driver = Driver()
    driver.read(5)
    early = driver.ledger.begin_reading(0)
    driver.answer(driver.send())
    driver.read(6)
    assert driver.ledger.apply(early, Reading(Counts(5, 0), frozenset({"1"})), driver.now_s) == Verdict(Life.STALE)
    assert driver.ledger.totals == LedgerTotals(stale_readings=1)
    assert driver.ledger.snapshot().model_high == 6


# Reload


def test_e7_a_reload_ends_nothing_and_quarantines_what_only_the_old_load_could_show() -> None:
    driver = Driver()
    driver.read(8, boot="B1")
    claim = driver.broken("B1")
    driver.now_s += 5
    driver.read(8, boot="B1")
    assert driver.read(0, boot="B1") == Verdict(Life.RELOAD, quarantined=(claim,))
    assert driver.ledger.totals.reloads == 1
    assert not driver.ledger.wants_evidence
    assert not driver.read(5, boot="B1").ended
    assert ended(driver.read(0, boot="B2")) == {claim: ClaimEvent.PROCESS_ENDED}


def test_e7_the_process_counter_proves_what_the_reloaded_models_cannot() -> None:
    driver = Driver()
    driver.read(8, boot="B1", process=30)
    claim = driver.broken("B1")
    driver.now_s += 5
    driver.read(8, boot="B1", process=30)
    assert driver.read(0, boot="B1", process=30) == Verdict(Life.RELOAD)
    assert driver.ledger.wants_evidence
    driver.answer(driver.send("B1"))
    assert not driver.read(1, boot="B1", process=31).ended, "the new load's own call, in both"
    assert ended(driver.read(1, boot="B1", process=32)) == {claim: ClaimEvent.QUIET}


def test_e7_a_call_that_may_have_entered_the_new_load_counts_there() -> None:
    driver = Driver()
    driver.read(8, boot="B1")
    claim = driver.broken("B1")
    driver.read(8, boot="B1")
    assert driver.read(0, boot="B1") == Verdict(Life.RELOAD)
    assert ended(driver.read(1, boot="B1")) == {claim: ClaimEvent.QUIET}


@pytest.mark.parametrize(
    ("before", "after", "quarantined"),
    [(("1",), ("1", "2"), False), (("1", "2"), ("2",), False), (("1",), ("2",), True), (("1", "2"), ("3",), True)],
)
def test_e7_a_call_waits_for_a_version_that_went_on(
    before: tuple[str, ...], after: tuple[str, ...], quarantined: bool
) -> None:
    driver = Driver(on_fall=OnFall.RESTART)
    driver.read(8, versions=before)
    claim = driver.broken()
    driver.now_s += 5
    driver.read(8, versions=before)
    verdict = driver.read(3, versions=after)
    assert verdict == Verdict(Life.RELOAD, quarantined=(claim,) if quarantined else ())


# Boot identity


@pytest.mark.parametrize(
    ("on_fall", "seen", "fate"),
    [
        (OnFall.RESTART, True, "ended"),
        (OnFall.RESTART, False, "ended"),
        (OnFall.SEEN, True, "ended"),
        (OnFall.SEEN, False, "quarantined"),
        (OnFall.HOLD, True, "quarantined"),
        (OnFall.HOLD, False, "quarantined"),
    ],
)
def test_e8_what_an_unexplained_fall_means_is_the_operators_choice(on_fall: OnFall, seen: bool, fate: str) -> None:
    driver = Driver(on_fall=on_fall)
    driver.read(100)
    claim = driver.broken()
    if seen:
        driver.read(100)
    verdict = driver.read(0)
    assert verdict.life is Life.UNKNOWN_FALL
    assert ended(verdict) == ({claim: ClaimEvent.PROCESS_ENDED} if fate == "ended" else {})
    assert verdict.quarantined == ((claim,) if fate == "quarantined" else ())


def test_e8_a_restart_is_found_although_the_new_counter_has_overtaken_the_old() -> None:
    driver = Driver()
    driver.read(2, boot="B1")
    claim = driver.broken("B1")
    assert ended(driver.read(7, boot="B2")) == {claim: ClaimEvent.PROCESS_ENDED}


def test_e8_a_call_that_went_to_the_new_process_does_not_end_with_the_old() -> None:
    driver = Driver(on_fall=OnFall.RESTART)
    driver.read(100, boot="B1")
    claim = driver.broken("B2")
    assert driver.read(0, boot="B2") == Verdict(Life.RESTART)
    assert ended(driver.read(1, boot="B2")) == {claim: ClaimEvent.QUIET}


def test_e8_a_call_of_an_unknown_process_is_held_over_a_restart() -> None:
    driver = Driver()
    driver.read(100, boot="B1")
    claim = driver.broken()
    assert driver.read(0, boot="B2") == Verdict(Life.RESTART)
    assert driver.state(claim) is ClaimState.RECONCILING


def test_e8_after_an_unexplained_fall_the_process_has_no_name() -> None:
    driver = Driver()
    driver.read(100, boot="B1")
    driver.read(0)
    assert driver.ledger.boot is None


def test_e8_a_reading_that_names_no_process_has_seen_no_claim() -> None:
    """It may come from the process before or after the one that the epoch knows."""
    driver = Driver()
    driver.read(100, boot="B1")
    claim = driver.broken()
    driver.read(100)
    assert not driver.ledger.claims[claim].seen
    driver.read(100, boot="B1")
    assert driver.ledger.claims[claim].seen
    assert driver.ledger.claims[claim].boot == "B1"


# Other callers


def test_e10_a_counter_above_the_bound_is_said_once_and_ends_nothing() -> None:
    driver = Driver()
    driver.read(10)
    driver.broken()
    assert driver.read(12) == Verdict(Life.SAME, contested=True)
    assert driver.read(13) == Verdict(Life.SAME, contested=True)
    assert driver.ledger.totals.contested == 1
    assert not driver.ledger.wants_baseline(60), "while something of ours is there, a reading cannot clear it"


def test_e10_a_clean_baseline_ends_it() -> None:
    driver = Driver()
    driver.read(10)
    driver.answer(driver.send())
    assert driver.read(12).contested
    assert driver.ledger.wants_baseline(driver.now_s)
    assert driver.read(12).contested, "the answer has not settled"
    driver.now_s += SETTLE_S
    assert driver.read(12) == Verdict(Life.SAME)
    assert not driver.ledger.wants_baseline(60)
    claim = driver.broken()
    assert ended(driver.read(13)) == {claim: ClaimEvent.QUIET}


def test_e10_it_outlasts_a_restart_which_still_ends_what_died() -> None:
    driver = Driver()
    driver.read(10, boot="B1")
    claim = driver.broken("B1")
    driver.read(12, boot="B1")
    assert driver.read(0, boot="B2") == Verdict(Life.RESTART, ((claim, ClaimEvent.PROCESS_ENDED),), contested=True)


# The operator


def test_e11_a_release_is_counted_apart_and_its_count_may_still_come() -> None:
    driver = Driver()
    driver.read(0)
    released, other = driver.broken(), driver.broken()
    driver.ledger.release(released, driver.now_s)
    assert driver.ledger.totals == LedgerTotals(released_unproven=1)
    assert not driver.read(1).ended
    driver.now_s += SETTLE_S
    assert not driver.read(1).ended
    assert ended(driver.read(2)) == {other: ClaimEvent.QUIET}


def test_e11_an_open_claim_is_not_released() -> None:
    driver = Driver()
    claim = driver.send()
    with pytest.raises(IllegalTransitionError):
        driver.ledger.release(claim, driver.now_s)
    assert driver.state(claim) is ClaimState.RUNNING
    assert driver.ledger.totals.released_unproven == 0


def test_e11_there_is_nothing_to_release_where_there_is_no_claim() -> None:
    with pytest.raises(KeyError):
        Driver().ledger.release(1, 0)


def forced(driver: Driver, count: int, boot: str | None = None) -> tuple[Verdict, tuple[int, ...]]:
    return driver.ledger.restart(
        driver.ledger.begin_reading(driver.now_s),
        Reading(Counts(count, 0), frozenset({"1"}), boot=boot),
        driver.now_s,
    )


def test_e11_a_forced_restart_releases_every_broken_claim_and_no_open_one() -> None:
    driver = Driver()
    driver.read(10)
    running, broken = driver.send(), [driver.broken(), driver.broken()]
    assert forced(driver, 10) == (Verdict(Life.SAME), tuple(broken))
    assert driver.ledger.totals == LedgerTotals(released_unproven=2)
    assert driver.state(running) is ClaimState.RUNNING
    driver.answer(running)
    assert driver.ledger.free == 4


def test_e11_a_forced_restart_calls_nothing_unproven_that_its_reading_proves() -> None:
    driver = Driver()
    driver.read(10, boot="B1")
    dead, unknown = driver.broken("B1"), driver.broken()
    verdict, released = forced(driver, 0, boot="B2")
    assert ended(verdict) == {dead: ClaimEvent.PROCESS_ENDED}
    assert released == (unknown,)


def test_e11_a_forced_restart_of_a_contested_identity_is_a_clean_baseline() -> None:
    driver = Driver()
    driver.read(10)
    driver.broken()
    driver.read(12)
    forced(driver, 12)
    assert not driver.ledger.contested
    for _ in range(2):
        driver.now_s += SETTLE_S
        driver.read(12)
    claim = driver.broken()
    assert ended(driver.read(13)) == {claim: ClaimEvent.QUIET}


def test_e11_what_a_forced_restart_released_may_still_be_counted() -> None:
    """It is no end of the next call, for a settle time from the next reading on."""
    driver = Driver()
    driver.read(10)
    driver.broken()
    forced(driver, 10)
    claim = driver.broken()
    assert not driver.read(11).ended
    driver.now_s += SETTLE_S
    assert not driver.read(11).ended
    assert ended(driver.read(12)) == {claim: ClaimEvent.QUIET}


def test_e11_a_forced_restart_by_a_reading_that_was_overtaken_does_nothing() -> None:
    driver = Driver()
    driver.read(10)
    claim = driver.broken()
    early = driver.ledger.begin_reading(driver.now_s)
    driver.read(10)
    assert driver.ledger.restart(early, Reading(Counts(10, 0), frozenset({"1"})), driver.now_s) == (
        Verdict(Life.STALE),
        (),
    )
    assert driver.state(claim) is ClaimState.RECONCILING


# Models whose counter is odd


def test_e12_a_decoupled_models_counter_ends_nothing() -> None:
    driver = Driver(provable=False)
    driver.read(0, boot="B1")
    claim = driver.broken("B1")
    assert driver.read(1, boot="B1") == Verdict(Life.SAME, quarantined=(claim,))
    assert not driver.read(5, boot="B1").ended
    assert ended(driver.read(0, boot="B2")) == {claim: ClaimEvent.PROCESS_ENDED}


def test_e12_an_ensembles_failure_never_passes_for_two_ends() -> None:
    driver = Driver(rule=ENSEMBLE)
    driver.read(0)
    driver.answer(driver.send(), 1, 2)
    claim = driver.broken()
    assert not driver.ledger.apply(
        driver.ledger.begin_reading(driver.now_s), Reading(Counts(0, 2), frozenset({"1"})), driver.now_s
    ).ended
    assert driver.state(claim) is ClaimState.RECONCILING


def test_e12_the_second_count_of_an_ensembles_failure_is_not_the_next_calls_end() -> None:
    driver = Driver(rule=ENSEMBLE)
    driver.read(0)
    first = driver.broken()
    half = Reading(Counts(0, 1), frozenset({"1"}))
    assert ended(driver.ledger.apply(driver.ledger.begin_reading(driver.now_s), half, driver.now_s)) == {
        first: ClaimEvent.QUIET
    }
    driver.broken()
    whole = Reading(Counts(0, 2), frozenset({"1"}))
    assert driver.ledger.apply(driver.ledger.begin_reading(driver.now_s), whole, driver.now_s) == Verdict(Life.SAME)


def test_e12_a_more_cautious_rule_makes_the_next_reading_a_baseline_and_older_ones_stale() -> None:
    driver = Driver()
    driver.read(4, boot="B1")
    claim = driver.broken("B1")
    asked_before = driver.ledger.begin_reading(driver.now_s)
    driver.ledger.count_by(ENSEMBLE, provable=True)
    assert driver.ledger.wants_baseline(driver.now_s)
    assert driver.ledger.boot == "B1"
    assert driver.ledger.apply(asked_before, Reading(Counts(9, 0), boot="B1"), driver.now_s) == Verdict(Life.STALE)
    assert driver.read(4, boot="B1") == Verdict(Life.BASELINE)
    assert driver.bound == 10
    assert ended(driver.read(5, boot="B1")) == {claim: ClaimEvent.QUIET}


def test_e12_a_rule_never_becomes_less_cautious() -> None:
    driver = Driver(rule=ENSEMBLE)
    driver.read(4)
    driver.ledger.count_by(PLAIN, provable=True)
    assert not driver.ledger.wants_baseline(60)
    driver.send()
    assert driver.bound == 10


def test_e12_once_a_model_proves_nothing_no_claim_is_countable_that_ran_in_it_or_may_have() -> None:
    """A call delivered just before this was known may run in the load that it is known of."""
    driver = Driver()
    driver.read(0)
    before = driver.send()
    driver.ledger.count_by(PLAIN, provable=False)
    between = driver.send()
    driver.ledger.count_by(PLAIN, provable=True)
    after = driver.send()
    assert [driver.ledger.claims[claim].countable for claim in (before, between, after)] == [False, False, True]
