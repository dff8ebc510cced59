"""D5: what an answer adds to the end counter. Each row with a count was measured on Triton 2.51.0."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from governor.triton.outcomes import CallKind, Counted, counted, speaks_for_triton

if TYPE_CHECKING:
    from governor.triton.wire import Headers

INFER, GENERATE, STREAM = CallKind.INFER, CallKind.GENERATE, CallKind.GENERATE_STREAM
JSON: Headers = (("Content-Type", "application/json"), ("Content-Length", "9"))
PLAIN_TEXT: Headers = (("Content-Length", "9"), ("content-type", "text/plain"))
CHUNKED_JSON: Headers = (("Content-Type", "application/json"), ("Transfer-Encoding", "chunked"))
SSE: Headers = (("Content-Type", "text/event-stream; charset=utf-8"), ("Transfer-Encoding", "chunked"))

RAISED = "Failed to process the request(s) for model 'm_0_0', message: RuntimeError: x\n\nAt:\n  model.py(1): execute\n"
TOO_MANY = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number"
    " of responses"
)
MEASURED: list[tuple[int, str, CallKind, Headers, int]] = [
    (200, "", INFER, JSON, 1),
    (200, "", GENERATE, CHUNKED_JSON, 1),
    (200, "", STREAM, SSE, 1),
    (200, TOO_MANY, GENERATE, CHUNKED_JSON, 1),
    (500, "model says no", INFER, PLAIN_TEXT, 1),
    (500, RAISED, INFER, PLAIN_TEXT, 1),
    (500, "Stub process 'm_0_0' is not healthy.", INFER, PLAIN_TEXT, 1),
    (400, "model says no", GENERATE, CHUNKED_JSON, 1),
    (400, RAISED, GENERATE, CHUNKED_JSON, 1),
    (400, "stream says no", STREAM, SSE, 1),
    (400, RAISED, STREAM, SSE, 1),
    (503, "Request timeout expired", INFER, PLAIN_TEXT, 1),
    (500, "failed to parse the request JSON buffer: Invalid value. at 10", INFER, JSON, 0),
    (500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'", INFER, JSON, 0),
    (500, "Unable to parse 'data': Shape does not match true shape of 'data' field", INFER, JSON, 0),
    (500, "Unable to parse 'timeout': attempt to access JSON non-unsigned-integer as unsigned-integer", INFER, JSON, 0),
    (
        400,
        "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got",
        INFER,
        JSON,
        0,
    ),
    (400, "[request id: <id_unknown>] inference request batch-size must be <= 8 for 'm'", INFER, JSON, 0),
    (400, "[request id: 7] inference input 'X' data-type is 'FP32', but model 'm' expects 'INT32'", INFER, JSON, 0),
    (400, "invalid datatype for input X", INFER, JSON, 0),
    (400, "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'm'. Got", INFER, JSON, 0),
    (400, "unexpected inference input 'Q' for model 'm'", INFER, JSON, 0),
    (400, "unexpected inference output 'ZZ' for model 'm'", INFER, JSON, 0),
    (400, "parameter 'q' has invalid type. It should be either 'int', 'bool', or 'string'.", INFER, JSON, 0),
    (400, "parameter keys starting with 'triton_' are reserved for Triton usage", INFER, JSON, 0),
    (503, "[request id: <id_unknown>] Exceeds maximum queue size", INFER, JSON, 0),
    (400, "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'm'. Got", GENERATE, JSON, 0),
    (500, "failed to parse the request JSON buffer: Missing a name for object member. at 1", GENERATE, JSON, 0),
    (500, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer", GENERATE, JSON, 0),
    (400, "The schema can not convert input 'X' to tensor with proper shape", GENERATE, JSON, 0),
    (400, "Converting keyword: 'parameters': parameter 'q' has invalid type.", GENERATE, JSON, 0),
    (404, "Request for unknown model: 'm' is not found", GENERATE, JSON, 0),
    (500, "failed to parse the request JSON buffer: Missing a name for object member. at 1", STREAM, JSON, 0),
    (404, "Request for unknown model: 'm' is not found", STREAM, JSON, 0),
]


@pytest.mark.parametrize(("status", "message", "kind", "headers", "count"), MEASURED)
def test_measured_answers_count_exactly_what_was_measured(
    status: int, message: str, kind: CallKind, headers: Headers, count: int
) -> None:
    result = counted(status, message, kind=kind, server_version="2.51.0", headers=headers)
    assert result == Counted(count, count)


@pytest.mark.parametrize(("status", "message", "kind", "headers", "count"), [row for row in MEASURED if row[-1] == 0])
@pytest.mark.parametrize("framing", ["the model's own", "none"])
def test_no_text_alone_makes_an_answer_uncounted(
    status: int, message: str, kind: CallKind, headers: Headers, count: int, framing: str
) -> None:
    """A model may fail with any text and any status, and is counted then (measured: TritonError with INVALID_ARG is
    answered 400 and counts). Taking it for a refusal would free a credit while another call executes."""
    own = {INFER: PLAIN_TEXT, GENERATE: CHUNKED_JSON, STREAM: SSE}[kind]
    result = counted(status, message, kind=kind, server_version="2.51.0", headers=own if framing != "none" else ())
    assert result.most == 1


@pytest.mark.parametrize("kind", CallKind)
@pytest.mark.parametrize("status", [400, 404, 429, 499, 500, 501, 502, 503])
@pytest.mark.parametrize("headers", [(), JSON, PLAIN_TEXT, CHUNKED_JSON, SSE])
@pytest.mark.parametrize("version", [None, "2.36.0", "2.51.0", "banana"])
def test_unknown_error_is_an_interval_that_holds_both(
    status: int, kind: CallKind, headers: Headers, version: str | None
) -> None:
    result = counted(status, "never seen before", kind=kind, server_version=version, headers=headers)
    assert result.most == 1
    ensemble = counted(status, "never seen before", kind=kind, ensemble=True, server_version=version, headers=headers)
    assert ensemble == Counted(0, 2)


@pytest.mark.parametrize(("version", "least"), [("2.51.0", 1), ("2.48.0", 1), ("2.47.0", 0), ("2.9.0", 0), (None, 0)])
def test_queue_timeout_is_counted_since_2_48(version: str | None, least: int) -> None:
    result = counted(503, "Request timeout expired", kind=INFER, server_version=version, headers=PLAIN_TEXT)
    assert result == Counted(least, 1)


def test_infer_errors_that_look_alike_on_both_sides_of_the_queue_are_intervals() -> None:
    for status, message in (
        (404, "Request for unknown model: 'm' version 9 is not found"),
        (501, "HTTP end point doesn't support models with decoupled transaction policy"),
        (400, "inference header size should be in range (0, 151), got: 99999"),
    ):
        result = counted(status, message, kind=INFER, server_version="2.51.0", headers=PLAIN_TEXT)
        assert result == Counted(0, 1)


def test_ensembles_are_counted_in_units_of_2s_plus_f() -> None:
    """Measured: success S +1, a failing member F +2 (F +1 in 2.41 to 2.47), refused before the queue nothing."""
    assert counted(200, "", kind=INFER, ensemble=True, headers=JSON) == Counted(2, 2)
    failed = counted(500, "in ensemble 'e', model says no", kind=INFER, ensemble=True, headers=PLAIN_TEXT)
    assert failed == Counted(0, 2)
    refused = "Unable to parse 'data': Shape does not match true shape of 'data' field"
    assert counted(500, refused, kind=INFER, ensemble=True, headers=JSON) == Counted(0, 0)
    assert counted(200, TOO_MANY, kind=GENERATE, ensemble=True, headers=CHUNKED_JSON) == Counted(1, 2)


def test_answer_of_a_proxy_does_not_speak_for_triton() -> None:
    """502 and 504 say that somebody in between gave up; the call goes on behind it."""
    error = json.dumps({"error": "x"}).encode()
    assert speaks_for_triton(200, b"anything")
    for status in (400, 404, 500, 501, 503):
        assert speaks_for_triton(status, error)
        assert speaks_for_triton(status, b"data: " + error + b"\n\n")
        for body in (b"", b"<html>503</html>", b"[]", b'{"error": 3}', b'{"message": "x"}', b"\xff"):
            assert not speaks_for_triton(status, body)
    for status in (302, 429, 502, 504, 520):
        assert not speaks_for_triton(status, error)
