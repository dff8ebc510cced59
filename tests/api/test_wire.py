"""Decoding is total: whatever comes in is a typed request or an error with a code (A9)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.wire import (
    decode_client_id,
    decode_create,
    decode_cursor,
    decode_epoch,
    decode_max_queued,
    decode_object,
    decode_prompt,
)
from governor.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.errors import JsonValue

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | st.text(max_size=8)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))
KEYS = ["prompt", "deadlineMs", "eventDetailMode", "sessionScope", "sessionId", "cwd", "modelServiceId", "type", "text"]
blocks = st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=8)}) | values
bodies = st.dictionaries(st.sampled_from(KEYS), values | st.lists(blocks, min_size=1, max_size=3))


def error_of(decode: Callable[[], object]) -> CallerError | None:
    """What was wrong; None when nothing was."""
    try:
        decode()
    except CallerError as error:
        return error
    return None


@given(content_type=st.sampled_from([None, "", "application/json", "text/plain", "x/y+json"]), body=st.binary())
def test_any_bytes_are_an_object_or_invalid_json(content_type: str | None, body: bytes) -> None:
    error = error_of(lambda: decode_object(content_type, body))
    assert error is None or error.code == "invalid_json"


@given(value=values)
def test_any_json_value_is_itself_or_an_empty_object(value: JsonValue) -> None:
    decoded = decode_object("application/json", json.dumps(value).encode())
    assert decoded == (value if isinstance(value, dict) else {})


@given(body=bodies)
def test_any_object_is_a_request_or_a_4xx(body: dict[str, Any]) -> None:
    for error in (
        error_of(lambda: decode_create(body)),
        error_of(lambda: decode_prompt(body, max_prompt_bytes=10)),
    ):
        assert error is None or 400 <= error.status < 500
        assert error is None or error.code != CallerError.code, "the code says what is wrong"


@given(texts=st.lists(st.text(alphabet=st.characters(exclude_characters="\x00", codec="utf-8")), min_size=1))
def test_a_text_prompt_is_its_blocks_joined(texts: list[str]) -> None:
    body: dict[str, JsonValue] = {"prompt": [{"type": "text", "text": text} for text in texts], "deadlineMs": 5}
    request = decode_prompt(body, max_prompt_bytes=10**6)
    assert request.text == "\n".join(texts)
    assert request.deadline_ms == 5


@given(value=st.integers(0, 2**53 - 1))
def test_a_cursor_is_any_number_that_a_client_can_hold(value: int) -> None:
    assert decode_cursor(str(value)) == value


@given(value=st.text())
def test_any_header_is_a_value_or_none_or_a_400(value: str) -> None:
    cursor, epoch = decode_cursor(value), decode_epoch(value)
    assert cursor is None or 0 <= cursor < 2**53
    assert epoch in {None, value}
    for error in (error_of(lambda: decode_client_id(value)), error_of(lambda: decode_max_queued([value]))):
        assert error is None or error.status == 400


@pytest.mark.parametrize(("value", "expected"), [("16", 16), ("2048", 2048), ("0016", 16)])
def test_max_queued_is_a_decimal_in_its_range(value: str, expected: int) -> None:
    assert decode_max_queued([value]) == expected
    assert decode_max_queued(["17", value]) == expected
    assert decode_max_queued([]) is None
