"""A session's pending prompts (S1 to S4, S7)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.prompts import Outcome, Prompt, PromptQueue, PromptState, prompt_limit
from governor.errors import PromptCancelledError, PromptQueueFullError


@pytest.mark.parametrize(
    ("value", "limit"),
    [(5, 5), (1, 1), (10**9, 10**9), (3.0, 3), (0, None), (0.0, None), (-0.0, None), (math.inf, None), (None, None)],
)
def test_what_is_a_limit(value: float | None, limit: int | None) -> None:
    """S1: 0 and infinity mean unlimited."""
    assert prompt_limit(value) == limit
    assert PromptQueue("s", value).limit == limit


@pytest.mark.parametrize(
    "value", [-1, -0.5, 1.5, math.nan, -math.inf, True, False, "5", "", b"5", [], {}, object(), 5 + 0j]
)
def test_what_is_no_limit(value: object) -> None:
    """S1: negative, fractional, NaN, bool and non-numeric values are refused."""
    with pytest.raises(ValueError, match="whole number of at least 0"):
        prompt_limit(value)


def test_prompts_are_admitted_up_to_the_limit_counting_the_running_one() -> None:
    queue = PromptQueue("s", 2)
    first = queue.admit("a", 0)
    assert queue.start_next() is first
    queue.admit("b", 0)
    with pytest.raises(PromptQueueFullError) as refused:
        queue.admit("c", 0)
    assert refused.value.body() == {
        "code": "prompt_queue_full",
        "error": 'Prompt queue full for session "s" (2/2 pending)',
        "sessionId": "s",
        "limit": 2,
        "pendingCount": 2,
    }
    assert [prompt.id for prompt in queue.pending] == ["a", "b"]


def test_without_a_limit_nobody_is_refused() -> None:
    queue = PromptQueue("s", 0)
    for number in range(1000):
        queue.admit(str(number), 0)
    assert len(queue) == 1000


def test_a_cancelled_caller_is_refused_as_cancelled_even_when_the_queue_is_full() -> None:
    """S2: the order of the checks is part of the contract."""
    queue = PromptQueue("s", 1)
    queue.admit("a", 0)
    with pytest.raises(PromptCancelledError):
        queue.admit("b", 0, cancelled=True)
    assert len(queue) == 1


def test_a_refusal_leaves_no_trace() -> None:
    queue = PromptQueue("s", 1)
    queue.admit("a", 0)
    for _ in range(3):
        with pytest.raises(PromptQueueFullError):
            queue.admit("b", 0)
        with pytest.raises(PromptCancelledError):
            queue.admit("c", 0, cancelled=True)
    assert queue.get("b") is None
    assert queue.get("c") is None
    assert len(queue) == 1


def test_one_prompt_runs_at_a_time_in_admission_order() -> None:
    queue = PromptQueue("s", 5)
    prompts = [queue.admit(name, 0) for name in "abc"]
    assert [prompt.queued_at_admission for prompt in prompts] == [False, True, True]
    for prompt in prompts:
        assert queue.start_next() is prompt
        assert queue.running is prompt
        assert queue.start_next() is None
        assert queue.settle(prompt, Outcome.COMPLETED)
        assert queue.running is None
    assert queue.start_next() is None


@pytest.mark.parametrize("outcome", Outcome, ids=lambda outcome: outcome.value)
def test_a_prompt_settles_once_and_its_slot_is_free_at_once(outcome: Outcome) -> None:
    """S3, S7."""
    queue = PromptQueue("s", 1)
    prompt = queue.admit("a", 0)
    queue.start_next()
    assert queue.settle(prompt, outcome)
    assert prompt.state is PromptState.SETTLED
    for other in Outcome:
        assert not queue.settle(prompt, other)
    assert prompt.outcome is outcome
    queue.admit("b", 0)


def test_a_queued_prompt_can_settle_before_its_turn() -> None:
    """S3: removal and deadline free the slot of a prompt that never ran."""
    queue = PromptQueue("s", 2)
    first, second = queue.admit("a", 0), queue.admit("b", 0)
    queue.start_next()
    assert queue.settle(second, Outcome.CANCELLED)
    assert queue.running is first
    third = queue.admit("c", 0)
    queue.settle(first, Outcome.COMPLETED)
    assert queue.start_next() is third


def test_a_failure_does_not_poison_the_queue() -> None:
    queue = PromptQueue("s", 5)
    first, second = queue.admit("a", 0), queue.admit("b", 0)
    queue.start_next()
    queue.settle(first, Outcome.FAILED)
    assert queue.start_next() is second


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.booleans()),
        st.tuples(st.just("start"), st.just(value=False)),
        st.tuples(st.just("settle"), st.integers(0, 40)),
    ),
    max_size=60,
)


@given(limit=st.integers(0, 4), actions=ACTIONS)
def test_the_limit_holds_whatever_happens(limit: int, actions: list[tuple[str, int]]) -> None:
    queue = PromptQueue("s", limit)
    admitted, settled, started = list[Prompt](), set[str](), list[str]()
    for number, (action, argument) in enumerate(actions):
        pending = len(admitted) - len(settled)
        if action == "admit":
            expected = PromptCancelledError if argument else PromptQueueFullError if pending == limit > 0 else None
            if expected is None:
                admitted.append(queue.admit(str(number), number))
            else:
                with pytest.raises(expected):
                    queue.admit(str(number), number, cancelled=bool(argument))
        elif action == "start":
            prompt = queue.start_next()
            if prompt is not None:
                started.append(prompt.id)
        elif argument < len(admitted):
            prompt = admitted[argument]
            assert queue.settle(prompt, Outcome.COMPLETED) == (prompt.id not in settled)
            settled.add(prompt.id)
        assert not limit or len(queue) <= limit
        assert [p.id for p in queue.pending] == [p.id for p in admitted if p.id not in settled]
        assert sum(p.state is PromptState.RUNNING for p in queue.pending) == (queue.running is not None)
    assert started == sorted(started, key=int), "turns come in admission order"
