"""Credits, calls, baseline and quiet: E1 to E5, rule by rule.

Restarts and what else is odd is in `test_ledger_lives.py`, longer stories in `golden/`, every order of events in
`test_model.py`.
"""

from __future__ import annotations

import pytest

from governor.core.claims import ClaimEvent, ClaimState, IllegalTransitionError
from governor.core.evidence import Life, Verdict
from tests.core.ledger_driver import SETTLE_S, Driver, ended

# Credits


@pytest.mark.parametrize("slots", [0, -1])
def test_e1_a_ledger_has_at_least_one_slot(slots: int) -> None:
    with pytest.raises(ValueError, match=f"slots must be at least 1, not {slots}"):
        Driver(slots)


def test_e1_no_more_claims_than_slots() -> None:
    driver = Driver(2)
    claims = {driver.ledger.open(0), driver.ledger.open(0)}
    assert len(claims) == 2
    with pytest.raises(ValueError, match="no free credit: 2 claims on 2 slots"):
        driver.ledger.open(0)
    assert set(driver.ledger.claims) == claims


def test_e1_slots_taken_away_come_back_before_anyone_gets_one() -> None:
    driver = Driver(2)
    first, second = driver.ledger.open(0), driver.ledger.open(0)
    driver.ledger.slots = 1
    assert driver.ledger.free == -1
    driver.ledger.lost(first)
    with pytest.raises(ValueError, match="no free credit"):
        driver.ledger.open(0)
    driver.ledger.lost(second)
    assert driver.ledger.free == 1


def test_e1_an_id_is_never_given_twice() -> None:
    driver = Driver(1)
    seen = set()
    for _ in range(5):
        claim = driver.ledger.open(0)
        driver.ledger.lost(claim)
        seen.add(claim)
    assert len(seen) == 5


@pytest.mark.parametrize("count", range(4))
def test_e1_a_snapshot_counts_every_claim_once(count: int) -> None:
    driver = Driver(4)
    for _ in range(count):
        driver.broken()
    snapshot = driver.ledger.snapshot()
    assert snapshot.free + sum(snapshot.states.values()) == snapshot.slots == 4
    assert snapshot.states[ClaimState.AWAITING_BASELINE] == count
    assert ClaimState.ENDED not in snapshot.states


def test_a_snapshot_tells_both_witnesses() -> None:
    driver = Driver()
    before = driver.ledger.snapshot()
    assert not before.has_baseline
    assert (before.model_bound, before.model_high, before.process_bound, before.process_high) == (None,) * 4
    driver.read(7, boot="B1", process=20)
    driver.read(7, boot="B1", process=20)
    driver.send()
    after = driver.ledger.snapshot()
    assert (after.epoch, after.boot, after.has_baseline, after.contested) == (1, "B1", True, False)
    assert (after.model_high, after.model_bound) == (7, 8)
    assert (after.process_high, after.process_bound) == (20, 21)


# Calls


def test_e2_a_caller_that_leaves_changes_nothing_but_who_waits() -> None:
    driver = Driver()
    claim = driver.send()
    driver.ledger.caller_left(claim)
    driver.ledger.caller_left(claim)
    assert driver.state(claim) is ClaimState.TIMED_OUT
    assert not driver.ledger.wants_evidence
    driver.answer(claim)
    driver.ledger.caller_left(claim)
    assert driver.ledger.free == driver.ledger.slots


def test_e2_a_caller_that_leaves_a_broken_claim_changes_nothing() -> None:
    driver = Driver()
    claim = driver.broken()
    driver.ledger.caller_left(claim)
    assert driver.state(claim) is ClaimState.AWAITING_BASELINE


@pytest.mark.parametrize("left", [False, True], ids=["running", "timed out"])
@pytest.mark.parametrize("dispatched", [False, True], ids=["nothing sent", "partly sent"])
def test_e3_what_was_not_delivered_ends_at_once_and_leaves_the_sum(left: bool, dispatched: bool) -> None:
    driver = Driver()
    driver.read(7, process=20)
    driver.read(7, process=20)
    claim = driver.ledger.open(0)
    if dispatched:
        driver.ledger.dispatch(claim)
    if left:
        driver.ledger.caller_left(claim)
    assert driver.ledger.lost(claim)
    snapshot = driver.ledger.snapshot()
    assert (snapshot.free, snapshot.model_bound, snapshot.process_bound) == (4, 7, 20)


def test_e3_from_the_last_byte_on_a_dead_connection_ends_nothing() -> None:
    driver = Driver()
    driver.read(7)
    claim = driver.broken()
    assert driver.state(claim) is ClaimState.RECONCILING
    assert driver.bound == 8


def test_e3_a_claim_is_dispatched_once_and_before_it_is_delivered() -> None:
    driver = Driver()
    claim = driver.ledger.open(0)
    with pytest.raises(AssertionError, match="dispatched before it is delivered"):
        driver.ledger.delivered(claim, 0)
    driver.ledger.dispatch(claim)
    with pytest.raises(AssertionError, match="dispatched once"):
        driver.ledger.dispatch(claim)


def test_e1_an_answer_before_anything_was_sent_ends_the_claim_and_adds_nothing() -> None:
    driver = Driver()
    driver.read(7)
    driver.answer(driver.ledger.open(0))
    assert (driver.ledger.free, driver.bound) == (4, 7)
    assert not driver.ledger.wants_baseline(60)


def test_e1_a_broken_claim_is_not_answered_any_more() -> None:
    driver = Driver()
    claim = driver.broken()
    with pytest.raises(IllegalTransitionError):
        driver.answer(claim)
    assert driver.state(claim) is ClaimState.AWAITING_BASELINE


# Baseline


def test_e4_a_baseline_is_wanted_before_anything_is_delivered() -> None:
    driver = Driver()
    assert driver.ledger.wants_baseline(0)
    assert driver.read(7).life is Life.BASELINE
    assert not driver.ledger.wants_baseline(60)


def test_e4_without_a_baseline_a_broken_claim_awaits_one_and_is_counted() -> None:
    driver = Driver()
    claim = driver.broken()
    assert driver.ledger.totals.baseline_missing == 1
    assert driver.ledger.wants_evidence
    assert driver.read(7) == Verdict(Life.BASELINE)
    assert driver.state(claim) is ClaimState.RECONCILING
    assert driver.ledger.wants_evidence
    assert ended(driver.read(8)) == {claim: ClaimEvent.QUIET}
    assert not driver.ledger.wants_evidence


def test_e4_a_baseline_just_after_an_answer_is_not_taken_at_its_word() -> None:
    driver = Driver()
    driver.answer(driver.send())
    driver.read(0)
    assert driver.bound == 1
    claim = driver.broken()
    assert not driver.read(1).ended
    assert ended(driver.read(2)) == {claim: ClaimEvent.QUIET}


# Quiet


def test_e5_all_broken_claims_end_together_and_not_before() -> None:
    driver = Driver()
    driver.read(10)
    claims = [driver.broken() for _ in range(3)]
    assert not driver.read(11).ended
    assert not driver.read(12).ended
    assert ended(driver.read(13)) == dict.fromkeys(claims, ClaimEvent.QUIET)
    assert driver.ledger.totals.proven_quiet == 3
    assert driver.ledger.free == 4


def test_e5_an_open_claim_is_never_ended_by_quiet() -> None:
    driver = Driver()
    driver.read(10)
    running, broken = driver.send(), driver.broken()
    assert not driver.read(11).ended
    assert ended(driver.read(12)) == {broken: ClaimEvent.QUIET}
    assert driver.state(running) is ClaimState.RUNNING


@pytest.mark.parametrize(("least", "most", "bound"), [(1, 1, 11), (0, 1, 11), (0, 0, 10), (0, 9, 11)])
def test_e5_an_answer_leaves_the_most_that_it_may_count_in_the_bound(least: int, most: int, bound: int) -> None:
    driver = Driver()
    driver.read(10, process=30)
    driver.read(10, process=30)
    driver.answer(driver.send(), least, most)
    assert driver.bound == bound
    assert driver.ledger.snapshot().process_bound == bound + 20


def test_e5_an_answer_in_doubt_makes_a_reading_worth_its_time_once_it_has_settled() -> None:
    driver = Driver()
    driver.read(10)
    driver.answer(driver.send(), 0, 1)
    assert not driver.ledger.wants_baseline(driver.now_s + 0.9)
    assert driver.ledger.wants_baseline(driver.now_s + SETTLE_S)
    driver.now_s += SETTLE_S
    driver.read(10)
    assert driver.bound == 10
    assert not driver.ledger.wants_baseline(driver.now_s + 60)


def test_e5_an_answer_without_doubt_needs_no_reading() -> None:
    driver = Driver()
    driver.read(10)
    driver.answer(driver.send())
    assert not driver.ledger.wants_baseline(driver.now_s + 60)


def delivered_just_before_a_reload() -> tuple[Driver, int]:
    """A broken claim of which nobody can say whether it runs in the old load or in the new one."""
    driver = Driver()
    driver.read(10, boot="B1", process=30)
    driver.read(10, boot="B1", process=30)
    claim = driver.broken("B1")
    assert driver.read(0, boot="B1", process=30) == Verdict(Life.RELOAD)
    return driver, claim


def test_e5_a_proof_by_either_witness_is_one() -> None:
    for model, process in ((0, 31), (1, 30)):
        driver, claim = delivered_just_before_a_reload()
        assert ended(driver.read(model, boot="B1", process=process)) == {claim: ClaimEvent.QUIET}


def test_e7_the_process_counter_is_no_proof_for_a_claim_that_no_reload_has_touched() -> None:
    """It shows the warm-up of a load that does not serve yet, and nothing else tells of that load."""
    driver = Driver()
    driver.read(10, boot="B1", process=30)
    driver.read(10, boot="B1", process=30)
    claim = driver.broken("B1")
    assert driver.read(10, boot="B1", process=31) == Verdict(Life.SAME)
    assert ended(driver.read(11, boot="B1", process=31)) == {claim: ClaimEvent.QUIET}


def test_e5_what_the_one_witness_has_shown_is_not_the_next_calls_end_at_the_other() -> None:
    driver, _ = delivered_just_before_a_reload()
    driver.read(0, boot="B1", process=31)
    claim = driver.broken("B1")
    assert not driver.read(0, boot="B1", process=31).ended
    assert not driver.read(1, boot="B1", process=31).ended
    assert ended(driver.read(2, boot="B1", process=32)) == {claim: ClaimEvent.QUIET}


def test_e5_a_process_counter_that_fell_proves_nothing() -> None:
    driver, claim = delivered_just_before_a_reload()
    assert driver.read(0, boot="B1", process=0) == Verdict(Life.SAME)
    assert ended(driver.read(0, boot="B1", process=1)) == {claim: ClaimEvent.QUIET}
