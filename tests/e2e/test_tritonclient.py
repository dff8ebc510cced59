"""The unmodified `tritonclient.http` gets from the governor what it gets from Triton: only the address differs (A6)."""

from __future__ import annotations

import asyncio
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from governor.demo.triton import RealTriton

pytestmark = pytest.mark.real_triton

ARRAYS: dict[str, Any] = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 255], dtype=np.uint8),
    "UINT16": np.array([0, 65535], dtype=np.uint16),
    "UINT32": np.array([0, 2**32 - 1], dtype=np.uint32),
    "UINT64": np.array([0, 2**64 - 1], dtype=np.uint64),
    "INT8": np.array([-128, 127], dtype=np.int8),
    "INT16": np.array([-(2**15), 2**15 - 1], dtype=np.int16),
    "INT32": np.array([-(2**31), 2**31 - 1], dtype=np.int32),
    "INT64": np.array([-(2**63), 2**63 - 1], dtype=np.int64),
    "FP16": np.array([1.5, -65504, 6e-8], dtype=np.float16),
    "FP32": np.array([0.1, -3.4e38, 1e-45], dtype=np.float32),
    "FP64": np.array([0.1, -1.7e308, 5e-324], dtype=np.float64),
    "BF16": np.array([1.5, -3e38], dtype=ml_dtypes.bfloat16),
    "BYTES": np.array([b"", "äöü".encode(), b"\x00\xff" * 5], dtype=np.object_),
}
SPACED = (
    b'{ "inputs":[{"name":"DELAY_MS","shape":[1],"datatype":"INT32","data":[0]},'
    b'{"name":"X","shape":[1],"datatype":"INT32","data":[3]}],"id":"\xc3\xa4"}'
)


class Both(NamedTuple):
    """A client of Triton, and one of the governor in front of it."""

    direct: triton.InferenceServerClient
    governed: triton.InferenceServerClient

    def same(self, call: Callable[[triton.InferenceServerClient], object]) -> Any:
        """What a call gets from both; they must be equal."""
        told = [outcome(call, client) for client in self]
        assert told[0] == told[1]
        return told[0]


def address(url: str) -> str:
    return url.removeprefix("http://")


@pytest.fixture(scope="module")
def both(client_triton: RealTriton, governed: str) -> Iterator[Both]:
    with (
        triton.InferenceServerClient(address(client_triton.url), concurrency=4) as direct,
        triton.InferenceServerClient(address(governed), concurrency=4) as through,
    ):
        yield Both(direct, through)


def outcome(call: Callable[[triton.InferenceServerClient], object], client: triton.InferenceServerClient) -> Any:
    """What a call returns, or status and sentence of its error."""
    try:
        return told(call(client))
    except InferenceServerException as error:
        return error.status(), error.message()


def told(value: object) -> object:
    """A result as plain values."""
    if not isinstance(value, triton.InferResult):
        return value
    response = value.get_response()
    arrays = {each["name"]: value.as_numpy(each["name"]) for each in response["outputs"]}
    return response, {name: (array.dtype.str, array.shape, array.tolist()) for name, array in arrays.items()}


def tensor(name: str, datatype: str, array: Any, *, binary: bool = True) -> triton.InferInput:
    wanted = triton.InferInput(name, list(array.shape), datatype)
    wanted.set_data_from_numpy(array, binary_data=binary)
    return wanted


def numbers(delay: int = 0, x: int = 5) -> list[triton.InferInput]:
    """The inputs of `nobatch`."""
    return [tensor(name, "INT32", np.array([value], dtype=np.int32)) for name, value in (("DELAY_MS", delay), ("X", x))]


def colours(*rows: list[float]) -> list[triton.InferInput]:
    """The input of the model with labels."""
    return [tensor("IN", "FP32", np.array(rows, dtype=np.float32))]


# -- inference ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("binary_output", [True, False])
@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("datatype", ARRAYS)
def test_tensors_of_every_datatype(both: Both, datatype: str, *, binary_input: bool, binary_output: bool) -> None:
    name = "STRING" if datatype == "BYTES" else datatype
    if not binary_input and datatype in {"FP16", "BF16"}:
        return  # the client itself refuses to send them so
    if not binary_input and datatype == "BYTES":
        array: Any = np.array([b"", "äöü".encode()], dtype=np.object_)
    else:
        array = ARRAYS[datatype]
    inputs = [tensor(f"IN_{name}", datatype, array, binary=binary_input)]
    outputs = [triton.InferRequestedOutput(f"OUT_{name}", binary_data=binary_output)]
    answer = both.same(lambda client: client.infer("every", inputs, outputs=outputs))
    if binary_output:
        assert answer[1][f"OUT_{name}"][2] == array.tolist()


def test_all_tensors_at_once_without_named_outputs(both: Both) -> None:
    inputs = [tensor(f"IN_{'STRING' if kind == 'BYTES' else kind}", kind, array) for kind, array in ARRAYS.items()]
    response, arrays = both.same(lambda client: client.infer("every", inputs))
    assert len(arrays) == len(ARRAYS)
    assert response["model_name"] == "every"


def test_tensors_of_ten_megabytes_and_empty_ones(both: Both) -> None:
    large = np.arange(2_400_000, dtype=np.float32)
    for array in (large, np.zeros(0, dtype=np.float32)):
        results = [client.infer("every", [tensor("IN_FP32", "FP32", array)]).as_numpy("OUT_FP32") for client in both]
        assert np.array_equal(results[0], array)
        assert np.array_equal(results[1], array)


def test_request_ids_versions_and_parameters(both: Both) -> None:
    options = {"request_id": "id-ä", "priority": 1, "timeout": 5_000_000, "parameters": {"a": 1, "b": "x", "c": True}}
    response, _ = both.same(lambda client: client.infer("multi", colour_free(), model_version="2", **options))
    assert (response["id"], response["model_version"]) == ("id-ä", "2")
    both.same(lambda client: client.infer("multi", colour_free(), query_params={"a": "b c"}, headers={"X-More": "1"}))


def colour_free() -> list[triton.InferInput]:
    """The inputs of the models with a batch dimension."""
    return [tensor(name, "INT32", np.array([[value]], dtype=np.int32)) for name, value in (("DELAY_MS", 0), ("X", 7))]


@pytest.mark.parametrize("answer", [None, "gzip", "deflate"])
@pytest.mark.parametrize("request_", [None, "gzip", "deflate"])
def test_compression_both_ways(both: Both, request_: str | None, answer: str | None) -> None:
    inputs = [tensor("IN_INT32", "INT32", np.arange(5000, dtype=np.int32))]
    options = {"request_compression_algorithm": request_, "response_compression_algorithm": answer}
    both.same(lambda client: client.infer("every", inputs, **options))


def test_classification(both: Both) -> None:
    """The model has another name at the governor; its answer is passed on as it is."""
    for binary in (True, False):
        outputs = [triton.InferRequestedOutput("OUT", binary_data=binary, class_count=2)]
        results = [
            told(client.infer(name, colours([1, 2, 3], [3, 1, 2]), outputs=outputs))
            for client, name in zip(both, ("labelled", "colours"), strict=True)
        ]
        assert results[0] == results[1]
        assert "3.000000:2:blue" in str(results[1])


def test_sequences_of_interleaved_calls(both: Both) -> None:
    def add(client: triton.InferenceServerClient, key: int, number: int, **flags: bool) -> int:
        inputs = [tensor("IN", "INT32", np.array([[number]], dtype=np.int32))]
        return int(client.infer("adder", inputs, sequence_id=key, **flags).as_numpy("SUM")[0, 0])

    def both_sequences(client: triton.InferenceServerClient) -> list[int]:
        first = 1000 if client is both.direct else 2000
        second = first + 1
        return [
            add(client, first, 1, sequence_start=True),
            add(client, second, 10, sequence_start=True),
            add(client, first, 2),
            add(client, second, 20, sequence_end=True),
            add(client, first, 3, sequence_end=True),
        ]

    assert both.same(both_sequences) == [1, 10, 3, 30, 6]


def test_async_infer_of_the_synchronous_client(both: Both) -> None:
    """More calls at once than the model has slots: they wait, and all are answered."""
    for client in both:
        calls = [client.async_infer("nobatch", numbers(20, number), request_id=str(number)) for number in range(8)]
        results = [call.get_result() for call in calls]
        assert [int(result.as_numpy("Y")[0]) for result in results] == list(range(8))
        assert [result.get_response()["id"] for result in results] == [str(number) for number in range(8)]


# -- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "inputs", "options"),
    [
        ("labelled", [tensor("IN", "FP32", np.zeros((1, 4), np.float32))], {}),
        ("labelled", [tensor("IN", "FP32", np.zeros(3, np.float32))], {}),
        ("labelled", [tensor("IN", "FP32", np.zeros((5, 3), np.float32))], {}),
        ("labelled", [tensor("IN", "INT32", np.zeros((1, 3), np.int32))], {}),
        ("labelled", [tensor("IN", "INT32", np.zeros((1, 3), np.int32), binary=False)], {"request_id": "r"}),
        ("labelled", [tensor("ON", "FP32", np.zeros((1, 3), np.float32))], {}),
        ("labelled", [], {}),
        ("labelled", colours([1, 2, 3]), {"outputs": [triton.InferRequestedOutput("NONE")]}),
        ("labelled", colours([1, 2, 3]), {"model_version": "7"}),
        ("labelled", colours([1, 2, 3]), {"model_version": "99999999999999999999"}),
        ("nobatch", [*numbers(), tensor("IN", "FP32", np.zeros(1, np.float32))], {"parameters": {"x": 1}}),
        ("nobatch", numbers(x=-1), {}),
        ("nobatch", numbers(x=-99), {}),
        ("stream", [tensor(name, "INT32", np.zeros(1, np.int32)) for name in ("DELAY_MS", "N")], {}),
    ],
)
def test_errors(both: Both, model: str, inputs: list[triton.InferInput], options: dict[str, Any]) -> None:
    names = (model, "colours" if model == "labelled" else model)
    found = [
        outcome(methodcaller("infer", name, inputs, **options), client)
        for client, name in zip(both, names, strict=True)
    ]
    status, sentence = found[1]
    assert status in {"400", "404", "500", "501"}
    assert found[0] == (status, sorted_names(sentence)) or found[0] == (status, sentence)


def sorted_names(sentence: str) -> str:
    return sentence.replace("['DELAY_MS','X','IN']", "['IN','X','DELAY_MS']")


def test_an_unknown_model(both: Both) -> None:
    for call in (
        lambda client: client.infer("nothing", numbers()),
        lambda client: client.get_model_metadata("nothing"),
        lambda client: client.get_model_config("nothing"),
    ):
        direct, through = (outcome(call, client) for client in both)
        assert isinstance(direct, tuple)
        assert isinstance(through, tuple)
        assert direct[0] == through[0] == "404"
        assert through[1].startswith(direct[1])
    assert both.same(lambda client: client.is_model_ready("nothing")) is False


def test_what_is_closed_says_so(both: Both) -> None:
    for call in (
        lambda client: client.load_model("nobatch"),
        lambda client: client.unload_model("nobatch"),
        lambda client: client.update_trace_settings("nobatch", settings={"trace_rate": "1"}),
        lambda client: client.get_log_settings(),
        lambda client: client.register_system_shared_memory("r", "/r", 8),
        lambda client: client.get_cuda_shared_memory_status(),
    ):
        status, sentence = outcome(call, both.governed)
        assert status == "403"
        assert "closed" in sentence


# -- everything else ---------------------------------------------------------------------------------------


def test_health_and_readiness(both: Both) -> None:
    assert both.same(lambda client: client.is_server_live()) is True
    assert both.same(lambda client: client.is_server_ready()) is True
    assert both.same(lambda client: client.is_model_ready("multi")) is True
    assert both.same(lambda client: client.is_model_ready("multi", "2")) is True
    assert both.same(lambda client: client.is_model_ready("multi", "3")) is False


def test_metadata_and_configuration(both: Both) -> None:
    for model in ("every", "adder", "stream", "ens"):
        assert both.same(methodcaller("get_model_metadata", model))["name"] == model
        assert both.same(methodcaller("get_model_config", model))["name"] == model
    assert both.same(lambda client: client.get_model_metadata("multi", "2"))["versions"] == ["2"]
    assert both.same(lambda client: client.get_model_metadata("multi", "3"))[0] == "404"
    renamed = both.governed.get_model_config("colours")
    assert renamed == {**both.direct.get_model_config("labelled"), "name": "colours"}
    both.same(methodcaller("get_server_metadata"))


def test_statistics_and_the_repository_index(both: Both) -> None:
    both.same(lambda client: client.get_inference_statistics("ens"))
    both.same(lambda client: client.get_inference_statistics("multi", "3"))
    own = both.governed.get_inference_statistics("colours")["model_stats"]
    assert [entry["name"] for entry in own] == ["colours"]
    names = [entry["name"] for entry in both.governed.get_inference_statistics()["model_stats"]]
    assert sorted(names) == sorted(["every", "colours", "adder", "nobatch", "sleep", "multi", "multi", "ens", "stream"])
    index = both.direct.get_model_repository_index()
    expected = [{**entry, "name": "colours" if entry["name"] == "labelled" else entry["name"]} for entry in index]
    listed = both.governed.get_model_repository_index()
    assert listed == [entry for entry in expected if entry["name"] in names]


# -- the client of asyncio ---------------------------------------------------------------------------------


def test_the_aio_client(client_triton: RealTriton, governed: str) -> None:
    async def session(url: str) -> list[object]:
        async with triton_aio.InferenceServerClient(address(url)) as client:
            results = await asyncio.gather(
                *(client.infer("nobatch", numbers(10, x), request_id=str(x)) for x in range(6))
            )
            packed = await client.infer(
                "every",
                [tensor("IN_STRING", "BYTES", ARRAYS["BYTES"]), tensor("IN_BF16", "BF16", ARRAYS["BF16"])],
                request_compression_algorithm="gzip",
                response_compression_algorithm="deflate",
            )
            return [
                *map(told, results),
                told(packed),
                await client.is_server_live(),
                await client.is_model_ready("multi", "9"),
                await client.get_model_metadata("every"),
                await client.get_model_config("every"),
                await failure(client.infer("nobatch", numbers()[:1])),
                await failure(client.infer("nobatch", numbers(), model_version="9")),
                await failure(client.get_model_metadata("nobatch", "9")),
            ]

    direct, through = (asyncio.run(session(url)) for url in (client_triton.url, governed))
    assert direct == through


async def failure(call: Awaitable[object]) -> object:
    with pytest.raises(InferenceServerException) as caught:
        await call
    return caught.value.status(), caught.value.message()


# -- bodies that go straight through (ADR-0018) ------------------------------------------------------------


def large(count: int, name: str = "IN_FP32") -> list[triton.InferInput]:
    """Two binary tensors, so many numbers together."""
    numbers_ = np.random.default_rng(count).random(count, dtype=np.float32)
    return [
        tensor(name, "FP32", numbers_[: count // 3]),
        tensor("IN_UINT8", "UINT8", numbers_[count // 3 :].view("u1")),
    ]


def as_bytes(result: Any) -> dict[str, bytes]:
    names = [each["name"] for each in result.get_response()["outputs"]]
    return {name: result.as_numpy(name).tobytes() for name in sorted(names)}


@pytest.mark.parametrize("count", [250_000, 2_500_000])
def test_large_tensors_come_back_as_they_went(both: Both, count: int) -> None:
    """1 MB and 10 MB, three in turn on the same connections."""
    inputs = large(count)
    sent = [each._raw_data for each in inputs]
    for _ in range(3):
        for client in both:
            answer = as_bytes(client.infer("every", inputs, request_id="large"))
            assert list(answer.values()) == sent, client


def test_what_is_wrong_with_large_tensors_is_told_as_by_triton(both: Both) -> None:
    status, message = both.same(lambda client: client.infer("every", large(250_000, name="IN_NONE")))
    assert status == "400"
    assert "IN_NONE" in message


async def aio_answers(url: str, count: int, at_once: int) -> list[dict[str, bytes]]:
    async with triton_aio.InferenceServerClient(address(url), conn_limit=4) as client:
        calls = [client.infer("every", large(count + extra)) for extra in range(at_once)]
        return [as_bytes(each) for each in await asyncio.gather(*calls)]


@pytest.mark.parametrize(("count", "at_once"), [(250_000, 4), (2_500_000, 1)])
def test_large_tensors_of_the_aio_client(client_triton: RealTriton, governed: str, count: int, at_once: int) -> None:
    """1 MB, four at once with two slots, so that some go ahead and some are kept; and 10 MB."""
    direct, through = (asyncio.run(aio_answers(url, count, at_once)) for url in (client_triton.url, governed))
    assert direct == through


# -- byte for byte -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("nobatch/infer", SPACED),
        ("nobatch/generate", b'{"DELAY_MS": 0, "X": 4, "id": "g"}'),
        ("stream/generate_stream", b'{"DELAY_MS": 0, "N": 3, "more": "x"}'),
        ("stream/generate", b'{"DELAY_MS": 0, "N": 2}'),
        ("nobatch/infer", b"{"),
        ("nobatch/infer", b""),
        ("nobatch/generate", b'{"DELAY_MS": "a", "X": 4}'),
    ],
)
def test_answers_are_equal_to_the_byte(client_triton: RealTriton, governed: str, path: str, body: bytes) -> None:
    direct, through = (httpx.post(f"{url}/v2/models/{path}", content=body) for url in (client_triton.url, governed))
    assert through.status_code == direct.status_code
    assert through.content == direct.content
    for name in ("content-type", "inference-header-content-length", "content-encoding"):
        assert through.headers.get(name) == direct.headers.get(name)


def test_a_shape_that_kills_triton_2_51_does_not_reach_it(client_triton: RealTriton, governed: str) -> None:
    tensor_ = {"name": "IN_INT32", "datatype": "INT32", "shape": [2**40], "data": [0]}
    answer = httpx.post(f"{governed}/v2/models/every/infer", json={"inputs": [tensor_]})
    assert (answer.status_code, answer.json()["code"]) == (500, "invalid_tensor_data")
    assert client_triton.running
