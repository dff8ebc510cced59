"""The same over real sockets: ports, resets, refused connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from governor.simulator import Endpoint, SimulatedTriton, demo_models, lab_models, simulated_triton
from governor.simulator.faults import ResetAfterBody
from tests.contract.driver import sleep_body
from tests.contract.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def triton() -> AsyncIterator[SimulatedTriton]:
    async with simulated_triton((*lab_models(), *demo_models())) as simulated:
        yield simulated


async def connect(triton: SimulatedTriton, *, metrics: bool = False) -> Wire:
    url = triton.metrics_url.removesuffix("/metrics") if metrics else triton.url
    host, port = url.removeprefix("http://").split(":")
    return Wire(await trio.open_tcp_stream(host, int(port)))


async def test_serves_both_ports(triton: SimulatedTriton) -> None:
    wire, metrics = await connect(triton), await connect(triton, metrics=True)
    assert (await wire.ask("POST", "/v2/models/nobatch/infer", sleep_body(1))).status == 200
    assert (
        b'nv_inference_request_success{model="nobatch",version="1"} 1\n' in (await metrics.ask("GET", "/metrics")).body
    )


async def test_reset_is_a_reset(triton: SimulatedTriton) -> None:
    triton.faults.add(ResetAfterBody(), endpoint=Endpoint.INFER)
    wire = await connect(triton)
    await wire.send("POST", "/v2/models/nobatch/infer", sleep_body(1))
    with pytest.raises(trio.BrokenResourceError) as broken:
        await wire.reply()
    assert isinstance(broken.value.__cause__, ConnectionResetError)


async def test_kill_ends_connections_with_eof_and_restart_takes_the_same_ports(
    triton: SimulatedTriton,
) -> None:
    url, wire = triton.url, await connect(triton)
    assert (await wire.ask("GET", "/v2/health/live")).status == 200
    await triton.kill()
    assert await wire.stream.receive_some() == b""
    with pytest.raises(OSError, match=r"all attempts to connect|refused"):
        await connect(triton)
    await triton.start()
    assert triton.url == url
    assert (await (await connect(triton)).ask("GET", "/v2/health/live")).status == 200


async def test_refused_period_leaves_open_connections_alone(triton: SimulatedTriton) -> None:
    wire = await connect(triton)
    assert (await wire.ask("GET", "/v2/health/live")).status == 200
    await triton.refuse_connections()
    with pytest.raises(OSError, match=r"all attempts to connect|refused"):
        await connect(triton)
    assert (await wire.ask("GET", "/v2/health/live")).status == 200
    await triton.accept_connections()
    assert (await (await connect(triton)).ask("GET", "/v2/health/live")).status == 200


async def test_port_that_is_taken_is_told(triton: SimulatedTriton) -> None:
    port = int(triton.url.rsplit(":", 1)[1])
    with pytest.raises(ExceptionGroup) as group:
        async with simulated_triton(lab_models(), http_port=port):
            pass
    assert group.group_contains(OSError, match="in use")
