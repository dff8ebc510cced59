"""No request with a shape that Triton would make room for, and die of, gets past, however large or odd it is.

That Triton does die of them, and says the same to others, is held against a real one in `tests/e2e/test_fatal.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.triton.hugeshapes import ARRAYS_MAX, READ_BYTES_MAX, find_fatal_shape, shapes_in

if TYPE_CHECKING:
    from collections.abc import Callable

    Draw = Callable[[st.SearchStrategy[Any]], Any]


class _Pairs(list[tuple[str, Any]]):
    """An object, in which a key may occur more than once."""


SPACE = st.text(" \t\n\r", max_size=3)
SCALARS = st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats(allow_nan=False) | st.text(max_size=5)
KEYS = st.sampled_from(["shape", 'x"shape', "shape\\", "reshape", "data", "", '"shape":[7]'])
ARRAYS = st.lists(st.integers(0, 2**66), max_size=6)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | ARRAYS | st.sampled_from(['"shape":[7]', '\\"shape":[7]', "shape", '"']),
    lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(KEYS, inner), max_size=4).map(_Pairs),
    max_leaves=12,
)
HUGE = 2**40


def spelled(text: str, draw: Draw) -> str:
    """A JSON string, some of whose letters are written as escapes."""
    plain: str = json.dumps(text, ensure_ascii=draw(st.booleans()))
    escaped = draw(st.sets(st.sampled_from("shape")))
    if "\\u" in plain:
        return plain  # the letters of an escape are none of the text
    return "".join(f"\\u{ord(letter):04x}" if letter in escaped else letter for letter in plain)


def written(value: Any, draw: Draw) -> str:
    """The value in JSON, with spaces wherever there may be some."""
    before, behind = draw(SPACE), draw(SPACE)
    if isinstance(value, _Pairs):
        members = [f"{draw(SPACE)}{spelled(key, draw)}{draw(SPACE)}:{written(each, draw)}" for key, each in value]
        return f"{before}{{{','.join(members)}{draw(SPACE)}}}{behind}"
    if isinstance(value, list):
        return f"{before}[{','.join(written(each, draw) for each in value)}{draw(SPACE)}]{behind}"
    return f"{before}{spelled(value, draw) if isinstance(value, str) else json.dumps(value)}{behind}"


def shapes_by_parsing(text: str) -> list[tuple[int, ...]]:
    found = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            if key == "shape" and isinstance(value, list) and all(type(each) is int and each >= 0 for each in value):
                found.append(tuple(value))

    json.loads(text, object_pairs_hook=look)
    return found


@given(data=st.data(), value=VALUES)
def test_the_bytes_tell_the_same_shapes_as_parsing_does(data: st.DataObject, value: Any) -> None:
    text = written(value, data.draw)
    assert sorted(shapes_in(text.encode()) or []) == sorted(shapes_by_parsing(text))
    assert shapes_in(memoryview(text.encode())) == shapes_in(text.encode())


@given(text=st.binary(max_size=200) | st.text('"shape:[]{}\\ 0129,', max_size=60).map(str.encode))
def test_nothing_makes_it_fail(text: bytes) -> None:
    shapes_in(text)
    find_fatal_shape(text, body_bytes=len(text))


def tensor(shape: Any = [HUGE], **more: Any) -> dict[str, Any]:  # noqa: B006  # nobody changes it
    return {"name": "X", "datatype": "INT32", "shape": shape, "data": [0], **more}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in tensor().items() if key != name}


def status_of(document: Any, *, pad: int = 0, behind: int = 0) -> int | None:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    text = text.replace(b'"data": [0', b'"data": [0' + b",0" * pad)
    fault = find_fatal_shape(text, body_bytes=len(text) + behind)
    return fault.status if fault is not None else None


PADS = pytest.mark.parametrize("pad", [0, 20_000], ids=["small", "large"])
BROKEN: list[Any] = [{"name": 5}, "data", None, {"inputs": 1}, 7]


@PADS
@pytest.mark.parametrize(
    "document",
    [
        {"inputs": [tensor()]},
        {"inputs": [tensor([5, HUGE])]},
        {"inputs": [tensor([2**64 - 1, 2**64 - HUGE])]},  # Triton's product of them is 2**40
        {"inputs": [tensor(datatype=None)]},
        {"inputs": [without("datatype")]},
        {"inputs": [tensor(parameters={"foo": 1})]},
        {"inputs": [tensor(parameters={"shared_memory_region": "r"})]},
        {"inputs": [tensor([1]), tensor()]},
        {"inputs": [tensor([30_000, 30_000])]},
        *({"inputs": [tensor(), each]} for each in BROKEN),
        *({"inputs": [each, tensor()]} for each in BROKEN),
    ],
)
def test_room_that_no_data_could_fill_is_refused(document: Any, pad: int) -> None:
    assert status_of(document, pad=pad) == 500


@PADS
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"shape"', b'"sh\\u0061pe"'),
        (b'"shape"', b'"\\u0073\\u0068\\u0061\\u0070\\u0065"'),
        (b'"data"', b'"d\\u0061ta"'),
        (b'"inputs"', b'"\\u0069nputs"'),
        (b'"shape": ', b'"shape"\n\t \r:\r\n\t '),
        (b'"shape": ', b'"shape":'),
        (b'"shape"', b'"shape": [1099511627776], "shape"'),
        (b'"data"', b'"shape": [1], "shape": [2], "data"'),
        (b'"inputs"', b'"a": 1, "a": NaN, "inputs"'),
        (b'"inputs"', b'"a\\u0000": 1, "inputs"'),
        (b'"inputs"', b'"x\\"shape": ["shape", 1], "inputs"'),
        (b'"name"', b'"x\\"shape": [{"y": 1}], "name"'),
        (b"[1099511627776]", b"[ 1 ,\n5,1099511627776 ]"),
    ],
)
def test_no_spelling_of_json_goes_around_it(old: bytes, new: bytes, pad: int) -> None:
    text = json.dumps({"inputs": [tensor()]}).encode()
    assert text.count(old) == 1
    assert status_of(text.replace(old, new), pad=pad) in {400, 500}


@PADS
@pytest.mark.parametrize(
    "document",
    [
        {"inputs": [tensor([1])]},
        {"inputs": [tensor([0, HUGE])]},  # no room at all
        {"inputs": [tensor([-1, HUGE])]},  # the rest is no shape for Triton, which says so
        {"inputs": [tensor([1.5, HUGE])]},
        {"inputs": [tensor(["1", HUGE])]},
        {"inputs": [tensor([[HUGE]])]},
        {"inputs": [tensor(datatype="BYTES")]},  # Triton counts the texts
        {"inputs": [without("data")]},
        {"inputs": [{**without("data"), "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}}]},
        {"inputs": [tensor([1])], "outputs": [{"name": "Y", "shape": [HUGE]}]},
        {"inputs": [tensor([1])], "shape": [HUGE], "data": [0]},
        {"inputs": None, "shape": [HUGE]} | {"inputs": []},
        {"shape": [HUGE]},
        {"shape": [HUGE], "inputs": [tensor([HUGE, "1"]), tensor([-1, -HUGE]), tensor(5)]},
    ],
)
def test_what_triton_makes_no_room_for_passes(document: Any, pad: int) -> None:
    assert status_of(document, pad=pad) is None


def test_the_first_of_a_key_that_is_given_twice_counts_as_for_triton() -> None:
    text = json.dumps({"inputs": [tensor()]}).encode()
    assert status_of(text.replace(b'"shape"', b'"shape": [1], "shape"')) is None


def test_a_binary_tensor_fills_its_shape_with_what_is_behind_the_json() -> None:
    document = {"inputs": [tensor([3, 1024, 1024]) | {"parameters": {"binary_data_size": 12 * 2**20}}]}
    del document["inputs"][0]["data"]
    assert status_of(document, behind=12 * 2**20) is None
    assert status_of({"inputs": [tensor([1_000_000])]}, behind=0) == 500


def test_the_bound_is_the_length_of_the_request() -> None:
    """An element in JSON takes two bytes, a binary one takes one: so no good request comes near it."""
    text = json.dumps({"inputs": [tensor([1000])]}).encode()
    assert find_fatal_shape(text, body_bytes=1000) is None
    assert find_fatal_shape(text, body_bytes=999) is not None


def test_a_shape_within_another_is_found() -> None:
    assert shapes_in(b'{"shape":[{"shape":[7]},"shape",{"shape":[8,9]}]}') == [(7,), (8, 9)]
    assert shapes_in(b'{"x\\"shape":[{"shape":[1]}]}') == [(1,)]


def test_a_longer_key_that_ends_like_it_is_another() -> None:
    assert shapes_in(b'{"x\\"shape":[5],"xshape":[6],"shape\\"":[7]}') == []


def test_where_it_is_not_clear_it_is_refused_and_says_why() -> None:
    """The price of not parsing large JSON: texts, and beside them a tensor in shared memory that is larger than all."""
    shared = {"name": "S", "datatype": "FP32", "shape": [2**24], "parameters": {"shared_memory_region": "r"}}
    texts = {"name": "T", "datatype": "BYTES", "shape": [1], "data": ["x" * READ_BYTES_MAX]}
    clear = json.dumps({"inputs": [shared], "more": 0}).encode()
    long = json.dumps({"inputs": [shared, texts]}).encode()
    deep = clear.replace(b"0}", b"[" * 9_999 + b"]" * 9_999 + b"}")
    assert find_fatal_shape(clear, body_bytes=len(clear)) is None
    for text in (long, deep, b"{" + clear, clear.replace(b"{", b"[", 1)):
        fault = find_fatal_shape(text, body_bytes=len(text))
        assert fault is not None
        assert fault.status == 400
        assert "too large or too unclear to see whether its data are in shared memory" in fault.sentence


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs":[%s]}' % b",".join([b'{"shape":[1]}'] * (ARRAYS_MAX + 1)),
        b'{"shape":[%s]}' % b",".join([b"1"] * 500),
        b'{"shape":[%s' % (b"1," * 500),
    ],
)
def test_more_or_longer_shapes_than_any_model_has_are_not_gone_through(text: bytes) -> None:
    assert shapes_in(text) is None
    assert find_fatal_shape(text, body_bytes=len(text)) is None or text.endswith(b",")


def test_a_flood_of_words_is_not_gone_through() -> None:
    flood = b'{"a":[%s],"inputs":[{"shape":[1099511627776],"data":[0]}]}' % b",".join([b'"data"'] * (ARRAYS_MAX + 1))
    assert status_of(flood) == 400
