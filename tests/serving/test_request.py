"""A request is read the same however it is cut, and a response says itself where it ends."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.hardened.refusals import HEAD_TOO_LARGE, MALFORMED, NO_CODING, UNKNOWN_METHOD, Refusal
from api.hardened.request import RefusedError, RequestReader
from api.hardened.response import ResponseError, ResponseWriter

HEAD_MAX = 1000
PLAIN = b"GET /a?b HTTP/1.1\r\nHost: x\r\nX-Y: z\r\n\r\n"
LENGTH = b"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKS = b"POST /a?b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nT: 1\r\n\r\n"


def read(*pieces: bytes) -> RequestReader:
    reader = RequestReader(HEAD_MAX)
    for piece in pieces:
        reader.feed(piece)
    return reader


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([(PLAIN, b""), (LENGTH, b"hello"), (CHUNKS, b"hello"), (b"\r\n" + LENGTH, b"hello")]),
    st.lists(st.integers(0, 120), max_size=8),
)
def test_wherever_it_is_cut_it_is_the_same_request(given: tuple[bytes, bytes], cuts: list[int]) -> None:
    wire, body = given
    places = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    reader = read(*(wire[start:end] for start, end in pairwise(places)))
    assert (reader.path, b"".join(reader.chunks), reader.complete) == (b"/a?b", body, True)
    assert reader.headers is not None
    assert reader.keep_alive
    assert b"t" not in dict(reader.headers), "trailers are not headers"


@pytest.mark.parametrize("wire", [PLAIN, LENGTH])
def test_what_is_pipelined_behind_a_request_is_given_back(wire: bytes) -> None:
    reader = read(wire + PLAIN[:10])
    assert (reader.complete, reader.keep_alive, reader.rest) == (True, True, PLAIN[:10])


@pytest.mark.parametrize("behind", [PLAIN, b"\x00", b"x"])
def test_what_is_pipelined_behind_chunks_ends_the_connection_with_the_answer(behind: bytes) -> None:
    """The parser took it already; served as the end of this connection, its client sends it again."""
    reader = read(CHUNKS + behind)
    assert (b"".join(reader.chunks), reader.complete, reader.keep_alive) == (b"hello", True, False)


@pytest.mark.parametrize(
    ("wire", "refusal"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", MALFORMED),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", MALFORMED),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", MALFORMED),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1_0\r\n\r\n", MALFORMED),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", MALFORMED),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", NO_CODING),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", MALFORMED),
        (b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", MALFORMED),
        (b"GET / HTTP/1.1\nHost: x\n\r\n\r\n", MALFORMED),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n", MALFORMED),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", MALFORMED),
        (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", MALFORMED),
        (b"FROB / HTTP/1.1\r\nHost: x\r\n\r\n", UNKNOWN_METHOD),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * HEAD_MAX, HEAD_TOO_LARGE),
        (CHUNKS.replace(b"2\r\nhe", b"2\r\nhell"), MALFORMED),
        (CHUNKS.replace(b"2\r\nhe", b"+2\r\nhe"), MALFORMED),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(wire: bytes, refusal: Refusal) -> None:
    """Each of these is a way to smuggle a request past whoever reads it the other way."""
    with pytest.raises(RefusedError) as caught:
        read(wire)
    assert caught.value.refusal is refusal


def written(method: bytes, version: bytes, headers: list[tuple[bytes, bytes]], *pieces: bytes) -> tuple[bytes, bool]:
    """The response as it goes over the wire, and whether the connection may carry another."""
    writer = ResponseWriter(method=method, version=version)
    wire = writer.head(200, headers, [])
    for number, piece in enumerate(pieces, 1):
        wire += b"".join(writer.body(piece, more=number < len(pieces)))
    assert writer.complete
    return wire, writer.keep_alive


@pytest.mark.parametrize(
    ("method", "version", "headers", "end", "keep_alive"),
    [
        (b"GET", b"1.1", [(b"content-length", b"4")], b"content-length: 4\r\n\r\nabcd", True),
        (b"GET", b"1.1", [], b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n", True),
        (b"GET", b"1.0", [], b"connection: close\r\n\r\nabcd", False),
        (b"HEAD", b"1.1", [(b"content-length", b"4")], b"content-length: 4\r\n\r\n", True),
        (b"GET", b"1.1", [(b"content-length", b"4"), (b"connection", b"close")], b"close\r\n\r\nabcd", False),
    ],
)
def test_a_response_says_where_it_ends(
    method: bytes, version: bytes, headers: list[tuple[bytes, bytes]], end: bytes, *, keep_alive: bool
) -> None:
    wire, another = written(method, version, headers, b"ab", b"cd")
    assert wire.startswith(b"HTTP/1.1 200 OK\r\n")
    assert wire.endswith(end)
    assert another is keep_alive


@pytest.mark.parametrize("header", [(b"x", b"a\r\nSet-Cookie: b"), (b"x\r\ny", b"z"), (b"x y", b"z"), (b"x", b"\x00")])
def test_a_header_cannot_break_out_of_its_line(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(ResponseError, match="cannot be sent"):
        written(b"GET", b"1.1", [header], b"")


@pytest.mark.parametrize("pieces", [(b"abc",), (b"abcde",), (b"ab", b"")])
def test_a_body_is_as_long_as_was_said(pieces: tuple[bytes, ...]) -> None:
    """Else its client would wait for more, or take the rest for the next answer."""
    with pytest.raises(ResponseError, match="Content-Length"):
        written(b"GET", b"1.1", [(b"content-length", b"4")], *pieces)
