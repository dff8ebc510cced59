"""The SSE parser: the HTML standard's rules, wherever the bytes are cut."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.client import SseFrame, SseFramingError, SseParser

ENDS = ("\n", "\r", "\r\n")


def parse(data: bytes, *, step: int | None = None, end: bool = False) -> list[SseFrame]:
    """All frames of a stream that comes in pieces of `step` bytes."""
    parser = SseParser()
    frames = []
    for start in range(0, len(data), step or len(data) or 1):
        frames += parser.feed(data[start : start + (step or len(data))])
    last = parser.end() if end else None
    return frames + ([last] if last is not None else [])


@pytest.mark.parametrize("step", [1, 2, 3, 7, None])
@pytest.mark.parametrize("end", ENDS)
def test_every_line_end_and_every_cut_give_the_same(end: str, step: int | None) -> None:
    text = ": comment||retry: 3000||id: 7|event: turn|data: {|data:  é|data:}|unknown: x|junk||data|||data: end||"
    expected = [SseFrame("{\n é\n}", "turn", "7"), SseFrame(""), SseFrame("end")]
    assert parse(text.replace("|", end).encode(), step=step) == expected


def test_a_byte_order_mark_counts_only_at_the_beginning() -> None:
    mark = "\ufeff".encode()
    for step in (1, 2, None):
        assert parse(mark + b"data: a\n\n", step=step) == [SseFrame("a")]
    assert parse(b"data: a\n\n" + mark + b"data: b\n\n") == [SseFrame("a")]


def test_an_event_without_its_blank_line_comes_at_the_end_only() -> None:
    assert parse(b"data: a") == []
    assert parse(b"data: a", end=True) == parse(b"data: a\n", end=True) == [SseFrame("a")]
    assert parse(b"data: a\n\n", end=True) == [SseFrame("a")]
    assert parse(b"id: 4\nevent: x", end=True) == []


def test_an_id_with_a_nul_and_bytes_that_are_no_text_do_no_harm() -> None:
    assert parse(b"id: 1\x002\ndata: \xff\n\n") == [SseFrame("\ufffd")]


def test_the_size_of_one_event_is_bounded_and_that_of_a_stream_is_not() -> None:
    parser = SseParser(max_bytes=100)
    for _ in range(100):
        assert len(parser.feed(b"data: " + b"x" * 80 + b"\n\n")) == 1
    with pytest.raises(SseFramingError):
        parser.feed(b"x" * 101)
    parser = SseParser(max_bytes=100)
    for _ in range(2):
        assert parser.feed(b"data: " + b"x" * 40 + b"\n") == []
    with pytest.raises(SseFramingError):
        parser.feed(b"data: " + b"x" * 40 + b"\n")
    with pytest.raises(SseFramingError):
        SseParser(max_bytes=100).feed(b"data: " + b"x" * 101 + b"\n\n")


def test_a_large_event_byte_by_byte_takes_no_quadratic_time() -> None:
    data = b"data: " + b"x" * 300_000 + b"\n\n"
    parser = SseParser()
    begun = time.perf_counter()
    frames = [frame for byte in data for frame in parser.feed(bytes([byte]))]
    assert len(frames) == 1
    assert time.perf_counter() - begun < 10  # well under a second; quadratic time would take hours


@given(
    events=st.lists(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), min_size=1)),
    # Not LF together with CR: a CR before an empty line that LF ends would be one line end, not two.
    ends=st.lists(st.sampled_from(ENDS[1:]), min_size=1) | st.lists(st.sampled_from(ENDS[::2]), min_size=1),
    cuts=st.lists(st.integers(min_value=0, max_value=400)),
)
def test_whatever_is_encoded_is_decoded(events: list[list[str]], ends: list[str], cuts: list[int]) -> None:
    lines = [line for event in events for line in [*(f"data: {text}" for text in event), ""]]
    data = "".join(line + ends[number % len(ends)] for number, line in enumerate(lines)).encode()
    parser, frames, at = SseParser(), [], 0
    for cut in sorted(cuts):
        frames += parser.feed(data[at:cut])
        at = max(at, cut)
    frames += parser.feed(data[at:])
    assert [frame.data for frame in frames] == ["\n".join(event) for event in events]
