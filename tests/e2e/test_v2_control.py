"""An operator's unmodified `tritonclient` controls Triton through the governor, which sees it coming (A6, E7)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.e2e.conftest import ADMIN
from tests.e2e.test_tritonclient import address, outcome, tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.demo.triton import RealTriton

pytestmark = pytest.mark.real_triton

OPERATOR = {"Authorization": f"Bearer {ADMIN}"}
MODEL = "sleep"


@pytest.fixture
def client(governed: str) -> Iterator[triton.InferenceServerClient]:
    """A client of the governor; the model is as it was afterwards."""
    with triton.InferenceServerClient(address(governed)) as client:
        yield client
        client.load_model(MODEL, headers=OPERATOR)


def batch_of(size: int) -> list[triton.InferInput]:
    array = np.zeros((size, 1), np.int32)
    return [tensor("DELAY_MS", "INT32", array), tensor("X", "INT32", array)]


def infer(client: triton.InferenceServerClient, size: int) -> Any:
    return outcome(lambda each: each.infer(MODEL, batch_of(size)), client)


def reloads(governed: str) -> float:
    lines = httpx.get(f"{governed}/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("vig_reloads_total") and MODEL in line)


def test_a_reload_is_seen_at_once_and_requests_are_held_against_the_new_model(
    client: triton.InferenceServerClient, client_triton: RealTriton, governed: str
) -> None:
    assert infer(client, 8)[0]["outputs"]
    before = reloads(governed)
    usual = client.get_model_config(MODEL)
    client.load_model(MODEL, headers=OPERATOR, config=json.dumps({**usual, "max_batch_size": 4}))
    assert reloads(governed) == before + 1
    with triton.InferenceServerClient(address(client_triton.url)) as direct:
        assert infer(client, 8) == infer(direct, 8)
    assert "batch-size must be <= 4" in infer(client, 8)[1]
    client.load_model(MODEL, headers=OPERATOR, config=json.dumps(usual))
    assert infer(client, 8)[0]["outputs"]


def test_a_model_that_was_unloaded_is_none_until_it_is_loaded(
    client: triton.InferenceServerClient, client_triton: RealTriton
) -> None:
    client.unload_model(MODEL, headers=OPERATOR)
    with triton.InferenceServerClient(address(client_triton.url)) as direct:
        assert infer(client, 1) == infer(direct, 1)
    assert infer(client, 1)[0] == "404"
    assert not client.is_model_ready(MODEL)
    client.load_model(MODEL, headers=OPERATOR)
    assert client.is_model_ready(MODEL)
    assert infer(client, 1)[0]["outputs"]


def test_trace_settings_leave_the_boot_identity_alone(
    client: triton.InferenceServerClient, client_triton: RealTriton
) -> None:
    """E8: the governor keeps it in `log_frequency` of the model's trace settings."""
    with triton.InferenceServerClient(address(client_triton.url)) as direct:
        infer(client, 1)
        kept = direct.get_trace_settings(MODEL)["log_frequency"]
        assert int(kept) > 2**30
        told = client.update_trace_settings(MODEL, settings={"trace_rate": "7"}, headers=OPERATOR)
        assert (told["trace_rate"], told["log_frequency"]) == ("7", kept)
        with pytest.raises(InferenceServerException, match="log_frequency cannot be set"):
            client.update_trace_settings(MODEL, settings={"log_frequency": "5"}, headers=OPERATOR)
        client.update_trace_settings(settings={"trace_rate": "9"}, headers=OPERATOR)
        client.update_trace_settings(MODEL, settings={"trace_rate": None}, headers=OPERATOR)
        assert client.get_trace_settings(MODEL, headers=OPERATOR)["trace_rate"] == "9"
        assert direct.get_trace_settings(MODEL)["log_frequency"] == kept


def test_log_settings_and_shared_memory(client: triton.InferenceServerClient) -> None:
    assert client.get_log_settings(headers=OPERATOR)["log_verbose_level"] == 0
    assert client.update_log_settings({"log_verbose_level": 0}, headers=OPERATOR)["log_info"] is True
    assert client.get_system_shared_memory_status(headers=OPERATOR) == []
    with pytest.raises(InferenceServerException, match="Unable to open shared memory region"):
        client.register_system_shared_memory("r", "/no-such-region", 8, headers=OPERATOR)
    client.unregister_system_shared_memory(headers=OPERATOR)
