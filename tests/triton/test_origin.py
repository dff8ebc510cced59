"""Where a lane leads, from its URL."""

from __future__ import annotations

import pytest

from governor.triton.transport import Origin


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://host:8000", (False, "host", 8000, b"host:8000", "")),
        ("https://host", (True, "host", 443, b"host", "")),
        ("http://host/a/b/", (False, "host", 80, b"host", "/a/b")),
        ("http://[::1]:8000", (False, "::1", 8000, b"[::1]:8000", "")),
        ("http://b\xfccher.example", (False, "bücher.example", 80, b"xn--bcher-kva.example", "")),
    ],
)
def test_origin_is_read_from_a_url(url: str, parts: tuple[object, ...]) -> None:
    origin = Origin.parse(url)
    assert (origin.tls, origin.host, origin.port, origin.authority, origin.prefix) == parts


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:8000",
        "ftp://host",
        "http://",
        "http://user:secret@host",
        "http://host?q=1",
        "http://host#f",
        "http://h:x",
    ],
)
def test_url_that_is_no_origin_is_refused_without_repeating_secrets(url: str) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        Origin.parse(url)
    assert "secret" not in str(caught.value)
