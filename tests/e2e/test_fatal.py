"""A real Triton dies of a shape that it makes room for, and of deep JSON; behind the governor it outlives every one.

The first test is the fact that the check is made for. If it fails, Triton has learned to count first.
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trio

from governor.demo.ports import free_ports
from governor.demo.triton import RealTriton
from governor.triton.nesting import NESTED_MAX
from tests.contract.real import build_repository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from governor.demo.install import Installation

pytestmark = pytest.mark.real_triton

HUGE = 2**40
LENGTH = "Inference-Header-Content-Length"
FEW, MANY = 1, 20_000
WRONG_LENGTH = "Unable to parse 'data': Shape does not match true shape of 'data' field"


def tensor(shape: list[int], *, numbers: int = FEW, **more: Any) -> dict[str, Any]:
    return {"name": "X", "datatype": "INT32", "shape": shape, "data": [0] * numbers, **more}


def request(shape: list[int], *, numbers: int = FEW, old: str = "", new: str = "", **more: Any) -> bytes:
    text = json.dumps({"inputs": [tensor(shape, numbers=numbers, **more)]})
    assert not old or old in text
    return text.replace(old, new, 1).encode()


def nested(depth: int, element: bytes = b"0") -> bytes:
    name, datatype = (b"X", b"INT32") if element == b"0" else (b"IN_STRING", b"BYTES")
    data = b"[" * depth + element + b"]" * depth
    return b'{"inputs":[{"name":"%b","datatype":"%b","shape":[1],"data":%b}]}' % (name, datatype, data)


def fatal(numbers: int) -> Iterator[tuple[bytes, dict[str, str]]]:
    """Requests of which Triton 2.51 dies, each in another way around a check of JSON or of lengths."""
    plain = request([5, HUGE], numbers=numbers)
    yield plain, {}
    yield nested(100_000), {}
    yield b"[" * 1_000_000, {}
    yield gzip.compress(nested(100_000)), {"Content-Encoding": "gzip"}
    yield request([HUGE], numbers=numbers, datatype="FP16"), {}
    yield request([HUGE], numbers=numbers, parameters={"foo": 1}), {}
    yield request([2**64 - 1, 2**64 - HUGE], numbers=numbers), {}
    yield request([HUGE], numbers=numbers, old='"shape"', new='"sh\\u0061pe"'), {}
    yield request([HUGE], numbers=numbers, old='"inputs"', new='"a": 1, "a": NaN, "inputs"'), {}
    yield request([HUGE], numbers=numbers, old='"data"', new='"shape": [1], "data"'), {}
    yield json.dumps({"inputs": [tensor([HUGE], numbers=numbers), {"name": 5}]}).encode(), {}
    yield b"\xef\xbb\xbf" + plain, {}
    yield plain + bytes(8), {LENGTH: str(len(plain))}
    yield plain + bytes(400_000), {LENGTH: str(len(plain))}
    yield plain + bytes(8), {LENGTH: f"{len(plain)}x"}
    yield plain + bytes(8), {LENGTH: str(2**32 + len(plain))}
    yield gzip.compress(plain), {"Content-Encoding": "gzip"}
    yield gzip.compress(plain)[:-8], {"Content-Encoding": "gzip"}
    yield zlib.compress(plain), {"Content-Encoding": "deflate", LENGTH: str(len(plain))}


@pytest.mark.parametrize(
    "body",
    [request([5, HUGE]), request([5, HUGE], numbers=MANY), nested(100_000), b"[" * 1_000_000],
    ids=["shape", "shape in large JSON", "nested data", "nested"],
)
def test_triton_dies_of_it(body: bytes, installation: Installation, tmp_path: Path) -> None:
    build_repository(tmp_path / "models")
    http_port, grpc_port, metrics_port = free_ports(3)
    server = RealTriton(
        installation,
        run_dir=tmp_path,
        repository=tmp_path / "models",
        models=["nobatch"],
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        env={"GOVERNOR_WORKLOG": str(tmp_path / "work.jsonl")},
    )
    trio.run(server.start)
    try:
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{server.url}/v2/models/nobatch/infer", content=body, timeout=30)

        async def ends() -> int:
            with trio.fail_after(20):
                return await server.wait()

        assert trio.run(ends) != 0
    finally:
        server.end_now()


@pytest.mark.parametrize("numbers", [FEW, MANY])
def test_none_of_them_reaches_it(numbers: int, client_triton: RealTriton, governed: str) -> None:
    before = client_triton.process.pid
    with httpx.Client(base_url=governed, timeout=30) as client:
        for body, fields in fatal(numbers):
            answer = client.post("/v2/models/nobatch/infer", content=body, headers=fields)
            assert answer.json()["code"] in {"invalid_tensor_data", "invalid_inference_request"}, (body[:200], fields)
        answer = client.post("/v2/models/nobatch/infer", content=request([5, HUGE], numbers=numbers))
        assert (answer.status_code, answer.json()["error"]) == (500, WRONG_LENGTH)
    assert client_triton.running
    assert client_triton.process.pid == before
    assert httpx.get(f"{client_triton.url}/v2/health/live").status_code == 200


def test_no_other_route_of_callers_takes_deep_json_to_it(client_triton: RealTriton, governed: str) -> None:
    for path in ("models/stream/generate", "models/stream/generate_stream", "repository/index"):
        answer = httpx.post(f"{governed}/v2/{path}", content=b'{"a":' * 1_000_000, timeout=30)
        assert answer.status_code == 400
        assert "nested too deeply" in answer.json()["error"]
    assert client_triton.running


def test_what_is_not_refused_triton_outlives(client_triton: RealTriton, governed: str) -> None:
    """The bound is half of what Triton was seen to take."""
    for url in (client_triton.url, governed):
        answer = httpx.post(f"{url}/v2/models/every/infer", content=nested(NESTED_MAX - 10, b'"a"'), timeout=30)
        assert answer.status_code == 200
    answer = httpx.post(
        f"{client_triton.url}/v2/models/every/infer", content=nested(2 * NESTED_MAX, b'"a"'), timeout=30
    )
    assert answer.status_code == 200


def test_triton_says_the_same_of_a_shape_that_it_has_room_for(client_triton: RealTriton, governed: str) -> None:
    body = request([1_000_000])
    direct, through = (
        httpx.post(f"{url}/v2/models/nobatch/infer", content=body, timeout=30) for url in (client_triton.url, governed)
    )
    assert (direct.status_code, direct.json()["error"]) == (500, WRONG_LENGTH)
    assert (through.status_code, through.json()["error"]) == (500, WRONG_LENGTH)


def test_what_triton_makes_no_room_for_is_not_taken_for_it(client_triton: RealTriton, governed: str) -> None:
    """Texts, which it counts; and tensors whose data are elsewhere."""
    texts = {"name": "IN_STRING", "datatype": "BYTES", "shape": [HUGE], "data": ["a"]}
    elsewhere = {"name": "X", "datatype": "INT32", "shape": [HUGE]}
    shared = {"shared_memory_region": "none", "shared_memory_byte_size": 8}
    for model, given in (("every", texts), ("nobatch", elsewhere), ("nobatch", {**elsewhere, "parameters": shared})):
        body = json.dumps({"inputs": [given]}).encode()
        for url in (client_triton.url, governed):
            answer = httpx.post(f"{url}/v2/models/{model}/infer", content=body, timeout=30)
            assert answer.status_code in {400, 404}
            assert "shape" not in answer.json()["error"]
    assert client_triton.running
