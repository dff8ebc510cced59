"""JSON that Triton would die of parsing is told from every other one without parsing it.

What Triton takes is held against a real one in `tests/e2e/test_fatal.py`.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.triton import nesting
from governor.triton.nesting import NESTED_MAX, find_fatal_nesting

STRINGS = st.text('ab"\\[]{}:,\n/é', max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=25,
)
SURE = NESTED_MAX // 2


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        value = [*value.values()]
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def deepest(brackets: bytes) -> int:
    return max(accumulate(1 if each == ord("[") else -1 for each in brackets), default=0)


@given(value=VALUES, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_brackets_in_strings_are_none(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    brackets = nesting._brackets_outside_strings(text)
    assert deepest(brackets) == depth_of(value)
    assert brackets.count(b"[") == brackets.count(b"]") == len(brackets) // 2


def arrays(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    "around",
    [
        lambda text: text,
        lambda text: b'{"inputs":[{"data":' + text + b"}]}",
        lambda text: b'["' + b"]" * 50_000 + b'",' + text + b"]",  # brackets in texts take nothing back
        lambda text: b'["\\"' + b"]" * 50_000 + b'",' + text + b"]",
        lambda text: b'["\\\\","' + b"]" * 50_000 + b'",' + text + b"]",
        lambda text: b"[" + b"[]," * 10_000 + text + b"]",  # nor do arrays beside it
        lambda text: text[: len(text) // 2],  # nor need any of them end
    ],
)
def test_what_is_too_deep_is_found_wherever_it_is(around: Any) -> None:
    assert find_fatal_nesting(around(arrays(NESTED_MAX + 1))) is not None
    assert find_fatal_nesting(memoryview(around(arrays(2 * NESTED_MAX)))) is not None
    objects = around(b'{"a":' * NESTED_MAX * 2 + b"1" + b"}" * NESTED_MAX * 2)
    assert find_fatal_nesting(objects) is not None
    assert find_fatal_nesting(around(arrays(SURE - 5))) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[" * NESTED_MAX,
        b"[" + b"[1,2]," * 100_000 + b"0]",
        b'["' + b"[" * 100_000 + b'"]',
        b'["' + b'\\"[' * 100_000 + b'"]',
        b"[" + b'"[[[[[[[[[[",' * 10_000 + b"0]",
        b"[" + b'"\\\\","[[[[[[[",' * 10_000 + b"0]",
        b"]" * 100_000,
    ],
)
def test_many_brackets_are_not_deep(text: bytes) -> None:
    assert find_fatal_nesting(text) is None


def test_it_says_what_is_wrong() -> None:
    fault = find_fatal_nesting(arrays(100_000))
    assert fault == (400, "The JSON is nested too deeply: more than 4096 arrays and objects in one another")
