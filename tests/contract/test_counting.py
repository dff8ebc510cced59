"""What each outcome counts: S = success count, F = failure count, summed over the versions of a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.contract.driver import new_id, sleep_body, with_input

if TYPE_CHECKING:
    from tests.contract.driver import TritonDriver
    from tests.contract.wire import Reply


@dataclass(frozen=True)
class Case:
    """One request and what it must be answered and count.

    `executes` is False where Triton refuses the request before it becomes an inference: then the answer to
    `infer` has content type application/json, and the answer to `generate` a content length.
    """

    name: str
    model: str
    body: Any
    status: int
    s: int = 0
    f: int = 0
    error: str = ""
    kind: str = "infer"
    headers: dict[str, str] | None = None
    executes: bool = False


GEN = "generate"
STREAM = "generate_stream"
SLEEP = {"DELAY_MS": 1, "X": 5}


def binary_body(size: int, payload: bytes) -> tuple[bytes, dict[str, str]]:
    """An infer body for `sentiment` with one BYTES tensor in binary."""
    tensor = {
        "name": "text_input",
        "datatype": "BYTES",
        "shape": [1],
        "parameters": {"binary_data_size": size},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + payload, {"Inference-Header-Content-Length": str(len(head))}


TORN_TEXT, TORN_HEADERS = binary_body(8, (9).to_bytes(4, "little") + b"good")
SHORT, SHORT_HEADERS = binary_body(8, b"\x04\x00\x00\x00")
LONG, LONG_HEADERS = binary_body(8, (4).to_bytes(4, "little") + b"good, and more")

NO_DATA = {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1]}]}

ONE_MORE = {"name": "Z", "datatype": "INT32", "shape": [1], "data": [1]}

EXECUTED = [
    Case("success", "nobatch", sleep_body(1), 200, s=1),
    Case("a batch of three is one request", "sleep", sleep_body(1, batch=3), 200, s=1),
    Case("error response", "nobatch", sleep_body(1, -1), 500, s=1, error="model says no"),
    Case(
        "error response that blames the caller",
        "nobatch",
        sleep_body(1, -2),
        400,
        s=1,
        error="model says you",
    ),
    Case("execute raises", "nobatch", sleep_body(1, -99), 500, f=1, error="execute raised"),
    Case("torn text", "sentiment", TORN_TEXT, 400, f=1, error="incomplete string data", headers=TORN_HEADERS),
    Case("ensemble", "ens", sleep_body(1, batch=1), 200, s=1),
    Case(
        "ensemble, member raises",
        "ens",
        sleep_body(1, -99, batch=1),
        500,
        f=2,
        error="Failed to process",
    ),
    Case(
        "ensemble, member answers an error",
        "ens",
        sleep_body(1, -1, batch=1),
        500,
        f=2,
        error="model says",
    ),
    Case("ensemble, member blames the caller", "ens", sleep_body(1, -2, batch=1), 400, f=2, error="in ensemble"),
    Case("generate", "nobatch", SLEEP, 200, s=1, kind=GEN),
    Case("generate, error response", "nobatch", {**SLEEP, "X": -1}, 400, s=1, error="model says no", kind=GEN),
    Case("generate, raises", "nobatch", {**SLEEP, "X": -99}, 400, f=1, error="execute raised", kind=GEN),
    Case(
        "generate, no response",
        "stream",
        {"N": 0, "DELAY_MS": 1},
        200,
        s=1,
        error="generate expects",
        kind=GEN,
    ),
    Case("generate, one response", "stream", {"N": 1, "DELAY_MS": 1}, 200, s=1, kind=GEN),
    Case(
        "generate, two responses",
        "stream",
        {"N": 2, "DELAY_MS": 1},
        200,
        s=1,
        error="generate expects",
        kind=GEN,
    ),
    Case("generate, ensemble fails", "ens", {**SLEEP, "X": -99}, 400, f=2, error="in ensemble", kind=GEN),
    Case("stream of none", "stream", {"N": 0, "DELAY_MS": 1}, 200, s=1, kind=STREAM),
    Case("stream of three", "stream", {"N": 3, "DELAY_MS": 1}, 200, s=1, kind=STREAM),
    Case(
        "stream, error response",
        "stream",
        {"N": -1, "DELAY_MS": 1},
        400,
        s=1,
        error="stream says no",
        kind=STREAM,
    ),
    Case("stream, not decoupled", "nobatch", SLEEP, 200, s=1, kind=STREAM),
    Case("stream, raises", "nobatch", {**SLEEP, "X": -99}, 400, f=1, error="execute raised", kind=STREAM),
    Case("empty text", "sentiment", {"text_input": " "}, 400, s=1, error="text_input is empty", kind=GEN),
    Case("text that is no UTF-8", "sentiment", b'{"text_input": "\xff"}', 400, s=1, error="not UTF-8", kind=GEN),
]

REFUSED = [
    Case("wrong shape", "nobatch", sleep_body(1, batch=1), 400, error="unexpected shape for input"),
    Case("no batch dimension", "sleep", sleep_body(1), 400, error="unexpected shape for input"),
    Case("batch too large", "sleep", sleep_body(1, batch=9), 400, error="batch-size must be <= 8"),
    Case("wrong type", "nobatch", with_input(sleep_body(1), "X", datatype="FP32"), 400, error="expects 'INT32'"),
    Case(
        "unknown type",
        "nobatch",
        with_input(sleep_body(1), "X", datatype="NO"),
        400,
        error="invalid datatype",
    ),
    Case(
        "missing input",
        "nobatch",
        {"inputs": sleep_body(1)["inputs"][:1]},
        400,
        error="expected 2 inputs but got 1",
    ),
    Case(
        "one input too many",
        "nobatch",
        {"inputs": [*sleep_body(1)["inputs"], ONE_MORE]},
        400,
        error="but got 3",
    ),
    Case(
        "unknown input",
        "nobatch",
        with_input(sleep_body(1), "X", name="Z"),
        400,
        error="unexpected inference input",
    ),
    Case(
        "unknown output",
        "nobatch",
        sleep_body(1, outputs=[{"name": "Q"}]),
        400,
        error="unexpected inference output",
    ),
    Case("no data", "nobatch", NO_DATA, 400, error="But no field is set"),
    Case("no JSON", "nobatch", b"nope", 500, error="failed to parse the request JSON buffer: "),
    Case("no inputs", "nobatch", {}, 500, error="Unable to parse 'inputs'"),
    Case(
        "data longer than shape",
        "nobatch",
        with_input(sleep_body(1), "X", data=[1, 2]),
        500,
        error="Unable to parse 'd",
    ),
    Case(
        "data of another type",
        "nobatch",
        with_input(sleep_body(1), "X", data=["x"]),
        500,
        error="Unable to parse 'data'",
    ),
    Case("id that is no text", "nobatch", sleep_body(1, id=7), 500, error="Unable to parse 'id'"),
    Case(
        "binary data too short",
        "sentiment",
        SHORT,
        400,
        error="unexpected size for input",
        headers=SHORT_HEADERS,
    ),
    Case(
        "binary data too long",
        "sentiment",
        LONG,
        400,
        error="unexpected additional input",
        headers=LONG_HEADERS,
    ),
    Case(
        "generate, no JSON",
        "nobatch",
        b"nope",
        500,
        error="failed to parse the request JSON buffer: ",
        kind=GEN,
    ),
    Case("generate, empty", "nobatch", b"", 500, error="The document is empty", kind=GEN),
    Case("generate, no object", "nobatch", b"[]", 500, error="attempt to get members for non-object", kind=GEN),
    Case("generate, missing input", "nobatch", {"X": 1}, 400, error="expected 2 inputs but got 1", kind=GEN),
    Case("generate, two for one", "nobatch", {**SLEEP, "X": [1, 2]}, 400, error="proper shape", kind=GEN),
    Case(
        "generate, wrong type",
        "sentiment",
        {"text_input": 5},
        500,
        error="Unable to parse JSON bytes",
        kind=GEN,
    ),
    Case(
        "generate, odd parameter",
        "nobatch",
        {**SLEEP, "p": [1]},
        400,
        error="parameter 'p' has invalid",
        kind=GEN,
    ),
    Case(
        "generate, lone surrogate",
        "sentiment",
        b'{"text_input": "\\ud83d"}',
        500,
        error="surrogate",
        kind=GEN,
    ),
    Case("stream, missing input", "stream", {"N": 1}, 400, error="expected 2 inputs but got 1", kind=STREAM),
]


async def ask(triton: TritonDriver, case: Case) -> Reply:
    return await triton.ask("POST", f"/v2/models/{case.model}/{case.kind}", case.body, case.headers)


def error_in(reply: Reply) -> str:
    body = reply.body.removeprefix(b"data: ")
    told = json.loads(body) if body.startswith(b"{") and b"}\n\ndata" not in body else {}
    return str(told.get("error", ""))


@pytest.mark.parametrize("case", EXECUTED, ids=lambda case: case.name)
async def test_executed_outcome_counts(triton: TritonDriver, case: Case) -> None:
    before = await triton.settled_counts(case.model)
    reply = await ask(triton, case)
    assert (reply.status, case.error in error_in(reply)) == (case.status, True), reply
    after = await triton.settled_counts(case.model)
    assert (after[0] - before[0], after[1] - before[1]) == (case.s, case.f)
    if reply.status != 200:
        # The one thing in the answer that tells an error of an execution from a refusal.
        expected = ("content-type", "text/plain") if case.kind == "infer" else ("transfer-encoding", "chunked")
        assert expected in reply.headers.items()


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
async def test_refused_request_counts_nothing(triton: TritonDriver, case: Case) -> None:
    before = await triton.settled_counts(case.model)
    reply = await ask(triton, case)
    assert (reply.status, case.error in error_in(reply)) == (case.status, True), reply
    assert await triton.settled_counts(case.model) == before
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["content-length"] == str(len(reply.body))


UNKNOWN = "Request for unknown model: '{} is not found"
NOT_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        (
            "nobatch/versions/9/infer",
            sleep_body(1),
            404,
            UNKNOWN.format("nobatch' version 9"),
        ),
        ("nope/infer", sleep_body(1), 404, UNKNOWN.format("nope'")),
        ("nope/generate", SLEEP, 404, UNKNOWN.format("nope'")),
        ("nope/generate_stream", SLEEP, 404, UNKNOWN.format("nope'")),
        (
            "stream/infer",
            {"inputs": []},
            501,
            "HTTP end point doesn't support models with decoupled transaction policy",
        ),
    ],
)
async def test_request_for_what_is_not_there(
    triton: TritonDriver, path: str, body: Any, status: int, error: str
) -> None:
    before = await triton.settled_counts("nobatch"), await triton.settled_counts("stream")
    reply = await triton.post(f"/v2/models/{path}", body)
    assert (reply.status, reply.error) == (status, error)
    assert (await triton.settled_counts("nobatch"), await triton.settled_counts("stream")) == before


async def test_inference_count_counts_batch_elements_and_misses_failures_and_executions_are_all(
    triton: TritonDriver,
) -> None:
    [before] = await triton.statistics("sleep")
    await triton.post("/v2/models/sleep/infer", sleep_body(1, batch=3))
    await triton.post("/v2/models/sleep/infer", sleep_body(1, -99, batch=1))
    await triton.settled_counts("sleep")
    [after] = await triton.statistics("sleep")
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] - before["execution_count"] == 2


async def post_many(triton: TritonDriver, model: str, bodies: list[Any], gap_s: float = 0.01) -> list[Reply]:
    replies: dict[int, Reply] = {}

    async def one(index: int, body: Any) -> None:
        replies[index] = await triton.post(f"/v2/models/{model}/infer", body)

    async with trio.open_nursery() as nursery:
        for index, body in enumerate(bodies):
            nursery.start_soon(one, index, body)
            await trio.sleep(gap_s)
    return [replies[index] for index in range(len(bodies))]


async def test_merged_batch_counts_every_request(triton: TritonDriver) -> None:
    before, [stats] = await triton.settled_counts("sleep_db"), await triton.statistics("sleep_db")
    replies = await post_many(triton, "sleep_db", [sleep_body(30, x, batch=1) for x in (1, 2, 3)])
    assert [reply.json()["outputs"][0]["data"] for reply in replies] == [[1], [2], [3]]
    assert await triton.settled_counts("sleep_db") == (before[0] + 3, before[1])
    [merged] = await triton.statistics("sleep_db")
    assert merged["execution_count"] - stats["execution_count"] == 1


async def test_raise_in_a_merged_batch_fails_every_request(triton: TritonDriver) -> None:
    before = await triton.settled_counts("sleep_db")
    replies = await post_many(triton, "sleep_db", [sleep_body(30, x, batch=1) for x in (1, -99, 3)])
    assert [reply.status for reply in replies] == [500, 500, 500]
    assert await triton.settled_counts("sleep_db") == (before[0], before[1] + 3)


async def test_queue_timeout_fails_and_counts_a_full_queue_does_not(triton: TritonDriver) -> None:
    """One executes for 0.9 s, two wait longer than their 0.4 s, the fourth finds two waiting already."""
    before = await triton.settled_counts("sleep_q")
    replies = await post_many(triton, "sleep_q", [sleep_body(900, batch=1) for _ in range(4)], gap_s=0.03)
    assert [reply.status for reply in replies] == [200, 503, 503, 503]
    assert [reply.error for reply in replies[1:3]] == ["Request timeout expired"] * 2
    assert "Exceeds maximum queue size" in replies[3].error
    assert [reply.headers["content-type"] for reply in replies[1:]] == [
        *["text/plain"] * 2,
        "application/json",
    ]
    assert await triton.settled_counts("sleep_q") == (before[0] + 1, before[1] + 2)


async def test_queue_timeout_through_generate_is_a_400_that_counts(triton: TritonDriver) -> None:
    before = await triton.settled_counts("sleep_q")
    replies: list[Reply] = []

    async def generate() -> None:
        replies.append(await triton.post("/v2/models/sleep_q/generate", {"DELAY_MS": 600, "X": 1}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(generate)
        await trio.sleep(0.03)
        nursery.start_soon(generate)
    assert {(reply.status, error_in(reply)) for reply in replies} == {
        (200, ""),
        (400, "Request timeout expired"),
    }
    assert await triton.settled_counts("sleep_q") == (before[0] + 1, before[1] + 1)


async def test_cache_hit_counts_a_success_and_executes_nothing(triton: TritonDriver) -> None:
    before, [stats], ids = await triton.settled_counts("cached"), await triton.statistics("cached"), []
    for _ in range(2):
        ids.append(new_id())
        reply = await triton.post("/v2/models/cached/infer", sleep_body(1, 4711, id=ids[-1]))
        assert reply.json()["outputs"][0]["data"] == [4711]
    assert await triton.settled_counts("cached") == (before[0] + 2, before[1])
    [after] = await triton.statistics("cached")
    assert after["inference_count"] - stats["inference_count"] == 1
    assert [triton.times_of(one)[0] is not None for one in ids] == [True, False]


async def test_cached_error_comes_back_as_a_success_without_outputs(triton: TritonDriver) -> None:
    replies = [await triton.post("/v2/models/cached/infer", sleep_body(2, -1)) for _ in range(2)]
    assert [reply.status for reply in replies] == [500, 200]
    assert replies[1].json()["outputs"] == []


async def test_dead_model_process_fails_after_a_second_and_counts(triton: TritonDriver) -> None:
    """The model stays READY; only loading it anew helps."""
    before = await triton.settled_counts("mortal")
    started = trio.current_time()
    for x in (-77, 5):
        reply = await triton.post("/v2/models/mortal/infer", sleep_body(1, x))
        assert (reply.status, reply.error) == (500, "Stub process 'mortal_0_0' is not healthy.")
    assert 1.9 < trio.current_time() - started < 4
    assert await triton.settled_counts("mortal") == (before[0], before[1] + 2)
    assert await triton.index_state("mortal") == ("READY", "")
    assert (await triton.get("/v2/models/mortal/ready")).status == 200


async def test_ensemble_moves_its_members_too(triton: TritonDriver) -> None:
    before = await triton.settled_counts("sleep")
    await triton.post("/v2/models/ens/infer", sleep_body(1, batch=1))
    await triton.post("/v2/models/ens/infer", sleep_body(1, -99, batch=1))
    assert await triton.settled_counts("sleep") == (before[0] + 1, before[1] + 1)


async def test_warm_up_counts(triton: TritonDriver) -> None:
    assert await triton.settled_counts("warm") == (3, 0)
