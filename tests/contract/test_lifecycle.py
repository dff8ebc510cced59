"""Restart, reload, unload and versions: what happens to the counters, and to work that executes meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11
import pytest
import trio

from tests.contract.driver import new_id, sleep_body, until

if TYPE_CHECKING:
    from tests.contract.driver import TritonDriver
    from tests.contract.wire import Reply

NONCE = "987654321"


async def infer(triton: TritonDriver, model: str = "nobatch", *, version: int | None = None) -> None:
    place = f"/versions/{version}" if version else ""
    batch = None if model == "nobatch" else 1
    reply = await triton.post(f"/v2/models/{model}{place}/infer", sleep_body(1, batch=batch))
    assert reply.status == 200, reply


async def test_kill_ends_the_work_and_zeroes_the_counters(own_triton: TritonDriver) -> None:
    triton = own_triton
    await infer(triton)
    execution = new_id()
    async with triton.wire() as wire:
        await wire.send("POST", "/v2/models/nobatch/infer", sleep_body(2500, id=execution))
        await triton.wait_for_start(execution)
        await triton.kill()
        with pytest.raises((h11.RemoteProtocolError, trio.BrokenResourceError)):
            await wire.reply()
    with pytest.raises(OSError):  # noqa: PT011  # refused: its kind differs between sockets and memory
        await triton.connect()
    await triton.start()
    assert await triton.settled_counts("nobatch") == (0, 0)
    assert [entry["last_inference"] for entry in await triton.statistics("nobatch")] == [0]
    await trio.sleep(1)
    assert triton.times_of(execution)[1] is None


async def test_terminate_finishes_what_executes_and_serves_open_connections(own_triton: TritonDriver) -> None:
    """A new connection is closed without an answer; a kept-alive one still gets even inferences."""
    triton = own_triton
    execution = new_id()
    async with triton.wire() as busy, triton.wire() as idle, trio.open_nursery() as nursery:
        assert (await idle.ask("GET", "/v2/health/live")).status == 200
        await busy.send("POST", "/v2/models/nobatch/infer", sleep_body(900, id=execution))
        await triton.wait_for_start(execution)
        nursery.start_soon(triton.terminate)
        await until(lambda: _turned_away(triton), "new connections to be turned away")
        assert (await idle.ask("GET", "/v2/models/nobatch/stats")).status == 200
        assert (await idle.ask("GET", "/v2/health/ready")).status == 200
        infer = await idle.ask("POST", "/v2/models/stream/generate", {"N": 1, "DELAY_MS": 1})
        assert infer.status == 200
        assert triton.times_of(execution)[1] is None
        assert (await busy.reply()).status == 200
        await busy.close()
        await idle.close()
    assert triton.times_of(execution)[1] is not None
    assert not triton.running


async def _turned_away(triton: TritonDriver) -> bool:
    try:
        return (await triton.get("/v2/health/live")).status != 200
    except (OSError, h11.RemoteProtocolError, trio.BrokenResourceError):
        return True


async def test_load_without_a_change_keeps_the_counters(triton: TritonDriver) -> None:
    await infer(triton)
    before = await triton.settled_counts("nobatch")
    await triton.load("nobatch")
    assert await triton.settled_counts("nobatch") == before


async def test_load_with_another_instance_count_keeps_the_counters(triton: TritonDriver) -> None:
    await infer(triton)
    before = await triton.settled_counts("nobatch")
    triton.set_instances("nobatch", 2)
    await triton.load("nobatch")
    assert await triton.settled_counts("nobatch") == before
    ids = [new_id(), new_id()]
    async with trio.open_nursery() as nursery:
        for one in ids:
            nursery.start_soon(triton.post, "/v2/models/nobatch/infer", sleep_body(300, id=one))
    (start, _end), (other_start, other_end) = sorted((triton.times_of(one) for one in ids), key=str)
    assert start is not None
    assert other_start is not None
    assert other_end is not None
    assert abs(start - other_start) < 0.25, "two instances work side by side"


@pytest.mark.parametrize("how", ["reload", "unload and load"])
async def test_old_call_executes_beside_the_new_instance(triton: TritonDriver, how: str) -> None:
    """Its answer arrives; the statistics never see its end, the process's metrics do, at its end."""
    await infer(triton)
    await triton.settled_counts("nobatch")
    success = await triton.metric("nv_inference_request_success", "nobatch")
    assert success is not None
    old, new = new_id(), new_id()
    replies: list[Reply] = []

    async def old_call() -> None:
        replies.append(await triton.post("/v2/models/nobatch/infer", sleep_body(1500, id=old)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(old_call)
        await triton.wait_for_start(old)
        if how == "reload":
            triton.change_model("nobatch")
        else:
            await triton.unload("nobatch")
        await triton.load("nobatch")
        assert await triton.counts("nobatch") == (0, 0)
        assert (await triton.post("/v2/models/nobatch/infer", sleep_body(1, id=new))).status == 200
        assert triton.times_of(old)[1] is None, "the old call executes still"
        assert await triton.settled_counts("nobatch") == (1, 0)
        assert await triton.metric("nv_inference_request_success", "nobatch") == success + 1
    assert replies[0].status == 200
    assert triton.times_of(old)[1] is not None
    assert await triton.settled_counts("nobatch") == (1, 0)
    assert await triton.metric("nv_inference_request_success", "nobatch") == success + 2


async def test_unloaded_model_answers_what_it_is(triton: TritonDriver) -> None:
    """It is UNLOADING until about 1.1 s after its last work, and meanwhile the server is not ready."""
    execution = new_id()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(triton.post, "/v2/models/nobatch/infer", sleep_body(600, id=execution))
        await triton.wait_for_start(execution)
        await triton.unload("nobatch")
        assert await triton.index_state("nobatch") == ("UNLOADING", "")
        assert (await triton.get("/v2/health/ready")).status == 400
    stats = await triton.get("/v2/models/nobatch/stats")
    assert (stats.status, stats.error) == (400, "requested model 'nobatch' is not available")
    gone = await triton.post("/v2/models/nobatch/infer", sleep_body(1))
    assert (gone.status, gone.error) == (
        404,
        "Request for unknown model: 'nobatch' has no available versions",
    )
    assert (await triton.get("/v2/models/nobatch/ready")).status == 400
    await until(lambda: _state_is(triton, "nobatch", "UNAVAILABLE"), "the model to be unloaded")
    assert await triton.index_state("nobatch") == ("UNAVAILABLE", "unloaded")
    ended = triton.times_of(execution)[1]
    assert ended is not None
    assert (await triton.get("/v2/health/ready")).status == 200


async def _state_is(triton: TritonDriver, model: str, state: str) -> bool:
    return (await triton.index_state(model))[0] == state


async def test_unload_of_a_member_unloads_its_ensemble_and_load_of_the_ensemble_loads_it(
    triton: TritonDriver,
) -> None:
    await triton.unload("sleep")
    await until(lambda: _state_is(triton, "ens", "UNAVAILABLE"), "the ensemble to be unloaded")
    await triton.load("ens")
    assert [await triton.index_state(name) for name in ("ens", "sleep")] == [("READY", "")] * 2


async def test_load_and_unload_of_what_is_not_there(triton: TritonDriver) -> None:
    load = await triton.post("/v2/repository/models/nope/load")
    assert (load.status, load.error) == (500, "failed to load 'nope', failed to poll from model repository")
    assert (await triton.post("/v2/repository/models/nope/unload")).status == 200


async def versions_of(triton: TritonDriver) -> dict[str, int]:
    entries = await triton.statistics("multi")
    return {entry["version"]: entry["inference_stats"]["success"]["count"] for entry in entries}


async def test_added_version_leaves_the_counters_of_the_others(triton: TritonDriver) -> None:
    await infer(triton, "multi", version=1)
    await infer(triton, "multi", version=2)
    await triton.settled_counts("multi")
    before = await versions_of(triton)
    triton.set_versions("multi", (1, 2, 3))
    await triton.load("multi")
    assert await versions_of(triton) == {**before, "3": 0}


async def test_removed_version_takes_its_counters_and_its_running_call_with_it(triton: TritonDriver) -> None:
    """The sum falls at once; the call executes to its end and answers, and only the metrics count it."""
    await infer(triton, "multi", version=1)
    await infer(triton, "multi", version=2)
    await triton.settled_counts("multi")
    before = await versions_of(triton)
    success = await triton.metric("nv_inference_request_success", "multi", version="2")
    assert success is not None
    execution, replies = new_id(), list[int]()

    async def call() -> None:
        path = "/v2/models/multi/versions/2/infer"
        replies.append((await triton.post(path, sleep_body(600, batch=1, id=execution))).status)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await triton.wait_for_start(execution)
        triton.set_versions("multi", (1,))
        await triton.load("multi")
        assert await versions_of(triton) == {"1": before["1"]}
        assert triton.times_of(execution)[1] is None
    assert replies == [200]
    assert await versions_of(triton) == {"1": before["1"]}
    assert await triton.metric("nv_inference_request_success", "multi", version="2") == success + 1


# -- telling a restart from a reload -------------------------------------------------------------------------


async def nonce(triton: TritonDriver, model: str | None = None) -> str:
    path = "/v2/trace/setting" if model is None else f"/v2/models/{model}/trace/setting"
    reply = await triton.get(path)
    assert reply.status == 200, reply
    return str(reply.json()["log_frequency"])


async def test_trace_nonce_survives_reload_and_unload_and_dies_with_the_process(
    own_triton: TritonDriver,
) -> None:
    triton = own_triton
    for path in ("/v2/trace/setting", "/v2/models/nobatch/trace/setting"):
        reply = await triton.post(path, {"log_frequency": NONCE})
        assert (reply.status, reply.json()["log_frequency"]) == (200, NONCE)
    triton.change_model("nobatch")
    await triton.load("nobatch")
    assert await nonce(triton) == await nonce(triton, "nobatch") == NONCE
    await triton.unload("nobatch")
    await triton.load("nobatch")
    assert await nonce(triton) == await nonce(triton, "nobatch") == NONCE
    assert (await triton.get("/v2/trace/setting")).json()["trace_level"] == ["OFF"]
    await triton.kill()
    await triton.start()
    assert await nonce(triton) == await nonce(triton, "nobatch") == "0"


async def test_model_nonce_hides_the_global_one_until_it_is_cleared(triton: TritonDriver) -> None:
    await triton.post("/v2/trace/setting", {"log_frequency": "11"})
    assert await nonce(triton, "sleep") == "11"
    await triton.post("/v2/models/sleep/trace/setting", {"log_frequency": "22"})
    assert (await nonce(triton), await nonce(triton, "sleep")) == ("11", "22")
    await triton.post("/v2/models/sleep/trace/setting", {"log_frequency": None})
    assert await nonce(triton, "sleep") == "11"
    await triton.post("/v2/trace/setting", {"log_frequency": None})
    assert await nonce(triton) == "0"


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"log_frequency": "abc"}, 400, "Unable to parse 'log_frequency', got: abc"),
        ({"log_frequency": 5}, 500, "attempt to access JSON non-string as string"),
        (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
    ],
)
async def test_trace_setting_refuses_what_is_no_number(
    triton: TritonDriver, body: object, status: int, error: str
) -> None:
    before = await nonce(triton)
    reply = await triton.post("/v2/trace/setting", body)
    assert (reply.status, reply.error) == (status, error)
    assert await nonce(triton) == before


async def test_server_tells_the_id_it_was_started_with(triton: TritonDriver) -> None:
    told = (await triton.get("/v2")).json()
    assert told["name"] == triton.server_id
    assert told["version"] == "2.51.0"
    assert {"statistics", "trace", "binary_tensor_data", "model_repository"} <= set(told["extensions"])
