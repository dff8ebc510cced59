"""The shapes of answers on the wire."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.driver import events_of, new_id, sleep_body
from tests.contract.wire import request_bytes

if TYPE_CHECKING:
    from tests.contract.driver import TritonDriver

JSON = "application/json"


async def test_infer_answer_in_json(triton: TritonDriver) -> None:
    reply = await triton.post("/v2/models/sleep/infer", sleep_body(1, 7, batch=2, id="mine"))
    assert (reply.status, reply.headers["content-type"]) == (200, JSON)
    assert reply.json() == {
        "id": "mine",
        "model_name": "sleep",
        "model_version": "1",
        "outputs": [{"name": "Y", "datatype": "INT32", "shape": [2, 1], "data": [7, 7]}],
    }
    assert "id" not in (await triton.post("/v2/models/nobatch/infer", sleep_body(1))).json()


@pytest.mark.parametrize(
    "wanted",
    [
        {"outputs": [{"name": "Y", "parameters": {"binary_data": True}}]},
        {"parameters": {"binary_data_output": True}},
    ],
)
async def test_binary_tensors_in_and_out(triton: TritonDriver, wanted: dict[str, Any]) -> None:
    four = {"binary_data_size": 4}
    inputs = [{"name": name, "datatype": "INT32", "shape": [1], "parameters": four} for name in ("DELAY_MS", "X")]
    head = json.dumps({"inputs": inputs, **wanted}).encode()
    reply = await triton.ask(
        "POST",
        "/v2/models/nobatch/infer",
        head + struct.pack("<ii", 1, -42),
        {"Inference-Header-Content-Length": str(len(head))},
    )
    assert (reply.status, reply.headers["content-type"]) == (200, "application/octet-stream")
    length = int(reply.headers["inference-header-content-length"])
    [output] = json.loads(reply.body[:length])["outputs"]
    assert output == {"name": "Y", "datatype": "INT32", "shape": [1], "parameters": four}
    assert struct.unpack("<i", reply.body[length:]) == (-42,)


async def test_inference_header_longer_than_the_body(triton: TritonDriver) -> None:
    length = {"Inference-Header-Content-Length": "999"}
    reply = await triton.ask("POST", "/v2/models/nobatch/infer", b"{}", length)
    assert (reply.status, reply.error) == (400, "inference header size should be in range (0, 2), got: 999")


async def test_generate_answer_is_one_chunk_of_sorted_json(triton: TritonDriver) -> None:
    reply = await triton.post("/v2/models/nobatch/generate", {"DELAY_MS": [1], "X": 5, "id": "q", "more": 1})
    assert (reply.status, reply.headers["content-type"]) == (200, JSON)
    assert reply.headers["transfer-encoding"] == "chunked"
    assert reply.body == b'{"Y":5,"id":"q","model_name":"nobatch","model_version":"1"}'


async def test_generate_stream_is_one_event_a_response(triton: TritonDriver) -> None:
    body = {"N": 3, "DELAY_MS": 20, "id": "s"}
    async with triton.wire() as wire:
        await wire.send("POST", "/v2/models/stream/generate_stream", body)
        head = await wire.head()
        pieces = [piece async for piece in wire.data()]
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert head.headers["transfer-encoding"] == "chunked"
    assert pieces == [
        b'data: {"Y":%d,"id":"s","model_name":"stream","model_version":"1"}\n\n' % index for index in range(3)
    ]


async def test_stream_without_responses_is_empty(triton: TritonDriver) -> None:
    reply = await triton.post("/v2/models/stream/generate_stream", {"N": 0, "DELAY_MS": 1})
    assert (reply.status, reply.body) == (200, b"")


async def test_error_of_a_stream_is_an_event_with_status_400(triton: TritonDriver) -> None:
    reply = await triton.post("/v2/models/stream/generate_stream", {"N": -1, "DELAY_MS": 1})
    assert (reply.status, reply.headers["content-type"]) == (400, "text/event-stream; charset=utf-8")
    assert events_of(reply.body) == [{"error": "stream says no"}]


async def test_text_beyond_ascii_survives_and_the_story_is_the_prompts(triton: TritonDriver) -> None:
    stories = []
    for prompt in ("The Queen of Hearts ♥ said", "The Queen of Hearts ♥ said", "Down, down, down"):
        reply = await triton.post("/v2/models/storyteller/generate_stream", {"text_input": prompt, "max_tokens": 8})
        stories.append("".join(event["text_output"] for event in events_of(reply.body)))
    assert stories[0] == stories[1] != stories[2]
    assert len(stories[0].split()) <= 8


async def test_parameters_reach_a_tensor_of_their_name(triton: TritonDriver) -> None:
    body = {"text_input": "Alice", "parameters": {"max_tokens": 1}}
    reply = await triton.post("/v2/models/storyteller/generate_stream", body)
    assert len(events_of(reply.body)) == 1


async def test_sentiment_tells_good_from_bad(triton: TritonDriver) -> None:
    labels = []
    for text in ("What a wonderful, excellent day!", "I hate this terrible, awful thing.", "It is a table."):
        reply = await triton.post("/v2/models/sentiment/generate", {"text_input": text})
        scores = json.loads(reply.json()["text_output"])
        assert set(scores) == {"label", "compound", "pos", "neu", "neg"}
        labels.append(scores["label"])
    assert labels == ["positive", "negative", "neutral"]


async def test_slow_computes_as_long_as_the_text_asks(triton: TritonDriver) -> None:
    execution = new_id()
    body = {"text_input": "please compute for 0.3 seconds", "id": execution}
    reply = await triton.post("/v2/models/slow/generate", body)
    assert reply.json()["text_output"].startswith("computed for 0.3")
    started, ended = triton.times_of(execution)
    assert started is not None
    assert ended is not None
    assert 0.29 < ended - started < 0.6


async def test_statistics_of_one_model(triton: TritonDriver) -> None:
    [entry] = await triton.statistics("nobatch")
    assert set(entry) == {
        "name",
        "version",
        "last_inference",
        "inference_count",
        "execution_count",
        "inference_stats",
        "response_stats",
        "batch_stats",
        "memory_usage",
    }
    assert (entry["name"], entry["version"], entry["response_stats"]) == ("nobatch", "1", {})
    names = ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output"]
    assert list(entry["inference_stats"]) == [*names, "cache_hit", "cache_miss"]
    assert all(set(tally) == {"count", "ns"} for tally in entry["inference_stats"].values())


async def test_last_inference_is_the_end_in_milliseconds(triton: TritonDriver) -> None:
    execution = new_id()
    await triton.post("/v2/models/nobatch/infer", sleep_body(1, id=execution))
    await triton.settled_counts("nobatch")
    [entry] = await triton.statistics("nobatch")
    ended = triton.times_of(execution)[1]
    assert ended is not None
    assert abs(entry["last_inference"] - ended * 1000) < 250


async def test_statistics_of_a_version_and_of_all(triton: TritonDriver) -> None:
    reply = await triton.get("/v2/models/multi/versions/2/stats")
    assert [entry["version"] for entry in reply.json()["model_stats"]] == ["2"]
    everything = (await triton.get("/v2/models/stats")).json()["model_stats"]
    assert [entry["version"] for entry in everything if entry["name"] == "multi"] == ["1", "2"]
    missing = await triton.get("/v2/models/multi/versions/7/stats")
    assert (missing.status, missing.error) == (
        400,
        "requested model version is not available for model 'multi'",
    )


async def test_metadata_and_configuration(triton: TritonDriver) -> None:
    metadata = (await triton.get("/v2/models/multi")).json()
    assert metadata == {
        "name": "multi",
        "versions": ["1", "2"],
        "platform": "python",
        "inputs": [{"name": name, "datatype": "INT32", "shape": [-1, 1]} for name in ("DELAY_MS", "X")],
        "outputs": [{"name": "Y", "datatype": "INT32", "shape": [-1, 1]}],
    }
    stream = (await triton.get("/v2/models/stream/config")).json()
    assert stream["model_transaction_policy"] == {"decoupled": True}
    assert (stream["backend"], stream["platform"], stream["max_batch_size"]) == ("python", "", 0)
    plain = (await triton.get("/v2/models/nobatch/config")).json()
    assert plain.get("model_transaction_policy", {"decoupled": False}) == {"decoupled": False}
    ensemble = (await triton.get("/v2/models/ens/config")).json()
    assert (ensemble["backend"], ensemble["platform"]) == ("", "ensemble")
    [step] = ensemble["ensemble_scheduling"]["step"]
    assert step["model_name"] == "sleep"
    story = (await triton.get("/v2/models/storyteller/config")).json()
    assert story["input"][1]["optional"] is True
    assert story["instance_group"][0]["count"] == 2
    cached = (await triton.get("/v2/models/cached/config")).json()
    assert cached["response_cache"] == {"enable": True}
    queued = (await triton.get("/v2/models/sleep_q/config")).json()["dynamic_batching"]
    assert queued["default_queue_policy"]["max_queue_size"] == 2


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/v2/health/live", 200, b""),
        ("GET", "/v2/health/ready", 200, b""),
        ("GET", "/v2/models/nobatch/ready", 200, b""),
        ("GET", "/v2/models/nope/ready", 400, b'{"error":"Model version not ready"}'),
        ("GET", "/v2/models/nope", 404, b'{"error":"Request for unknown model: \'nope\' is not found"}'),
        ("GET", "/v2/models/nope/stats", 400, b'{"error":"requested model \'nope\' is not available"}'),
        ("GET", "/v2/models/nope/trace/setting", 400, b'{"error":"Request for unknown model : nope"}'),
        ("GET", "/v2/models/nobatch/infer", 405, b'{"error":"Method Not Allowed"}'),
        ("POST", "/v2/models/nobatch/stats", 405, b'{"error":"Method Not Allowed"}'),
        ("GET", "/v2/repository/index", 405, b'{"error":"Method Not Allowed"}'),
        ("HEAD", "/v2/health/live", 405, None),
        ("GET", "/nothing", 404, b'{"error":"Not Found"}'),
        ("GET", "/v2/health/live?verbose=1", 200, b""),
    ],
)
async def test_plain_routes(triton: TritonDriver, method: str, path: str, status: int, body: bytes | None) -> None:
    async with triton.wire() as wire:
        await wire.stream.send_all(request_bytes(method, path))
        raw = bytes(await wire.stream.receive_some(65536))
    head, _, told = raw.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert body is None or told == body


async def test_connection_is_kept_alive(triton: TritonDriver) -> None:
    async with triton.wire() as wire:
        for _ in range(3):
            assert (await wire.ask("GET", "/v2/health/live")).status == 200
            assert (await wire.ask("POST", "/v2/models/nobatch/infer", b"nope")).status == 500
            assert (await wire.ask("POST", "/v2/models/stream/generate_stream", {"N": 2, "DELAY_MS": 1})).status == 200


async def test_what_is_no_http_ends_the_connection_without_an_answer(triton: TritonDriver) -> None:
    async with triton.wire() as wire:
        await wire.stream.send_all(b"garbage\r\n\r\n")
        assert await wire.stream.receive_some() == b""
