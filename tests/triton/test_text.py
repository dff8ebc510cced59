"""Text in, text out. Bodies marked "measured" are what Triton 2.51.0 sent, byte for byte."""

from __future__ import annotations

import json
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import BackendAnswerError, BackendProtocolError, InvalidRequestError
from governor.triton.outcomes import CallKind
from governor.triton.text import (
    StreamDecoder,
    StreamError,
    TextChunk,
    TextTarget,
    build_text_request,
    decode_generate,
    decode_infer,
    error_message,
    preload_tensor_codec,
)
from tests.triton.peer import UNHURRIED

GENERATE = TextTarget(kind=CallKind.GENERATE, triton_model="m")
STREAM = TextTarget(kind=CallKind.GENERATE_STREAM, triton_model="m")
INFER = TextTarget(kind=CallKind.INFER, triton_model="m", batched=True)
TEXTS = ["", "hello", 'h\u00e9\n"q" \x00 z', "\U0001f600 \u2028", " " * 10, "data: x\n\n"]


def frame(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def output(text: str) -> bytes:
    return frame({"model_name": "m", "model_version": "1", "text_output": text})


# Requests


@pytest.mark.parametrize("text", TEXTS)
def test_generate_request_carries_text_parameters_and_id(text: str) -> None:
    request = build_text_request(GENERATE, text, parameters={"max_tokens": 7, "stop": ["a"]}, request_id="r1")
    assert (request.method, request.path) == ("POST", "/v2/models/m/generate")
    assert request.headers == (("Content-Type", "application/json"),)
    assert json.loads(bytes(request.body)) == {"text_input": text, "max_tokens": 7, "stop": ["a"], "id": "r1"}


def test_version_and_tensor_names_are_the_targets() -> None:
    target = TextTarget(
        kind=CallKind.GENERATE_STREAM, triton_model="a b", version="3", text_input="PROMPT", text_output="ANSWER"
    )
    request = build_text_request(target, "x")
    assert request.path == "/v2/models/a%20b/versions/3/generate_stream"
    assert json.loads(bytes(request.body)) == {"PROMPT": "x"}
    assert decode_generate(target, b'{"ANSWER":"y"}') == "y"


@pytest.mark.parametrize(("batched", "shape"), [(True, [1, 1]), (False, [1])])
@pytest.mark.parametrize("text", TEXTS)
def test_infer_request_is_one_bytes_tensor_with_its_length_in_front(
    text: str, shape: list[int], *, batched: bool
) -> None:
    target = TextTarget(kind=CallKind.INFER, triton_model="m", batched=batched)
    request = build_text_request(target, text, parameters={"priority_class": "low"}, request_id="r1")
    assert request.path == "/v2/models/m/infer"
    headers = dict(request.headers)
    length = int(headers["Inference-Header-Content-Length"])
    head = json.loads(bytes(request.body[:length]))
    data = text.encode()
    assert head == {
        "id": "r1",
        "inputs": [
            {
                "name": "text_input",
                "shape": shape,
                "datatype": "BYTES",
                "parameters": {"binary_data_size": len(data) + 4},
            }
        ],
        "outputs": [{"name": "text_output", "parameters": {"binary_data": True}}],
        "parameters": {"priority_class": "low"},
    }
    assert request.body[length:] == struct.pack("<I", len(data)) + data


@pytest.mark.parametrize("target", [GENERATE, INFER], ids=["generate", "infer"])
@pytest.mark.parametrize(
    ("text", "parameters", "match"),
    [
        ("\ud800", {}, "not valid Unicode at character 0"),
        ("x", {"text_input": "y"}, "text_input"),
        ("x", {"id": "y"}, '"id"'),
        ("x", {"temperature": float("nan")}, "parameter"),
    ],
)
def test_request_that_cannot_be_sent_is_the_callers_fault(
    target: TextTarget, text: str, parameters: dict[str, str | float], match: str
) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        build_text_request(target, text, parameters=dict(parameters))


def test_reserved_request_parameter_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="reserved"):
        build_text_request(INFER, "x", parameters={"sequence_id": 1})


# generate


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"model_name":"textm","model_version":"1","text_output":"hi"}', "hi"),  # measured
        (b'{"model_name":"m","text_output":"h\xc3\xa9\\n\\"q\\" \\u0000 z"}', 'h\u00e9\n"q" \x00 z'),  # measured
        (b'{"text_output":["many","second \xff",""]}', "manysecond \ufffd"),  # measured: no UTF-8 is promised
        (b'{"text_output":[]}', ""),
        (b'{"text_output":"error","other":{"error":"x"}}', "error"),
    ],
)
def test_generate_answer_is_its_text_output(body: bytes, text: str) -> None:
    assert decode_generate(GENERATE, body) == text


def test_generate_answer_200_with_an_error_is_the_models_error() -> None:
    body = b'{"error":"generate expects model to produce exactly 1 response, use generate stream"}'  # measured
    with pytest.raises(BackendAnswerError, match="exactly 1 response") as caught:
        decode_generate(GENERATE, body)
    assert caught.value.backend_status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"[]",
        b'"text"',
        b"{}",
        b'{"text":"x"}',
        b'{"text_output":3}',
        b'{"text_output":null}',
        b'{"text_output":{"a":1}}',
        b'{"text_output":["a",3]}',
        b'{"text_output":[["a"]]}',
        b'{"error":{}}',
        b"[" * 100_000,
    ],
)
def test_generate_answer_without_text_says_what_is_wrong(body: bytes) -> None:
    with pytest.raises(BackendProtocolError) as caught:
        decode_generate(GENERATE, body)
    assert len(caught.value.message) < 400


# infer


MEASURED_BINARY = (
    b'{"model_name":"textm","model_version":"1","outputs":[{"name":"text_output","datatype":"BYTES","shape":[1,3],'
    b'"parameters":{"binary_data_size":24}}]}\x04\x00\x00\x00many\x08\x00\x00\x00second \xff\x00\x00\x00\x00'
)
HEADER_LENGTH = str(MEASURED_BINARY.index(b"]}\x04") + 2)


def test_infer_answer_is_decoded_from_binary_and_from_json() -> None:
    assert decode_infer(INFER, MEASURED_BINARY, HEADER_LENGTH) == "manysecond \ufffd"
    body = b'{"outputs":[{"name":"text_output","datatype":"BYTES","shape":[1,1],"data":["h\xc3\xa9 \\u0000"]}]}'
    assert decode_infer(INFER, body, None) == "h\u00e9 \x00"


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (MEASURED_BINARY, "0"),
        (MEASURED_BINARY, "-1"),
        (MEASURED_BINARY, "9999"),
        (MEASURED_BINARY, "x" * 1000),
        (MEASURED_BINARY, "\u0661"),
        (MEASURED_BINARY, "20"),
        (MEASURED_BINARY[:-2], HEADER_LENGTH),
        (MEASURED_BINARY.replace(b"[1,3]", b"[1,4]"), HEADER_LENGTH),
        (MEASURED_BINARY.replace(b"\x08\x00\x00\x00", b"\xff\xff\xff\xff"), HEADER_LENGTH),
        (MEASURED_BINARY.replace(b"text_output", b"text_outpux"), HEADER_LENGTH),
        (b"", None),
        (b"x", None),
        (b"[]", None),
        (b"{}", None),
        (b'{"outputs":null}', None),
        (b'{"outputs":[3]}', None),
        (b'{"outputs":[{"name":"text_output"}]}', None),
        (b'{"outputs":[{"name":"text_output","datatype":"FP32","shape":[1],"data":[0.5]}]}', None),
        (b'{"outputs":[{"name":"text_output","datatype":"BYTES","shape":"x","data":["a"]}]}', None),
        (b'{"outputs":[{"name":"text_output","datatype":"BYTES","shape":[1],"data":["\xff"]}]}', None),
    ],
)
def test_infer_answer_that_does_not_fit_its_own_header_is_refused(body: bytes, length: str | None) -> None:
    with pytest.raises(BackendProtocolError) as caught:
        decode_infer(INFER, body, length)
    assert len(caught.value.message) < 400


# generate_stream


def decode(body: bytes, *, sizes: list[int] | None = None) -> list[TextChunk | StreamError]:
    decoder = StreamDecoder(STREAM)
    items: list[TextChunk | StreamError] = []
    for size in sizes or []:
        items += decoder.feed(body[:size])
        body = body[size:]
    return [*items, *decoder.feed(body), *decoder.close()]


MEASURED_STREAM = (
    b'data: {"model_name":"textd","model_version":"1","text_output":"a"}\n\n'
    b'data: {"error":"mid \\n\\n error \\"q\\" \xc3\xa9"}\n\n'
    b'data: {"model_name":"textd","model_version":"1","text_output":"h\xc3\xa9\\n\\nx"}\n\n'
)
MEASURED_ITEMS = [TextChunk("a"), StreamError('mid \n\n error "q" \u00e9'), TextChunk("h\u00e9\n\nx")]


@UNHURRIED
@given(st.lists(st.integers(0, 40), max_size=30))
def test_stream_decodes_the_same_however_it_is_cut(sizes: list[int]) -> None:
    assert decode(MEASURED_STREAM, sizes=sizes) == MEASURED_ITEMS


def test_each_frame_comes_out_as_soon_as_it_is_whole() -> None:
    decoder = StreamDecoder(STREAM)
    assert decoder.feed(output("a")[:-1]) == []
    assert decoder.feed(b"\n" + output("b")) == [TextChunk("a"), TextChunk("b")]
    assert decoder.close() == []


@pytest.mark.parametrize(
    ("body", "items"),
    [
        (b"", []),
        (output("a").replace(b"\n", b"\r\n"), [TextChunk("a")]),
        (b": comment\nevent: x\nid: 3\n" + output("a") + b"\n\n", [TextChunk("a")]),
        (b'data:{"text_output":\ndata:"a"}\n\n', [TextChunk("a")]),
        (b'data: {"text_output":["a","b"]}\n\n', [TextChunk("ab")]),
        (output("a") + frame({"model_name": "m"}), [TextChunk("a")]),
        (output("a") + b'data: {"text_output":"last"}', [TextChunk("a"), TextChunk("last")]),
        (b'data: {"error":"' + b"x" * 5000 + b'"}\n\n', [StreamError("x" * 2000)]),
    ],
)
def test_what_sse_allows_is_decoded(body: bytes, items: list[TextChunk | StreamError]) -> None:
    assert decode(body) == items


@pytest.mark.parametrize(
    "body",
    [
        b"data: x\n\n",
        b"data: [DONE]\n\n",
        b'data: {"text_output":3}\n\n',
        output("a") + b'data: {"text_output":"cut o',
        frame({"model_name": "m", "OUT": "a"}) * 3,
        b"data: " + b"x" * (1 << 20),
        b"x" * (1 << 20) + b"x",
        b"data: x\n" * 200_000,
        b": x\n" * 400_000,
    ],
)
def test_stream_that_is_none_is_refused_in_bounded_memory(body: bytes) -> None:
    with pytest.raises(BackendProtocolError) as caught:
        decode(body, sizes=[1, 2, 50_000])
    assert len(caught.value.message) < 400


def test_large_stream_in_small_pieces_takes_linear_time() -> None:
    decoder = StreamDecoder(STREAM)
    body = output("x" * 500_000)
    items = [item for start in range(0, len(body), 100) for item in decoder.feed(body[start : start + 100])]
    assert items == [TextChunk("x" * 500_000)]


# errors


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":"model says no"}', "model says no"),
        (b'data: {"error":"stream says no"}\n\n', "stream says no"),
        (b'{"error":"bad \xff"}', "bad \ufffd"),
        (b'{"error":"' + b"x" * 9000 + b'"}', "x" * 2000),
        (b"", "the backend gave no reason"),
        (b"  \n", "the backend gave no reason"),
        (b"<html>Bad Gateway</html>\n", "<html>Bad Gateway</html>"),
        (b'{"error":3}', '{"error":3}'),
        (b'{"error":""}', '{"error":""}'),
        (b"\xff" * 1000, "\ufffd" * 300),
    ],
)
def test_error_message_is_the_backends_own_or_a_bounded_excerpt(body: bytes, message: str) -> None:
    assert error_message(body) == message


GARBAGE = st.binary(max_size=150) | st.text(alphabet='{}[]":,data text_output error 0\n', max_size=80).map(str.encode)


@UNHURRIED
@given(GARBAGE)
def test_nothing_but_the_backends_fault_comes_of_garbage(body: bytes) -> None:
    preload_tensor_codec()
    assert error_message(body)
    for attempt in (
        lambda: decode_generate(GENERATE, body),
        lambda: decode_infer(INFER, body, None),
        lambda: decode_infer(INFER, body, "2"),
        lambda: decode(body),
    ):
        with suppress(BackendProtocolError, BackendAnswerError):
            attempt()


NAMES = st.sampled_from(["text_output", "x"])
SIZES = st.integers(-5, 40) | st.just("x") | st.none()
OUTPUTS = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES,
        "datatype": st.sampled_from(["BYTES", "FP32", "INT64", "BOOL", "nonsense", 3, None]),
        "shape": st.lists(st.integers(-2, 5) | st.just("x"), max_size=3) | st.none(),
        "data": st.lists(st.text(max_size=3) | st.integers() | st.none(), max_size=4) | st.integers(),
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": SIZES}) | st.none() | st.just([]),
    },
)


@UNHURRIED
@given(st.lists(OUTPUTS | st.none(), max_size=3), st.binary(max_size=40), st.booleans())
def test_nothing_but_the_backends_fault_comes_of_a_malformed_tensor(
    outputs: list[object],
    tail: bytes,
    binary: bool,
) -> None:
    head = json.dumps({"outputs": outputs}).encode()
    with suppress(BackendProtocolError):
        decode_infer(INFER, head + tail if binary else head, str(len(head)) if binary else None)
