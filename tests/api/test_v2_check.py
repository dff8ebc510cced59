"""Requests are held against their model before a credit is spent (D5): when, and what that rests on."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
import trio

from governor.requests import FRESH_S, UNKNOWN_S
from governor.triton.requestcheck import CHECKED_BYTES_MAX
from tests.api.harness import Answer, AsgiExchange, Service, service
from tests.shell.world import Break, Plan

if TYPE_CHECKING:
    from trio.testing import MockClock

INFER = "/v2/models/chat/infer"
CONFIG = "GET /v2/models/m/config"
UNKNOWN = "Request for unknown model: 'm' version 9 is not found"


def config(dims: int = 2, **more: Any) -> tuple[int, str, bytes]:
    """A model with one INT32 vector as its input."""
    told = {
        "name": "m",
        "max_batch_size": 0,
        "input": [{"name": "X", "data_type": "TYPE_INT32", "dims": [dims]}],
        "output": [{"name": "Y", "data_type": "TYPE_INT32", "dims": [dims]}],
        **more,
    }
    return 200, "application/json", json.dumps(told).encode()


def body(count: int = 2, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "X", "datatype": "INT32", "shape": [count], "data": [0] * count}], **more}


async def send(up: Service, document: object, **options: Any) -> Answer:
    """One call; Triton, if it gets it, answers at once."""
    up.world.next_plans.append(Plan(body=b"{}"))
    answer = await up.ask("POST", options.pop("path", INFER), body=document, **options)
    up.world.next_plans.clear()
    return answer


def asked(up: Service) -> int:
    """How often the model was asked what it is."""
    return sum(wire.path.endswith("/config") for wire in up.world.questions)


def calls(up: Service) -> int:
    return up.governor.statistics().identities[0].totals.calls


async def test_what_triton_would_refuse_takes_no_credit(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.replies[CONFIG] = config()
        answer = await send(up, body(3, id="a"))
        assert (answer.status, answer.code) == (400, "invalid_inference_request")
        assert (
            answer.json["error"]
            == "[request id: a] unexpected shape for input 'X' for model 'm'. Expected [2], got [3]. "
        )
        assert not up.world.wires
        assert calls(up) == 0
        assert (await send(up, body(2))).status == 200


async def test_a_version_that_triton_does_not_serve_takes_no_credit(autojump_clock: MockClock) -> None:
    """Such an answer counts nowhere, and a call that breaks before it would be held for ever on its account."""
    async with service() as up:
        up.world.replies["GET /v2/models/m/versions/9/config"] = (
            404,
            "application/json",
            json.dumps({"error": UNKNOWN}).encode(),
        )
        for kind in ("infer", "generate", "generate_stream"):
            answer = await send(up, {}, path=f"/v2/models/chat/versions/9/{kind}")
            assert (answer.status, answer.code, answer.json["error"]) == (404, "model_not_served", UNKNOWN)
        assert calls(up) == 0


async def test_an_unknown_version_leaves_no_doubt_that_would_hold_a_broken_call(autojump_clock: MockClock) -> None:
    """Nobody knows of such an answer whether it was counted; with one slot, no quiet moment would ever tell."""
    async with service() as up:
        reply = (404, "application/json", json.dumps({"error": UNKNOWN}).encode())
        up.world.replies["GET /v2/models/m/versions/9/config"] = reply
        up.world.next_plans.append(Plan(body=b"{}"))
        assert (await up.ask("POST", INFER, data=b"{}")).status == 200
        assert (await send(up, {}, path="/v2/models/chat/versions/9/infer")).code == "model_not_served"
        up.world.next_plans.append(Plan(seconds=0.5, body=b"{}", breaks=Break.AFTER_DELIVERY))
        assert (await up.ask("POST", INFER, data=b"{}")).code == "backend_connection_lost"
        assert up.free == 0
        await trio.sleep(2)
        assert up.free == 1


async def test_infer_on_a_decoupled_model_takes_no_credit(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.replies[CONFIG] = config(model_transaction_policy={"decoupled": True})
        answer = await send(up, body())
        assert (answer.status, answer.code) == (501, "decoupled_model")
        assert (await send(up, {"X": 1}, path="/v2/models/chat/generate_stream")).status == 200


async def test_generate_is_checked_as_well(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.replies[CONFIG] = config()
        refused = await send(up, {"Z": 1}, path="/v2/models/chat/generate")
        assert refused.code == "invalid_inference_request"
        assert "expected 1 inputs but got 0 inputs" in refused.json["error"]
        for good in ({"X": 1}, {"parameters": {"X": 1}}):
            assert (await send(up, good, path="/v2/models/chat/generate")).status == 200


async def test_a_model_is_asked_once_while_its_requests_are_good(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.replies[CONFIG] = config()
        for _ in range(10):
            assert (await send(up, body())).status == 200
        assert asked(up) == 1
        await trio.sleep(FRESH_S)
        await send(up, body())
        assert asked(up) == 2


async def test_nothing_is_refused_on_old_knowledge(autojump_clock: MockClock) -> None:
    """The model was loaded anew beside us: what it takes now is asked before anything is refused."""
    async with service() as up:
        up.world.replies[CONFIG] = config(2)
        assert (await send(up, body(2))).status == 200
        up.world.replies[CONFIG] = config(3)
        assert (await send(up, body(3))).status == 200
        refused = await send(up, body(2))
        assert refused.status == 400


async def test_bad_requests_that_come_together_ask_together(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        up.world.replies[CONFIG] = config()
        assert (await send(up, body())).status == 200
        up.world.questions_wait = trio.Event()
        data = json.dumps(body(3)).encode()
        exchanges = [AsgiExchange(up.app, "POST", INFER, data=data) for _ in range(50)]
        for exchange in exchanges:
            nursery.start_soon(exchange.run)
        await trio.sleep(0.1)
        up.world.questions_wait.set()
        for exchange in exchanges:
            assert (await exchange.whole()).status == 400
        assert asked(up) <= 3


async def test_a_reload_and_a_doubtful_answer_make_it_ask_again(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.replies[CONFIG] = config()
        await send(up, body())
        identity = up.governor.models["chat"].identity
        await trio.sleep(0.1)
        await identity.take_reading()
        up.world.reload()
        await identity.take_reading()
        await send(up, body())
        assert asked(up) == 2
        for status in (400, 404):
            await trio.sleep(2)
            up.world.next_plans.append(Plan(status=status, body=b'{"error":"x"}', counts=(0, 0)))
            assert (await up.ask("POST", INFER, body=body())).status == status
            before = asked(up)
            await send(up, body())
            assert asked(up) == before + 1


async def test_doubtful_answers_in_a_row_do_not_ask_each_time(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.replies[CONFIG] = config()
        for _ in range(10):
            up.world.next_plans.append(Plan(status=400, body=b'{"error":"x"}', counts=(0, 0)))
            await up.ask("POST", INFER, body=body())
        assert asked(up) == 1


@pytest.mark.parametrize(
    "reply",
    [
        (404, "text/plain", b'{"error":"Not Found"}'),
        (403, "application/json", b'{"error":"This API is restricted, expecting header \'x\'"}'),
        (200, "application/json", b"<html>"),
        (200, "application/json", b'{"name": 7}'),
    ],
)
async def test_a_model_that_cannot_be_asked_is_called_unchecked(
    reply: tuple[int, str, bytes], autojump_clock: MockClock
) -> None:
    async with service() as up:
        up.world.replies[CONFIG] = reply
        for _ in range(5):
            assert (await send(up, {"inputs": []})).status == 200
        assert asked(up) == 1, "it is not asked again for each request"
        await trio.sleep(UNKNOWN_S)
        await send(up, {"inputs": []})
        assert asked(up) == 2


async def test_a_server_that_does_not_tell_holds_no_call_up_for_long(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.questions_wait = trio.Event()
        began = trio.current_time()
        assert (await send(up, body(3))).status == 200
        assert trio.current_time() - began < 1
        began = trio.current_time()
        assert (await send(up, body(3))).status == 200
        assert trio.current_time() - began < 0.1


async def test_a_server_that_is_down_is_not_asked(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.kill()
        await trio.sleep(2)
        assert (await up.ask("POST", INFER, body=body(3))).code == "backend_unavailable"
        assert asked(up) == 0


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (gzip.compress(json.dumps(body(3)).encode()), {"Content-Encoding": "gzip"}),
        (json.dumps(body(3, more="x" * CHECKED_BYTES_MAX)).encode(), {}),
        (b"{", {}),
        (b"", {}),
        (json.dumps(body(3)).encode(), {"Inference-Header-Content-Length": "0"}),
        (json.dumps(body(3)).encode(), {"Inference-Header-Content-Length": "9999"}),
        (json.dumps(body(3)).encode(), {"Inference-Header-Content-Length": "x"}),
        (json.dumps(body(3)).replace("[3]", '[3], "shape": [2]').encode(), {}),
        (json.dumps(body(3)).replace('"X"', '"X\\u0000"').encode(), {}),
    ],
)
async def test_what_is_unclear_goes_to_triton(data: bytes, fields: dict[str, str], autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.replies[CONFIG] = config()
        assert (await send(up, None, data=data, headers=fields)).status == 200
        assert up.world.wires[0].body == data


async def test_the_head_of_a_binary_request_is_checked(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.replies[CONFIG] = config(-1)
        head = {
            "inputs": [{"name": "X", "datatype": "FP32", "shape": [1000], "parameters": {"binary_data_size": 4000}}]
        }
        text = json.dumps(head).encode()
        fields = {"Inference-Header-Content-Length": str(len(text))}
        refused = await send(up, None, data=text + bytes(4000), headers=fields)
        assert "data-type is 'FP32', but model 'm' expects 'INT32'" in refused.json["error"]
        text = text.replace(b"FP32", b"INT32")
        fields = {"Inference-Header-Content-Length": str(len(text))}
        assert (await send(up, None, data=text + bytes(4000), headers=fields)).status == 200


async def test_a_shape_that_would_kill_triton_never_reaches_it(autojump_clock: MockClock) -> None:
    """Triton 2.51 makes room for as many elements as a JSON tensor's shape says, and ends when it cannot."""
    async with service() as up:
        up.world.replies[CONFIG] = config(-1)
        for shape in ([2**40], [2**62], [1_000_000]):
            told = {"inputs": [{"name": "X", "datatype": "INT32", "shape": shape, "data": [0]}]}
            answer = await send(up, told)
            assert (answer.status, answer.code) == (500, "invalid_tensor_data")
        assert not up.world.wires
