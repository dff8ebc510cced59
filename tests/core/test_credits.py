"""Who gets the next slot credit (A6)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.credits import CreditQueue, WaitersFullError


def drain(queue: CreditQueue[int]) -> list[int]:
    out: list[int] = []
    while (waiter := queue.pop()) is not None:
        out.append(waiter)
    return out


def test_an_empty_queue_has_nobody() -> None:
    queue = CreditQueue[int](3)
    assert queue.pop() is None
    assert len(queue) == 0


def test_waiters_of_one_key_are_served_in_order() -> None:
    queue = CreditQueue[int](9)
    for waiter in range(5):
        queue.push("a", waiter)
    assert drain(queue) == [0, 1, 2, 3, 4]


def test_keys_are_served_in_turn() -> None:
    queue = CreditQueue[int](9)
    for waiter in (1, 2, 3):
        queue.push("a", waiter)
    for waiter in (10, 11):
        queue.push("b", waiter)
    queue.push("c", 20)
    assert drain(queue) == [1, 10, 20, 2, 11, 3]


def test_a_key_with_a_thousand_waiters_delays_the_others_by_one_turn() -> None:
    queue = CreditQueue[int](2000)
    for waiter in range(1000):
        queue.push("greedy", waiter)
    queue.push("modest", -1)
    assert [queue.pop(), queue.pop()] == [0, -1]


def test_a_full_queue_refuses_and_stays_as_it_is() -> None:
    queue = CreditQueue[int](2)
    queue.push("a", 1)
    queue.push("b", 2)
    with pytest.raises(WaitersFullError):
        queue.push("c", 3)
    assert len(queue) == 2
    assert drain(queue) == [1, 2]
    queue.push("c", 3)


def test_a_queue_of_no_length_refuses_everybody() -> None:
    with pytest.raises(WaitersFullError):
        CreditQueue[int](0).push("a", 1)


def test_a_discarded_waiter_is_gone_wherever_it_stood() -> None:
    queue = CreditQueue[int](9)
    for waiter in (1, 2, 3):
        queue.push("a", waiter)
    queue.push("b", 4)
    assert queue.discard("a", 2)
    assert queue.discard("b", 4)
    assert len(queue) == 2
    assert drain(queue) == [1, 3]


@pytest.mark.parametrize(("key", "waiter"), [("a", 9), ("b", 1), ("none", 1)])
def test_discarding_somebody_who_does_not_wait_changes_nothing(key: str, waiter: int) -> None:
    queue = CreditQueue[int](9)
    queue.push("a", 1)
    queue.push("b", 2)
    assert not queue.discard(key, waiter)
    assert drain(queue) == [1, 2]


def test_a_waiter_is_discarded_once() -> None:
    queue = CreditQueue[int](9)
    queue.push("a", 1)
    assert queue.discard("a", 1)
    assert not queue.discard("a", 1)
    assert not queue.discard("a", 1)
    assert len(queue) == 0


def test_who_floods_a_full_queue_gives_way_to_others_until_all_have_as_many() -> None:
    queue = CreditQueue[int](6)
    for waiter in range(6):
        queue.push("greedy", waiter)
    with pytest.raises(WaitersFullError):
        queue.push("greedy", 6)
    assert queue.push("a", 10) == 5, "the newest one, which has waited least"
    assert queue.push("b", 20) == 4
    assert queue.push("a", 11) == 3
    with pytest.raises(WaitersFullError):
        queue.push("a", 12)
    assert queue.push("c", 30) == 2
    with pytest.raises(WaitersFullError):
        queue.push("b", 21)
    assert len(queue) == 6
    assert drain(queue) == [0, 10, 20, 30, 1, 11]


def test_an_only_waiter_never_gives_way() -> None:
    queue = CreditQueue[int](3)
    for number, key in enumerate("abc"):
        queue.push(key, number)
    with pytest.raises(WaitersFullError):
        queue.push("d", 3)


def pushed(queue: CreditQueue[int], waiting: list[tuple[str, int]], limit: int, key: str, number: int) -> None:
    """Pushes, and holds the outcome against a plain list of all waiters, which is changed accordingly."""
    counts = {each: sum(which == each for which, _ in waiting) for each in [key, *(which for which, _ in waiting)]}
    longest = max(counts.values())
    assert queue.is_full_for(key) == (len(waiting) >= limit and longest < counts[key] + 2)
    if len(waiting) < limit:
        assert queue.push(key, number) is None
    elif longest < counts[key] + 2:
        with pytest.raises(WaitersFullError):
            queue.push(key, number)
        return
    else:
        gave_way = queue.push(key, number)
        which = next(each for each, waiter in waiting if waiter == gave_way)
        assert counts[which] == longest, "of the longest key"
        assert gave_way == [waiter for each, waiter in waiting if each == which][-1], "its newest"
        waiting.remove((which, gave_way))
    waiting.append((key, number))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 3)),
        st.tuples(st.just("pop"), st.just(0)),
        st.tuples(st.just("discard"), st.integers(0, 30)),
    ),
    max_size=80,
)


@given(ACTIONS)
def test_everybody_is_served_once_in_order_and_nobody_is_overtaken_twice(actions: list[tuple[str, int]]) -> None:
    """Against a plain list: while somebody is first of its key, no other key is served twice (bounded overtaking)."""
    queue, waiting = CreditQueue[int](12), list[tuple[str, int]]()
    served_since: dict[int, list[str]] = {}
    for number, (action, argument) in enumerate(actions):
        if action == "push":
            pushed(queue, waiting, 12, f"k{argument}", number)
        elif action == "discard":
            found = next((pair for pair in waiting if pair[1] == argument), None)
            assert queue.discard(found[0] if found else "k0", argument) == (found is not None)
            if found:
                waiting.remove(found)
        elif not waiting:
            assert queue.pop() is None
        else:
            waiter = queue.pop()
            key = next(key for key, other in waiting if other == waiter)
            keys = dict.fromkeys(key for key, _ in waiting)
            heads = [next(other for which, other in waiting if which == each) for each in keys]
            assert waiter in heads, "the first of its key"
            waiting.remove((key, waiter))
            for head in heads:
                if head != waiter:
                    passed = served_since.setdefault(head, [])
                    passed.append(key)
                    assert passed.count(key) <= 1, "overtaken twice by one key"
        assert len(queue) == len(waiting)


@settings(deadline=None)
@given(ACTIONS, st.integers(0, 6))
def test_the_next_one_is_who_a_walk_round_the_keys_would_find(actions: list[tuple[str, int]], limit: int) -> None:
    """Against the dumbest queue there is: one list of all waiters and one of the keys, in the order of their turns."""
    queue, waiting, turns = CreditQueue[int](limit), list[tuple[str, int]](), list[str]()
    for number, (action, argument) in enumerate(actions):
        if action == "push":
            pushed(queue, waiting, limit, f"k{argument}", number)
        elif action == "discard":
            key = next((key for key, waiter in waiting if waiter == argument), "k0")
            assert queue.discard(key, argument) == ((key, argument) in waiting)
            waiting = [pair for pair in waiting if pair != (key, argument)]
        else:
            expected = next((pair for key in turns for pair in waiting if pair[0] == key), None)
            assert queue.pop() == (expected[1] if expected else None)
            if expected:
                waiting.remove(expected)
                turns.remove(expected[0])
        # A key that lost its last waiter loses its turn; one that is new, or has just been served, is last.
        present = list(dict.fromkeys(key for key, _ in waiting))
        turns = [key for key in turns if key in present] + [key for key in present if key not in turns]
        assert len(queue) == len(waiting)
