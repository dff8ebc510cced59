"""Every misbehaviour a simulated Triton can be told, seen from its client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h11
import pytest
import trio
import trio.testing

from governor.simulator import Endpoint, Limits, SimulatedTriton, demo_models, lab_models, simulated_triton
from governor.simulator.faults import (
    HUGE_BYTES,
    Delay,
    EndlessBody,
    Hang,
    ResetAfterBody,
    ResetBeforeBody,
    ResetMidAnswer,
    body_of,
    counts_as,
    counts_plus,
    huge_body,
    without_models,
)
from tests.contract.driver import sleep_body
from tests.contract.wire import Reply, Wire, request_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

INFER = "/v2/models/nobatch/infer"
STATS = "/v2/models/nobatch/stats"


@pytest.fixture
async def triton(autojump_clock: trio.testing.MockClock) -> AsyncIterator[SimulatedTriton]:
    async with simulated_triton((*lab_models(), *demo_models())) as simulated:
        yield simulated


async def ask(triton: SimulatedTriton, method: str, path: str, body: Any = b"") -> Reply:
    wire = Wire(triton.connect_in_memory())
    try:
        return await wire.ask(method, path, body)
    finally:
        await wire.close()


async def counted(triton: SimulatedTriton) -> Any:
    [entry] = (await ask(triton, "GET", STATS)).json()["model_stats"]
    return entry["inference_stats"]["success"]["count"]


def log_of(triton: SimulatedTriton) -> list[object]:
    return [line["what"] for line in triton.world.worklog.lines]


async def test_delay_holds_the_answer_back_but_not_the_work(
    triton: SimulatedTriton, autojump_clock: trio.testing.MockClock
) -> None:
    triton.faults.add(Delay(5.0), endpoint=Endpoint.INFER)
    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, triton, "POST", INFER, sleep_body(100))
        await trio.sleep(0.2)
        assert log_of(triton) == ["start", "end"]
    assert trio.current_time() - started == pytest.approx(5.1)


@pytest.mark.parametrize("executes", [False, True])
async def test_hang_never_answers(
    triton: SimulatedTriton, autojump_clock: trio.testing.MockClock, *, executes: bool
) -> None:
    triton.faults.add(Hang(executes=executes), endpoint=Endpoint.INFER)
    with pytest.raises(trio.TooSlowError):
        await ask(triton, "POST", INFER, sleep_body(1))
    assert log_of(triton) == (["start", "end"] if executes else [])
    await trio.testing.wait_all_tasks_blocked()
    assert triton.open_connections == 0, "a hanging request ends with its client"


async def test_reset_before_the_body_executes_nothing(
    triton: SimulatedTriton, autojump_clock: trio.testing.MockClock
) -> None:
    triton.faults.add(ResetBeforeBody(), endpoint=Endpoint.INFER)
    wire = Wire(triton.connect_in_memory())
    await wire.stream.send_all(request_bytes("POST", INFER, b"x" * 100)[:-100])
    assert await wire.stream.receive_some() == b""
    assert log_of(triton) == []


async def test_reset_after_the_body_executes_and_counts(
    triton: SimulatedTriton, autojump_clock: trio.testing.MockClock
) -> None:
    fault = triton.faults.add(ResetAfterBody(), endpoint=Endpoint.INFER, model="nobatch")
    with pytest.raises((h11.RemoteProtocolError, trio.BrokenResourceError)):
        await ask(triton, "POST", INFER, sleep_body(50))
    await trio.sleep(0.1)
    assert log_of(triton) == ["start", "end"]
    assert await counted(triton) == 1
    assert (fault.used, triton.faults.active) == (1, [])


async def test_reset_within_the_answer(triton: SimulatedTriton, autojump_clock: trio.testing.MockClock) -> None:
    triton.faults.add(ResetMidAnswer(body_bytes=10), endpoint=Endpoint.INFER)
    wire = Wire(triton.connect_in_memory())
    await wire.send("POST", INFER, sleep_body(1))
    assert (await wire.head()).status == 200
    assert len(await wire.next_data()) == 10
    with pytest.raises(h11.RemoteProtocolError):
        await wire.rest()
    assert await counted(triton) == 1


async def test_reset_within_a_stream_after_so_many_events(
    triton: SimulatedTriton, autojump_clock: trio.testing.MockClock
) -> None:
    triton.faults.add(ResetMidAnswer(events=2), endpoint=Endpoint.GENERATE_STREAM)
    wire = Wire(triton.connect_in_memory())
    await wire.send("POST", "/v2/models/stream/generate_stream", {"N": 5, "DELAY_MS": 100})
    assert (await wire.head()).status == 200
    assert [b'"Y":0' in await wire.next_data(), b'"Y":1' in await wire.next_data()] == [True, True]
    with pytest.raises(h11.RemoteProtocolError):
        await wire.rest()


async def test_fault_applies_to_so_many_requests_of_its_kind_and_model(
    triton: SimulatedTriton, autojump_clock: trio.testing.MockClock
) -> None:
    triton.faults.add(body_of(b"{}", status=503), endpoint=Endpoint.STATISTICS, model="nobatch", times=2)
    other = (await ask(triton, "GET", "/v2/models/sleep/stats")).status
    statuses = [(await ask(triton, "GET", STATS)).status for _ in range(3)]
    assert (other, statuses) == (200, [503, 503, 200])


async def test_fault_without_a_count_holds_until_it_is_removed(
    triton: SimulatedTriton, autojump_clock: trio.testing.MockClock
) -> None:
    fault = triton.faults.add(body_of(b"", status=500), endpoint=Endpoint.READY, times=None)
    assert [(await ask(triton, "GET", "/v2/health/ready")).status for _ in range(3)] == [500] * 3
    triton.faults.remove(fault)
    assert (await ask(triton, "GET", "/v2/health/ready")).status == 200


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (counts_plus(7), 8),
        (counts_plus(-7), -6),
        (counts_as(-1), -1),
        (counts_as(2.5), 2.5),
        (counts_as("7"), "7"),
    ],
)
async def test_wrong_counts(
    triton: SimulatedTriton, autojump_clock: trio.testing.MockClock, fault: Any, expected: object
) -> None:
    await ask(triton, "POST", INFER, sleep_body(1))
    triton.faults.add(fault, endpoint=Endpoint.STATISTICS)
    assert [await counted(triton), await counted(triton)] == [expected, 1]


async def test_statistics_without_models_without_json_and_with_ten_mebibytes(
    triton: SimulatedTriton, autojump_clock: trio.testing.MockClock
) -> None:
    for fault in (without_models(), body_of(b"<html>"), huge_body()):
        triton.faults.add(fault, endpoint=Endpoint.STATISTICS)
    assert (await ask(triton, "GET", STATS)).json() == {"model_stats": []}
    assert (await ask(triton, "GET", STATS)).body == b"<html>"
    huge = await ask(triton, "GET", STATS)
    assert len(huge.body) > HUGE_BYTES
    assert json.loads(huge.body)["model_stats"][0]["name"] == "nobatch"


async def test_endless_body_never_ends(triton: SimulatedTriton, autojump_clock: trio.testing.MockClock) -> None:
    triton.faults.add(EndlessBody(every_s=0.1), endpoint=Endpoint.STATISTICS)
    wire = Wire(triton.connect_in_memory())
    await wire.send("GET", STATS)
    assert (await wire.head()).status == 200
    for _ in range(500):
        assert await wire.next_data()


async def test_counters_can_lag_behind_the_answer(
    triton: SimulatedTriton, autojump_clock: trio.testing.MockClock
) -> None:
    triton.process.counter_lag_s = 0.36
    await ask(triton, "POST", INFER, sleep_body(1))
    assert await counted(triton) == 0
    await trio.sleep(0.37)
    assert await counted(triton) == 1


async def test_body_beyond_the_limit_is_answered_413_and_not_kept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with simulated_triton(lab_models(), limits=Limits(body_bytes=1000)) as triton:
        wire = Wire(triton.connect_in_memory())
        await wire.stream.send_all(request_bytes("POST", INFER, b"x" * 2000))
        assert (await wire.stream.receive_some()).startswith(b"HTTP/1.1 413 ")


async def test_slow_request_and_idle_connection_are_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with simulated_triton(lab_models(), limits=Limits(idle_s=60, request_s=30)) as triton:
        idle, slow = (Wire(triton.connect_in_memory()) for _ in range(2))
        await slow.stream.send_all(request_bytes("POST", INFER, b"xx")[:-1])
        started = trio.current_time()
        assert await slow.stream.receive_some() == b""
        assert trio.current_time() - started == pytest.approx(30)
        assert await idle.stream.receive_some() == b""
        assert trio.current_time() - started == pytest.approx(60)


async def test_connections_beyond_the_limit_are_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with simulated_triton(lab_models(), limits=Limits(connections=2)) as triton:
        wires = [Wire(triton.connect_in_memory()) for _ in range(2)]
        await trio.testing.wait_all_tasks_blocked()
        assert await triton.connect_in_memory().receive_some() == b""
        assert (await wires[0].ask("GET", "/v2/health/live")).status == 200


async def test_restart_is_another_process_with_the_same_repository(
    triton: SimulatedTriton, autojump_clock: trio.testing.MockClock
) -> None:
    await ask(triton, "POST", INFER, sleep_body(1))
    await triton.kill()
    with pytest.raises(ConnectionRefusedError):
        triton.connect_in_memory()
    await triton.start()
    assert await counted(triton) == 0
