"""E12: what kind of model it is, from Triton's own configuration. The documents are 2.51.0's, shortened."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import BackendError, BackendProtocolError, BackendUnavailableError
from governor.triton.metadata import (
    ModelFacts,
    ServerFacts,
    TensorFacts,
    fetch_model,
    fetch_server,
    model_ready,
    parse_model,
    server_ready,
)
from tests.triton.peer import UNHURRIED, Peer, open_peer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.triton.lane import Lane

CONFIG: dict[str, Any] = {
    "name": "m",
    "platform": "",
    "backend": "python",
    "max_batch_size": 8,
    "input": [
        {"name": "DELAY_MS", "data_type": "TYPE_INT32", "dims": [1], "optional": False},
        {"name": "text_input", "data_type": "TYPE_STRING", "dims": ["-1", 2], "optional": True},
    ],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}],
    "instance_group": [
        {"name": "m_0", "kind": "KIND_CPU", "count": 3, "gpus": []},
        {"name": "m_1", "kind": "KIND_GPU", "count": 2, "gpus": [0, 1]},
        {"name": "m_2", "kind": "KIND_GPU", "count": 9, "gpus": [0], "passive": True},
    ],
    "model_transaction_policy": {"decoupled": False},
}
METADATA: dict[str, Any] = {"name": "m", "versions": ["1", "3"], "platform": "python", "inputs": [], "outputs": []}
FACTS = ModelFacts(
    name="m",
    decoupled=False,
    ensemble=False,
    max_batch_size=8,
    instance_count=7,
    inputs=(TensorFacts("DELAY_MS", "INT32", (1,)), TensorFacts("text_input", "BYTES", (-1, 2), optional=True)),
    outputs=(TensorFacts("Y", "FP32", (1,)),),
    versions=("1", "3"),
    backend="python",
)


def test_model_facts_are_read_from_configuration_and_metadata() -> None:
    assert parse_model(CONFIG, METADATA) == FACTS


def test_a_model_that_warms_up_is_recognised() -> None:
    """ADR-0002: its process counters are no evidence."""
    assert not parse_model({**CONFIG, "model_warmup": []}, METADATA).warms_up
    assert parse_model({**CONFIG, "model_warmup": [{"name": "w", "batch_size": 1}]}, METADATA).warms_up
    assert parse_model({**CONFIG, "dynamic_batching": {}}, METADATA).batch == 8
    assert parse_model({**CONFIG, "dynamic_batching": {}, "max_batch_size": 0}, METADATA).batch == 1
    assert (
        parse_model({**CONFIG, "backend": "", "platform": "onnxruntime_onnx"}, METADATA).backend == "onnxruntime_onnx"
    )


def test_decoupled_models_and_ensembles_are_recognised() -> None:
    assert parse_model({**CONFIG, "model_transaction_policy": {"decoupled": True}}, METADATA).decoupled
    without = {key: value for key, value in CONFIG.items() if key != "model_transaction_policy"}
    assert not parse_model(without, METADATA).decoupled, "2.51 leaves the policy out where config.pbtxt did"
    scheduled: dict[str, Any] = {"ensemble_scheduling": {"step": []}}
    ensemble = parse_model({**CONFIG, "platform": "ensemble", "instance_group": []}, METADATA)
    assert (ensemble.ensemble, ensemble.instance_count) == (True, 0)
    assert parse_model({**CONFIG, **scheduled}, METADATA).ensemble


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", 3),
        ("max_batch_size", True),
        ("max_batch_size", 1.5),
        ("max_batch_size", "many"),
        ("input", {}),
        ("input", [3]),
        ("input", [{"name": "x"}]),
        ("output", [{"name": "x", "data_type": "TYPE_FP32", "dims": "1"}]),
        ("output", [{"name": "x", "data_type": "TYPE_FP32", "dims": [1.5]}]),
        ("instance_group", [{"count": None}]),
    ],
)
def test_configuration_with_a_wrong_member_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(BackendProtocolError, match="Triton"):
        parse_model({**CONFIG, key: value}, METADATA)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "data_type", "dims", "count", "gpus"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@UNHURRIED
@given(st.dictionaries(st.sampled_from([*CONFIG, "versions"]), JSON))
def test_nothing_but_the_backends_fault_comes_of_garbage(document: dict[str, Any]) -> None:
    with suppress(BackendProtocolError):
        parse_model({**CONFIG, **document}, document)


async def against(answers: dict[str, tuple[int, bytes]], ask: Callable[[Lane], Awaitable[object]]) -> object:
    """Ask a server that has these answers, by path."""

    async def serve(peer: Peer) -> None:
        connection = await peer.accept()
        while True:
            path = (await connection.read_request()).split(b" ")[1].decode()
            status, body = answers[path]
            await connection.send(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    async with open_peer() as peer, trio.open_nursery() as nursery:
        nursery.start_soon(serve, peer)
        lane = peer.lane()
        try:
            result, error = await ask(lane), None
        except BackendError as failed:
            result, error = None, failed
        nursery.cancel_scope.cancel()
        lane.close()
    if error is not None:
        raise error  # out here, where no nursery wraps it
    return result


SERVER = b'{"name":"triton","version":"2.51.0","extensions":["statistics","trace"]}'


async def test_facts_are_fetched() -> None:
    assert await against({"/v2": (200, SERVER)}, fetch_server) == ServerFacts(
        "triton", "2.51.0", frozenset({"statistics", "trace"})
    )
    answers = {
        "/v2/models/m/config": (200, json.dumps(CONFIG).encode()),
        "/v2/models/m": (200, json.dumps(METADATA).encode()),
    }
    assert await against(answers, lambda lane: fetch_model(lane, "m")) == FACTS


async def test_model_that_is_not_loaded_is_unavailable_in_tritons_words() -> None:
    answers = {"/v2/models/m/config": (404, b'{"error":"Request for unknown model: \'m\' is not found"}')}
    with pytest.raises(BackendUnavailableError, match="unknown model: 'm'"):
        await against(answers, lambda lane: fetch_model(lane, "m"))


@pytest.mark.parametrize(
    ("status", "body"), [(200, b""), (200, b"[]"), (200, b"{}"), (200, b"<html>"), (500, b""), (200, b'{"name":"x"}')]
)
async def test_what_is_no_triton_is_said_so(status: int, body: bytes) -> None:
    with pytest.raises(BackendError):
        await against({"/v2": (status, body)}, fetch_server)


@pytest.mark.parametrize(("status", "ready"), [(200, True), (400, False), (404, False), (503, False)])
async def test_readiness_is_the_status(status: int, *, ready: bool) -> None:
    answers = {
        "/v2/health/ready": (status, b""),
        "/v2/models/a%2Fb/ready": (status, b""),
        "/v2/models/m/versions/2/ready": (status, b'{"error":"Model version not ready"}'),
    }
    assert await against(answers, server_ready) is ready
    assert await against(answers, lambda lane: model_ready(lane, "a/b")) is ready
    assert await against(answers, lambda lane: model_ready(lane, "m", "2")) is ready


async def test_readiness_of_a_server_that_is_not_there_is_an_error_with_a_reason() -> None:
    async with open_peer() as peer:
        lane = peer.lane()
    with pytest.raises(BackendUnavailableError, match="Connection refused"):
        await server_ready(lane)
