"""The life of one claim: every pair of state and event (E1, E6)."""

from __future__ import annotations

from itertools import product

import pytest

from governor.core.claims import TRANSITIONS, Claim, ClaimEvent, ClaimState, IllegalTransitionError

OPEN = {ClaimState.RUNNING, ClaimState.TIMED_OUT}
BROKEN = {ClaimState.RECONCILING, ClaimState.AWAITING_BASELINE, ClaimState.QUARANTINED}
EVIDENCE = {ClaimEvent.QUIET, ClaimEvent.PROCESS_ENDED, ClaimEvent.RELEASED}
PAIRS = list(product(ClaimState, ClaimEvent))


def test_the_table_names_every_state() -> None:
    assert set(TRANSITIONS) == set(ClaimState)


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=lambda value: value.value)
def test_a_claim_moves_as_the_table_says_and_otherwise_not_at_all(state: ClaimState, event: ClaimEvent) -> None:
    claim = Claim(1, 0.0, state)
    expected = TRANSITIONS[state].get(event)
    if expected is None:
        with pytest.raises(IllegalTransitionError, match=f"claim 1: {event.value} in state {state.value}"):
            claim.move(event)
        assert claim == Claim(1, 0.0, state)
    else:
        assert claim.move(event) is expected
        assert claim == Claim(1, 0.0, expected)


@pytest.mark.parametrize("state", OPEN, ids=lambda state: state.value)
def test_an_open_claim_has_no_way_out_by_evidence_or_by_an_operator(state: ClaimState) -> None:
    """E6 is the absence of these arrows."""
    assert not EVIDENCE & set(TRANSITIONS[state])


@pytest.mark.parametrize("state", BROKEN, ids=lambda state: state.value)
def test_a_broken_claim_ends_by_evidence_or_by_an_operator_alone(state: ClaimState) -> None:
    ways_out = {event for event, after in TRANSITIONS[state].items() if after is ClaimState.ENDED}
    assert ways_out <= EVIDENCE
    assert {ClaimEvent.PROCESS_ENDED, ClaimEvent.RELEASED} <= ways_out


def test_a_broken_claim_never_becomes_open_again() -> None:
    assert not any(set(TRANSITIONS[state].values()) & OPEN for state in BROKEN)


def test_quiet_says_nothing_without_a_baseline() -> None:
    """E4: a claim that awaits the baseline may be in it already."""
    assert ClaimEvent.QUIET not in TRANSITIONS[ClaimState.AWAITING_BASELINE]


def test_every_state_is_reached_and_every_claim_can_end() -> None:
    def reached(start: ClaimState) -> set[ClaimState]:
        found, todo = {start}, [start]
        while todo:
            for after in TRANSITIONS[todo.pop()].values():
                if after not in found:
                    found.add(after)
                    todo.append(after)
        return found

    assert reached(ClaimState.RUNNING) == set(ClaimState)
    assert all(ClaimState.ENDED in reached(state) for state in ClaimState)
    assert TRANSITIONS[ClaimState.ENDED] == {}


@pytest.mark.parametrize("state", ClaimState, ids=lambda state: state.value)
def test_a_state_is_open_or_broken_or_ended(state: ClaimState) -> None:
    assert (state in OPEN, state in BROKEN) == (state.is_open, state.is_broken)
    assert [state.is_open, state.is_broken, state is ClaimState.ENDED].count(True) == 1


def test_readings_are_taken_for_claims_that_a_reading_can_help() -> None:
    """E9: not for open ones, whose answer is the proof, and not for those that no counter can prove."""
    assert {state for state in ClaimState if state.waits_on_evidence} == {
        ClaimState.RECONCILING,
        ClaimState.AWAITING_BASELINE,
    }


@pytest.mark.parametrize("state", OPEN, ids=lambda state: state.value)
def test_an_open_claim_is_never_given_up_as_unprovable(state: ClaimState) -> None:
    """Its answer is still to come."""
    assert ClaimEvent.UNPROVABLE not in TRANSITIONS[state]


def test_a_claim_is_delivered_from_the_moment_its_last_byte_left() -> None:
    """E3; at whatever moment the clock begins."""
    claim = Claim(1, 0.0, may_count=True)
    assert not claim.delivered
    claim.delivered_at_s = 0.0
    assert claim.delivered
