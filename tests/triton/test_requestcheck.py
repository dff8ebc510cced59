"""Reading a request's JSON cheaply: the numbers of tensors are left out, and nothing else is changed (D5).

That refusals are Triton's own is held against a real one in `tests/e2e/test_v2_check.py`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.triton.metadata import ModelFacts, TensorFacts
from governor.triton.outcomes import CallKind
from governor.triton.requestcheck import CHECKED_BYTES_MAX, RequestHead, find_fault, read_document, read_exactly

TENSOR = {"name": "data", "shape": [1, 2], "datatype": "FP32"}


@pytest.mark.parametrize(
    "document",
    [
        {"inputs": [{**TENSOR, "data": [1, -2.5e-3]}]},
        {"inputs": [{"data": [[1], [2]], **TENSOR}, {**TENSOR, "data": [[[True, None]]]}]},
        {"inputs": [{**TENSOR, "data": []}], "outputs": [{"name": "data"}], "id": 'a "data": [1] b'},
        {"inputs": [{**TENSOR, "data": 5}, {**TENSOR, "data": {}}], "parameters": {"data": [7]}},
        {"data": [1], "more": [["x"], [1, [2]]], "last": [3]},
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (" ,\n", "\t: ")])
def test_only_the_numbers_are_left_out(document: dict[str, Any], separators: tuple[str, str]) -> None:
    def without_numbers(value: Any) -> Any:
        if isinstance(value, list):
            return [without_numbers(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            key: [] if key == "data" and isinstance(each, list) else without_numbers(each)
            for key, each in value.items()
        }

    text = json.dumps(document, separators=separators).encode()
    assert read_document(text) == without_numbers(document)
    assert read_exactly(text) == document


@pytest.mark.parametrize("data", [["a", "]"], ["}", '"data":[1]'], [["x"], ["y"]], ["", "[1]"]])
def test_texts_are_kept(data: list[Any]) -> None:
    document = {"inputs": [{**TENSOR, "data": data, "more": [1]}]}
    assert read_document(json.dumps(document).encode()) == document


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"7", b"{", b"\xff{}", b'{"a":"\xc3"}', b'{"data":[1]', b"{}" + b" " * CHECKED_BYTES_MAX, b"[" * 9999],
)
def test_what_cannot_be_read_is_none(text: bytes) -> None:
    assert read_document(text) is None


@pytest.mark.parametrize("text", [b'{"a":1,"a":2}', b'{"a":NaN}', b'{"a":"x\\u0000"}', b'{"b":{"a":1,"a":1}}', b"[]"])
def test_what_triton_may_read_otherwise_is_not_read_exactly(text: bytes) -> None:
    assert read_exactly(text) is None


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ((3, 3), None),
        ((2, 3), "batch size does not match other inputs"),
        ((9, 9), "batch-size must be <= 8"),
        ((0, 3), None),
        ((3, 0), None),
        ((0, 9), None),
        ((0, 0), None),
    ],
)
def test_of_a_batch_of_zero_nothing_is_said(batches: tuple[int, int], said: str | None) -> None:
    """What Triton says of it beside another one depends on the order of its own table of inputs."""
    names = ("X", "Y")
    tensors = tuple(TensorFacts(name, "INT32", (1,)) for name in names)
    facts = ModelFacts("m", False, False, 8, 1, tensors, (), ("1",))
    inputs = [
        {"name": name, "datatype": "INT32", "shape": [batch, 1], "data": [0] * batch}
        for name, batch in zip(names, batches, strict=True)
    ]
    fault = find_fault(RequestHead.of(CallKind.INFER, None, json.dumps({"inputs": inputs}).encode()), facts)
    assert (fault is None) == (said is None)
    assert fault is None or str(said) in fault.sentence
