"""E5, E9: a statistics answer is entirely what Triton promises, or refused with a stable reason."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.counting import Counts
from governor.errors import BackendError
from governor.triton.statistics import (
    MAX_STATISTICS_BYTES,
    ModelCounts,
    ReadingRefusedError,
    Refusal,
    VersionCounts,
    parse_statistics,
)
from tests.triton.peer import UNHURRIED

# As Triton 2.51.0 answers, with the members that nobody reads left out of the second version.
ENTRY: dict[str, Any] = {
    "name": "m",
    "version": "1",
    "last_inference": 1764513604087,
    "inference_count": 12,
    "execution_count": 7,
    "inference_stats": {
        "success": {"count": 5, "ns": 500},
        "fail": {"count": 2, "ns": 20},
        "queue": {"count": 5, "ns": 1},
        "cache_hit": {"count": 0, "ns": 0},
    },
    "response_stats": {},
    "batch_stats": [],
    "memory_usage": [],
}


def entry(**changes: object) -> dict[str, Any]:
    return {**copy.deepcopy(ENTRY), **changes}


def document(*entries: object) -> bytes:
    return json.dumps({"model_stats": list(entries)}).encode()


def changed(path: str, value: object) -> bytes:
    """One entry with one value replaced; `...` removes it."""
    whole = entry()
    *parents, last = path.split(".")
    place = whole
    for parent in parents:
        place = place[parent]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document(whole)


def test_ends_are_s_plus_f_over_all_versions_and_nothing_else() -> None:
    second = entry(version="2", last_inference=9, inference_count=100, execution_count=50)
    second["inference_stats"]["success"] = {"count": 10, "ns": 1}
    other = entry(name="other")
    counts = parse_statistics(document(second, other, ENTRY), "m")
    assert counts == ModelCounts(
        "m",
        (
            VersionCounts("1", 5, 2, 500, 20, 12, 7, 1764513604087),
            VersionCounts("2", 10, 2, 1, 20, 100, 50, 9),
        ),
    )
    assert (counts.success, counts.fail, counts.ends) == (15, 4, 19)
    assert counts.counts == Counts(success=15, fail=4)
    assert counts.life == (501, 40, 112, 57, 1764513604087)


REFUSED = {
    "empty": (b"", Refusal.NOT_JSON),
    "text": (b"<html>", Refusal.NOT_JSON),
    "cut off": (document(ENTRY)[:-1], Refusal.NOT_JSON),
    "not UTF-8": (b'{"model_stats": "\xff"}', Refusal.NOT_JSON),
    "UTF-16": (document(ENTRY).decode().encode("utf-16"), Refusal.NOT_JSON),
    "too deep": (b"[" * 100_000, Refusal.NOT_JSON),
    "NaN": (document(ENTRY).replace(b"500", b"NaN"), Refusal.NOT_JSON),
    "Infinity": (document(ENTRY).replace(b"500", b"Infinity"), Refusal.NOT_JSON),
    "a key twice": (document(ENTRY).replace(b'"ns"', b'"count"'), Refusal.NOT_JSON),
    "a number of 5000 digits": (document(ENTRY).replace(b"500", b"5" * 5000), Refusal.NOT_JSON),
    "a list": (b"[]", Refusal.MALFORMED),
    "a number": (b"7", Refusal.MALFORMED),
    "no model_stats": (b"{}", Refusal.MALFORMED),
    "model_stats is no list": (b'{"model_stats": {}}', Refusal.MALFORMED),
    "an entry is no object": (document(3), Refusal.MALFORMED),
    "an error": (b'{"error": "requested model is not available"}', Refusal.MALFORMED),
    "no model": (document(), Refusal.MODEL_MISSING),
    "another model": (document(entry(name="n")), Refusal.MODEL_MISSING),
    "name missing": (changed("name", ...), Refusal.MALFORMED),
    "name is no text": (changed("name", 3), Refusal.MODEL_MISSING),
    "success missing": (changed("inference_stats.success", ...), Refusal.MALFORMED),
    "count missing": (changed("inference_stats.fail.count", ...), Refusal.MALFORMED),
    "inference_stats is a list": (changed("inference_stats", []), Refusal.MALFORMED),
    "negative": (changed("inference_stats.success.count", -1), Refusal.NEGATIVE),
    "negative time": (changed("last_inference", -1), Refusal.NEGATIVE),
    "huge": (changed("inference_stats.success.count", 2**63 + 1), Refusal.HUGE),
    "float": (changed("inference_stats.success.count", 5.0), Refusal.NOT_AN_INTEGER),
    "exponent": (document(ENTRY).replace(b'"count": 5,', b'"count": 5e0,'), Refusal.NOT_AN_INTEGER),
    "bool": (changed("inference_stats.fail.count", True), Refusal.NOT_AN_INTEGER),
    "null": (changed("inference_stats.fail.count", None), Refusal.NOT_AN_INTEGER),
    "text for a number": (changed("inference_stats.fail.count", "2"), Refusal.NOT_AN_INTEGER),
    "version is a number": (changed("version", 1), Refusal.BAD_VERSION),
    "version is a word": (changed("version", "one"), Refusal.BAD_VERSION),
    "version is empty": (changed("version", ""), Refusal.BAD_VERSION),
    "version in other digits": (changed("version", "\u0661"), Refusal.BAD_VERSION),
    "a version twice": (document(ENTRY, ENTRY), Refusal.DUPLICATE_VERSION),
    "too large": (document(ENTRY).ljust(MAX_STATISTICS_BYTES + 1), Refusal.TOO_LARGE),
}


@pytest.mark.parametrize(("body", "refusal"), REFUSED.values(), ids=REFUSED.keys())
def test_doubtful_statistics_are_refused_with_a_reason(body: bytes, refusal: Refusal) -> None:
    with pytest.raises(ReadingRefusedError) as caught:
        parse_statistics(body, "m")
    assert caught.value.refusal is refusal
    assert caught.value.reason == refusal.value
    assert isinstance(caught.value, BackendError)
    assert len(caught.value.message) < 400


def test_largest_counts_and_a_body_of_exactly_the_limit_are_read() -> None:
    body = changed("inference_stats.success.count", 2**63).ljust(MAX_STATISTICS_BYTES)
    assert parse_statistics(body, "m").success == 2**63


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["model_stats", "name", "version", "inference_stats", "count", "x"]), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@UNHURRIED
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_nothing_but_a_refusal_comes_of_garbage(body: bytes) -> None:
    with suppress(ReadingRefusedError):
        parse_statistics(body, "m")


@UNHURRIED
@given(st.sampled_from(["name", "version", "last_inference", "inference_stats", "inference_stats.success"]), JSON)
def test_nothing_but_a_refusal_comes_of_one_wrong_value(path: str, value: object) -> None:
    with suppress(ReadingRefusedError):
        parse_statistics(changed(path, value), "m")
