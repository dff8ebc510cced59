"""Nothing that reaches a socket can mean more than it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import InvalidRequestError
from governor.triton.wire import WireRequest, model_path, path_of
from tests.triton.peer import UNHURRIED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", "get"),
        ("method", "GET /x HTTP/1.1\r\n"),
        ("method", ""),
        ("path", ""),
        ("path", "v2"),
        ("path", "/a b"),
        ("path", "/a\r\nX: y"),
        ("path", "/a#b"),
        ("path", "/\u00fc"),
        ("path", "/\x7f"),
        ("path", "/" + "x" * 8192),
        ("path", "http://elsewhere/"),
        ("headers", (("X y", "1"),)),
        ("headers", (("", "1"),)),
        ("headers", (("X:", "1"),)),
        ("headers", (("X", "1\r\nY: 2"),)),
        ("headers", (("X", "1\n"),)),
        ("headers", (("X", "\x00"),)),
        ("headers", (("X", "\u0141"),)),
        ("headers", (("hOsT", "elsewhere"),)),
        ("headers", (("Content-Length", "3"),)),
        ("headers", (("Transfer-Encoding", "chunked"),)),
        ("headers", (("Connection", "close"),)),
        ("headers", (("Expect", "100-continue"),)),
    ],
)
def test_request_that_would_change_on_the_wire_is_refused(field: str, value: object) -> None:
    fields: dict[str, object] = {"method": "POST", "path": "/v2", field: value}
    with pytest.raises(InvalidRequestError):
        WireRequest(**fields)  # type: ignore[arg-type]  # one wrong field at a time


def test_reserved_characters_stay_inside_their_segment() -> None:
    assert model_path("a/b?c#d e%2f\u00fc", "1", "infer") == (
        "/v2/models/a%2Fb%3Fc%23d%20e%252f%C3%BC/versions/1/infer"
    )
    assert model_path("m", None) == "/v2/models/m"


@pytest.mark.parametrize("segment", ["", ".", "..", "\ud800"])
def test_segment_that_names_another_path_is_refused(segment: str) -> None:
    with pytest.raises(InvalidRequestError):
        path_of("v2", segment)


@UNHURRIED
@given(st.text(min_size=1))
def test_any_model_name_is_refused_or_stays_one_segment(name: str) -> None:
    try:
        path = model_path(name, None, "infer")
    except InvalidRequestError:
        return
    assert path.count("/") == 4
    WireRequest(method="POST", path=path)
