"""What Triton would die of never reaches it, however the request is written.

Triton 2.51 makes room for as many elements as a JSON tensor's shape says, and ends when it cannot. And it ends when
JSON is nested deeper than its stack.
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from api.v2.head import UNPACKED_BYTES_MAX, head_before_tensors, request_head
from governor.requests import RequestRefusedError, TensorDataError
from governor.triton.outcomes import CallKind
from governor.triton.requestcheck import CHECKED_BYTES_MAX
from tests.api.harness import Answer, Service, service
from tests.shell.world import Plan

if TYPE_CHECKING:
    from trio.testing import MockClock

HUGE = 2**40
LENGTH = "Inference-Header-Content-Length"


def request(shape: list[int], *, numbers: int = 1, **more: Any) -> bytes:
    tensor = {"name": "X", "datatype": "INT32", "shape": shape, "data": [0] * numbers, **more}
    return json.dumps({"inputs": [tensor]}).encode()


FATAL = request([5, HUGE])
LARGE = request([5, HUGE], numbers=CHECKED_BYTES_MAX)


async def send(up: Service, data: bytes, path: str = "/v2/models/chat/infer", **fields: str) -> Answer:
    up.world.next_plans.append(Plan(body=b"{}"))
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    answer = await up.ask("POST", path, data=data, headers=headers)
    up.world.next_plans.clear()
    return answer


@pytest.mark.parametrize("shape", [[2**40], [2**62], [1_000_000], [1000, 1000, 1000]])
@pytest.mark.parametrize("numbers", [1, CHECKED_BYTES_MAX])
async def test_it_is_refused_in_tritons_words(shape: list[int], numbers: int, autojump_clock: MockClock) -> None:
    async with service() as up:
        answer = await send(up, request(shape, numbers=numbers))
        assert (answer.status, answer.code) == (500, "invalid_tensor_data")
        assert answer.json["error"] == "Unable to parse 'data': Shape does not match true shape of 'data' field"
        assert not up.world.wires


@pytest.mark.parametrize("text", [FATAL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    "length",
    ["{n}", "{n}x", "{n}.5", "000000{n}", "{wrapped}", "x", "-1", "9" * 5000],
)
async def test_a_length_that_triton_reads_otherwise_hides_nothing(
    text: bytes, length: str, autojump_clock: MockClock
) -> None:
    async with service() as up:
        field = length.format(n=len(text), wrapped=2**32 + len(text))
        answer = await send(up, text + bytes(8), **{LENGTH: field})
        assert answer.code in {"invalid_tensor_data", "invalid_inference_request"}
        assert not up.world.wires


@pytest.mark.parametrize("text", [FATAL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("gzip", zlib.compress),
        ("deflate", gzip.compress),
        ("gzip", lambda text: gzip.compress(text)[:-8]),  # Triton does not miss its end
        ("gzip", lambda text: gzip.compress(text) + b"more"),
        ("identity", bytes),
        ("", bytes),
    ],
)
async def test_a_compressed_one_is_looked_at_too(
    text: bytes, encoding: str, pack: Any, autojump_clock: MockClock
) -> None:
    async with service() as up:
        for fields in ({}, {LENGTH: str(len(text))}):
            packed = pack(text)
            assert (await send(up, packed, Content_Encoding=encoding, **fields)).code == "invalid_tensor_data"
        assert not up.world.wires


async def test_of_a_compressed_body_no_more_is_unpacked_than_its_json(autojump_clock: MockClock) -> None:
    good = request([1])
    async with service() as up:
        packed = gzip.compress(good + FATAL)
        assert (await send(up, packed, Content_Encoding="gzip", **{LENGTH: str(len(good))})).status == 200
        assert (await send(up, packed, Content_Encoding="gzip", **{LENGTH: "0"})).status == 200
        assert (await send(up, packed, Content_Encoding="gzip")).code == "invalid_inference_request"


async def test_compressed_json_has_a_bound(autojump_clock: MockClock) -> None:
    async with service() as up:
        for size, status in ((UNPACKED_BYTES_MAX, 200), (UNPACKED_BYTES_MAX + 1, 413)):
            answer = await send(up, gzip.compress(b" " * size, 1), Content_Encoding="gzip")
            assert answer.status == status
        assert (answer.code, answer.json["limit"]) == ("body_too_large", UNPACKED_BYTES_MAX)
        assert "send it uncompressed" in answer.json["error"]


async def test_what_is_not_compressed_as_it_says_is_refused(autojump_clock: MockClock) -> None:
    async with service() as up:
        answer = await send(up, FATAL, Content_Encoding="gzip")
        assert (answer.status, answer.code) == (400, "invalid_encoding")
        assert not up.world.wires


async def test_a_model_that_nobody_could_be_asked_about_makes_no_difference(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.replies["GET /v2/models/m/config"] = (404, "application/json", b'{"error":"Not Found"}')
        for text in (FATAL, LARGE):
            assert (await send(up, text)).code == "invalid_tensor_data"
        up.world.kill()
        assert (await send(up, FATAL)).code == "invalid_tensor_data"


async def test_others_pass_unchanged(autojump_clock: MockClock) -> None:
    """Texts that look like it, encodings that Triton refuses, routes where no caller says a shape."""
    texts = {"name": "X", "datatype": "BYTES", "shape": [1], "data": ['"shape":[1099511627776]' * 1000]}
    async with service() as up:
        for data, fields in (
            (json.dumps({"inputs": [texts]}).encode(), {}),
            (request([CHECKED_BYTES_MAX], numbers=CHECKED_BYTES_MAX), {}),
            (FATAL, {"Content-Encoding": "br"}),
            (FATAL, {LENGTH: "0"}),
        ):
            assert (await send(up, data, **fields)).status == 200
            assert up.world.wires[-1].body == data
        for kind in ("generate", "generate_stream"):
            assert (await send(up, FATAL, f"/v2/models/chat/{kind}")).status == 200


async def test_texts_beside_a_large_binary_tensor_pass(autojump_clock: MockClock) -> None:
    """What is behind the JSON fills the shape, so nobody need read the JSON."""
    texts = {"name": "T", "datatype": "BYTES", "shape": [1], "data": ["x" * 100_000]}
    binary = {"name": "X", "datatype": "INT8", "shape": [400_000], "parameters": {"binary_data_size": 400_000}}
    text = json.dumps({"inputs": [texts, binary]}).encode()
    async with service() as up:
        data = text + bytes(400_000)
        assert (await send(up, data, **{LENGTH: str(len(text))})).status == 200
        packed = gzip.compress(data)
        assert len(packed) < 400_000
        assert (await send(up, packed, Content_Encoding="gzip", **{LENGTH: str(len(text))})).status == 200


def test_of_a_field_that_is_given_twice_the_first_counts_as_for_triton() -> None:
    length, none = (LENGTH.lower().encode(), b"%d" % len(FATAL)), (LENGTH.lower().encode(), b"0")
    packed, plain = (b"content-encoding", b"gzip"), (b"content-encoding", b"identity")
    for fields, data in (
        ([length, none], FATAL),
        ([packed, plain], gzip.compress(FATAL)),
        ([plain, (b"content-encoding", b"br")], FATAL),
    ):
        with pytest.raises(TensorDataError):
            request_head(fields, CallKind.INFER, None, data)
    request_head([none, length], CallKind.INFER, None, FATAL)


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_a_body_may_be_a_view_of_a_buffer(kind: Any) -> None:
    length = (LENGTH.lower().encode(), b"%d" % len(FATAL))
    for fields, data in (
        ([], FATAL),
        ([], LARGE),
        ([length], FATAL + b"x"),
        ([(b"content-encoding", b"gzip")], gzip.compress(FATAL)),
    ):
        with pytest.raises(TensorDataError):
            request_head(fields, CallKind.INFER, None, kind(data))
    head = request_head([], CallKind.INFER, None, kind(request([1])))
    assert head.text == request([1])
    assert head.document is not None


def nested(depth: int) -> bytes:
    return (
        b'{"inputs":[{"name":"X","datatype":"INT32","shape":[1],"data":' + b"[" * depth + b"0" + b"]" * depth + b"}]}"
    )


async def test_json_that_is_nested_too_deeply_is_refused(autojump_clock: MockClock) -> None:
    async with service() as up:
        deep = nested(100_000)
        packed = {"Content_Encoding": "gzip"}
        behind = {LENGTH: str(len(deep))}
        for answer in (
            await send(up, deep),
            await send(up, deep + bytes(8), **behind),
            await send(up, gzip.compress(deep), **packed),
            await send(up, b"[" * 100_000),
            await send(up, deep, "/v2/models/chat/generate"),
            await send(up, deep, "/v2/models/chat/generate_stream"),
        ):
            assert (answer.status, answer.code) == (400, "invalid_inference_request")
            assert "nested too deeply" in answer.json["error"]
        answer = await send(up, deep, "/v2/repository/index")
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert not up.world.wires
        assert (await send(up, nested(1_000))).status == 200
        assert (await send(up, deep[:30], "/v2/models/chat/generate", Content_Encoding="gzip")).status == 200


def test_json_in_front_of_large_tensors_is_looked_at_as_well() -> None:
    deep = nested(8_192)
    for text in (FATAL, deep):
        with pytest.raises(RequestRefusedError):
            head_before_tensors(None, text, len(text) + 8)
    assert head_before_tensors(None, request([1]), 1_000).document is not None
