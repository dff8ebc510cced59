"""What /metrics counts, and how long its series live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.contract.driver import sleep_body, until

if TYPE_CHECKING:
    from tests.contract.driver import TritonDriver

SUCCESS = "nv_inference_request_success"
FAILURE = "nv_inference_request_failure"


async def test_metrics_are_prometheus_text(triton: TritonDriver) -> None:
    reply = await triton.ask("GET", "/metrics", metrics=True)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    text = reply.body.decode()
    assert f"# TYPE {SUCCESS} counter\n" in text
    assert f"# TYPE {FAILURE} counter\n" in text
    assert f'{SUCCESS}{{model="nobatch",version="1"}} ' in text
    for reason in ("BACKEND", "CANCELED", "OTHER", "REJECTED"):
        assert f'{FAILURE}{{model="nobatch",reason="{reason}",version="1"}} ' in text


async def test_metrics_count_what_the_statistics_count(triton: TritonDriver) -> None:
    success, failure = await triton.metric(SUCCESS, "nobatch"), await triton.metric(FAILURE, "nobatch")
    inferences = await triton.metric("nv_inference_count", "nobatch")
    assert success is not None
    assert failure is not None
    assert inferences is not None
    for x in (5, -1, -99):
        await triton.post("/v2/models/nobatch/infer", sleep_body(1, x))
    await triton.settled_counts("nobatch")
    assert await triton.metric(SUCCESS, "nobatch") == success + 2
    assert await triton.metric(FAILURE, "nobatch", reason="BACKEND") == failure + 1
    assert await triton.metric("nv_inference_count", "nobatch") == inferences + 2


async def test_failure_of_an_ensemble_counts_twice_as_other(triton: TritonDriver) -> None:
    before = await triton.metric(FAILURE, "ens", reason="OTHER")
    assert before is not None
    await triton.post("/v2/models/ens/infer", sleep_body(1, -99, batch=1))
    await triton.settled_counts("ens")
    assert await triton.metric(FAILURE, "ens", reason="OTHER") == before + 2


async def test_success_series_lives_as_long_as_a_load_and_failures_as_long_as_the_process(
    triton: TritonDriver,
) -> None:
    for x in (5, 5, -99):
        await triton.post("/v2/models/nobatch/infer", sleep_body(1, x))
    await triton.settled_counts("nobatch")
    failures = await triton.metric(FAILURE, "nobatch")
    assert failures
    await triton.unload("nobatch")
    assert await triton.metric(SUCCESS, "nobatch"), "until the model is gone"
    await until(lambda: _unloaded(triton), "the model to be unloaded")
    assert await triton.metric(SUCCESS, "nobatch") is None
    assert await triton.metric(FAILURE, "nobatch") == failures
    await triton.load("nobatch")
    assert await triton.metric(SUCCESS, "nobatch") == 0
    assert await triton.metric(FAILURE, "nobatch") == failures


async def _unloaded(triton: TritonDriver) -> bool:
    return await triton.index_state("nobatch") == ("UNAVAILABLE", "unloaded")


async def test_reload_keeps_the_success_series(triton: TritonDriver) -> None:
    await triton.post("/v2/models/nobatch/infer", sleep_body(1))
    await triton.settled_counts("nobatch")
    before = await triton.metric(SUCCESS, "nobatch")
    triton.change_model("nobatch")
    await triton.load("nobatch")
    assert await triton.counts("nobatch") == (0, 0)
    assert await triton.metric(SUCCESS, "nobatch") == before


async def test_other_paths_of_the_metrics_port(triton: TritonDriver) -> None:
    other = await triton.ask("GET", "/nothing", metrics=True)
    assert (other.status, other.body) == (200, b"")
    assert (await triton.ask("POST", "/metrics", metrics=True)).status == 405
