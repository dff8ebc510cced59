"""E7: what the process counted, read exactly or refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.counting import Counts
from governor.triton.metrics import MAX_METRICS_BYTES, parse_process_counts, parse_process_ends
from governor.triton.statistics import ReadingRefusedError, Refusal
from tests.triton.peer import UNHURRIED

METRICS = rb"""# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="sleep",version="1"} 5
nv_inference_request_success{model="sleep",version="2"} 7
nv_inference_request_success{model="sleep_q",version="1"} 1000
nv_inference_request_failure{model="sleep",reason="CANCELED",version="1"} 1
nv_inference_request_failure{model="sleep",reason="BACKEND",version="1"} 2
nv_inference_request_failure{model="sleep",reason="BACKEND",version="2"} 4
nv_inference_count{model="sleep",version="1"} 999
nv_inference_request_summary_us_count{model="sleep",version="1"} NaN
nv_cpu_utilization 0.3
"""


def test_success_and_every_kind_of_failure_are_added_up_over_versions() -> None:
    assert parse_process_counts(METRICS, "sleep") == Counts(success=12, fail=7)
    assert parse_process_ends(METRICS, "sleep") == 19


TWO_DEVICES = b"""
nv_inference_request_success{gpu_uuid="GPU-1",model="m",version="1"} 1
nv_inference_request_success{gpu_uuid="GPU-2",model="m",version="1"} 2"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (TWO_DEVICES, 3),
        (b'nv_inference_request_success{model="m",version="1",} 1e+06', 1_000_000),
        (b'nv_inference_request_success{model="m"} 3.000000\r', 3),
        (b'nv_inference_request_success{model="m"}\t3', 3),
        (b'nv_inference_request_success{version="}",model="m"} 3', 3),
        (b'nv_inference_request_success{model="m"} 9007199254740992', 2**53),
    ],
)
def test_what_prometheus_may_write_is_read(line: bytes, expected: int) -> None:
    assert parse_process_ends(line, "m") == expected


def test_model_name_is_compared_unescaped() -> None:
    body = b'nv_inference_request_success{model="a\\"b\\\\c\\nd"} 3'
    assert parse_process_ends(body, 'a"b\\c\nd') == 3
    assert parse_process_ends(body, "a") is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not metrics at all\n\xff",
        METRICS.replace(b'"sleep"', b'"other"'),
        b'nv_inference_request_failure{model="sleep"} 3',
    ],
)
def test_process_without_the_models_series_says_nothing(body: bytes) -> None:
    assert parse_process_counts(body, "sleep") is None


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (b'nv_inference_request_success{model="m"} NaN', Refusal.BAD_METRICS),
        (b'nv_inference_request_success{model="m"} +Inf', Refusal.BAD_METRICS),
        (b'nv_inference_request_success{model="m"} -1', Refusal.BAD_METRICS),
        (b'nv_inference_request_success{model="m"} 1.5', Refusal.BAD_METRICS),
        (b'nv_inference_request_success{model="m"} 1e17', Refusal.BAD_METRICS),
        (b'nv_inference_request_success{model="m"} 1 1764513604087', Refusal.BAD_METRICS),
        (b'nv_inference_request_success{model="m"}', Refusal.BAD_METRICS),
        (b'nv_inference_request_success{model="m} 1', Refusal.BAD_METRICS),
        (b'nv_inference_request_success{model="m" version="1"} 1', Refusal.BAD_METRICS),
        (b'nv_inference_request_success{model="m",model="m"} 1', Refusal.BAD_METRICS),
        (b"nv_inference_request_success{} 1", Refusal.BAD_METRICS),
        (b'nv_inference_request_success{model="\xff"} x', Refusal.BAD_METRICS),
        (b'nv_inference_request_failure{model="n"} 1.5', Refusal.BAD_METRICS),
        (b'nv_inference_request_success{model="m"} 1\n' * 2, Refusal.DUPLICATE_SERIES),
        (
            b'nv_inference_request_success{a="1",model="m"} 1\nnv_inference_request_success{model="m",a="1"} 1',
            Refusal.DUPLICATE_SERIES,
        ),
        (b" " * (MAX_METRICS_BYTES + 1), Refusal.TOO_LARGE),
    ],
)
def test_series_that_is_no_exact_count_is_refused(line: bytes, refusal: Refusal) -> None:
    """Also one of another model: a text that is wrong there is not trusted here."""
    with pytest.raises(ReadingRefusedError) as caught:
        parse_process_counts(line, "m")
    assert caught.value.refusal is refusal


@UNHURRIED
@given(st.binary(max_size=100) | st.text(alphabet='model="m",\\}{ 1e.', max_size=60).map(str.encode))
def test_nothing_but_a_refusal_comes_of_garbage(rest: bytes) -> None:
    for body in (rest, b"nv_inference_request_success{" + rest):
        with suppress(ReadingRefusedError):
            parse_process_counts(body, "m")
