"""An answer is read the same however it is cut, and its end is known to the byte."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.triton.parser import AnswerParser, NotHttpError
from tests.triton.peer import UNHURRIED

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\nhello"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nT: 1\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
BODY = b"hello"


def parsed(*pieces: bytes, bodiless: bool = False) -> AnswerParser:
    parser = AnswerParser(bodiless=bodiless)
    for piece in pieces:
        parser.feed(piece)
    return parser


@UNHURRIED
@given(st.sampled_from([LENGTH, CHUNKS, INTERIM + LENGTH, INTERIM + CHUNKS]), st.lists(st.integers(0, 120), max_size=8))
def test_wherever_it_is_cut_it_is_the_same_answer(wire: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    pieces = [wire[start:end] for start, end in pairwise(places)]
    parser = AnswerParser()
    for piece in pieces[:-1]:
        parser.feed(piece)
    assert not parser.complete or not pieces[-1]
    parser.feed(pieces[-1])
    assert (parser.status, b"".join(parser.chunks), parser.complete) == (200, BODY, True)
    assert parser.framed
    assert parser.reusable
    assert "Link" not in dict(parser.headers), "an interim answer's fields are not the answer's"
    assert "T" not in dict(parser.headers), "trailers are not headers"


@pytest.mark.parametrize("together", [True, False], ids=["one piece", "two pieces"])
@pytest.mark.parametrize("wire", [LENGTH, CHUNKS], ids=["length", "chunks"])
@pytest.mark.parametrize("behind", [b"x", LENGTH, CHUNKS, b"HTTP/1.1 2", b"\x00"])
def test_what_comes_behind_an_answer_ends_the_use_of_its_connection(
    wire: bytes, behind: bytes, *, together: bool
) -> None:
    parser = parsed(wire + behind) if together else parsed(wire, behind)
    assert (b"".join(parser.chunks), parser.complete, parser.reusable) == (BODY, True, False)


@pytest.mark.parametrize(
    ("head", "bodiless", "reusable"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", False, True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", False, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", True, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False, False),
    ],
)
def test_an_answer_without_a_body_is_complete_with_its_head(head: bytes, *, bodiless: bool, reusable: bool) -> None:
    parser = parsed(head, bodiless=bodiless)
    assert (parser.complete, parser.reusable, [*parser.chunks]) == (True, reusable, [])


def test_a_body_that_ends_by_closing_never_becomes_complete() -> None:
    parser = parsed(b"HTTP/1.1 200 OK\r\n\r\n", b"some", b"thing")
    assert (b"".join(parser.chunks), parser.complete, parser.framed) == (b"something", False, False)


@pytest.mark.parametrize(
    "wire",
    [
        b"hello",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        CHUNKS.replace(b"2\r\nhe", b"-2\r\nhe"),
        CHUNKS.replace(b"2\r\nhe\r\n", b"2\r\nheX\r\n"),
    ],
)
def test_what_could_be_read_in_two_ways_is_no_answer(wire: bytes) -> None:
    with pytest.raises(NotHttpError):
        parsed(wire)
