"""Start, stop, and a backend that comes and goes."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
import trio

from governor.demo.ports import free_ports
from tests.e2e.conftest import make_triton
from tests.e2e.stack import Event, Governor, governor_config, running_governor
from tests.e2e.worklog import WorkLog

if TYPE_CHECKING:
    from pathlib import Path

    from governor.demo.install import Installation
    from governor.demo.triton import RealTriton

pytestmark = pytest.mark.real_triton

GRACE_S, SEND_S = 2.0, 1.0
SERVER = f"graceful_timeout_ms = {int(GRACE_S * 1000)}\nsend_timeout_ms = {int(SEND_S * 1000)}"


async def stalled_reader(governor: Governor, session: str) -> trio.SocketStream:
    """Subscribes, then never reads: what it asked for does not fit into its small receive buffer."""
    raw = trio.socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = governor.url.removeprefix("http://").split(":")
    await raw.connect((host, int(port)))
    stream = trio.SocketStream(raw)
    request = f"GET /session/{session}/events HTTP/1.1\r\nHost: {host}:{port}\r\nLast-Event-ID: 0\r\n\r\n"
    await stream.send_all(request.encode())
    return stream


async def collect(governor: Governor, session: str, events: list[Event]) -> None:
    events.extend([event async for event in governor.events(session)])


async def test_sigterm_settles_every_prompt_and_exits_in_time(triton: RealTriton, tmp_path: Path) -> None:
    """S3, S7, D12: no new prompts, each pending one gets its terminal event, exit within the grace, whatever the
    clients do: an idle keep-alive connection, an open stream, a reader that stopped reading."""
    [port] = free_ports(1)
    config = governor_config(port=port, triton_url=triton.url, metrics_url=triton.metrics_url, server=SERVER)
    events: list[Event] = []
    async with running_governor(config, port, tmp_path) as governor, trio.open_nursery() as nursery:
        session = await governor.session("slow")
        texts = ["3 seconds", "1 second", "1 second " + "x" * 1_000_000]
        accepted = [(await governor.prompt(session, text)).json()["promptId"] for text in texts]
        stalled = await stalled_reader(governor, session)
        idle = await trio.open_tcp_stream("127.0.0.1", port)
        nursery.start_soon(collect, governor, session, events)
        await governor.wait_metric("vig_event_subscribers", 2)
        governor.stop()
        code = await governor.wait_exit(seconds=GRACE_S + SEND_S + 1)
        await stalled.aclose()
        await idle.aclose()
    assert code == 0
    terminals = [e for e in events if e.type in {"turn_error", "turn_complete"}]
    assert [(e.data["promptId"], e.data["code"]) for e in terminals] == [(p, "daemon_shutdown") for p in accepted]
    assert events[-1].type == "session_died"


async def test_backend_that_comes_late_goes_and_returns(installation: Installation, tmp_path: Path) -> None:
    """A8: readiness follows the backend and says why; prompts fail with a clear error while it is away."""
    triton = make_triton(installation, tmp_path)
    [port] = free_ports(1)
    config = governor_config(
        port=port, triton_url=triton.url, metrics_url=triton.metrics_url, backend="health_interval_ms = 100"
    )
    try:
        async with running_governor(config, port, tmp_path, ready=False) as governor:
            told = await governor.client.get("/readyz")
            assert told.status_code == 503
            assert triton.url in json.dumps(told.json())
            session = await governor.session("sentiment")
            refused = (await governor.prompt(session, "hello")).json()["promptId"]
            assert (await governor.terminal(session, refused)).data["code"] == "backend_unavailable"

            await triton.start()
            await wait_ready(governor, 200)
            served = (await governor.prompt(session, "I love it")).json()["promptId"]
            assert (await governor.terminal(session, served)).type == "turn_complete"

            await triton.kill()
            await wait_ready(governor, 503)
            assert (await governor.client.get("/healthz")).status_code == 200
            answer = await governor.generate("sentiment", "hello")
            assert answer is not None
            assert (answer.status_code, answer.json()["code"]) == (503, "backend_unavailable")

            await triton.start()
            await wait_ready(governor, 200)
            answer = await governor.generate("sentiment", "I love it")
            assert answer is not None
            assert answer.status_code == 200
    finally:
        triton.end_now()


async def test_prompts_wait_for_a_backend_that_is_down_where_configured(
    installation: Installation, tmp_path: Path
) -> None:
    """`when_unavailable = "wait"`: a prompt accepted while the backend is down is answered once it is up."""
    triton = make_triton(installation, tmp_path)
    [port] = free_ports(1)
    config = governor_config(
        port=port,
        triton_url=triton.url,
        metrics_url=None,
        backend='health_interval_ms = 100\nwhen_unavailable = "wait"',
    )
    try:
        async with running_governor(config, port, tmp_path, ready=False) as governor:
            session = await governor.session("sentiment")
            accepted = (await governor.prompt(session, "I love it")).json()["promptId"]
            await triton.start()
            assert (await governor.terminal(session, accepted)).data["stopReason"] == "end_turn"
    finally:
        triton.end_now()


async def test_killed_triton_ends_broken_claims_once_a_new_process_answers(
    installation: Installation, tmp_path: Path
) -> None:
    """E6, E8: kill -9 while a call executes; the claim is held while nothing answers and ends when another boot
    does. The next call finds a free slot and never runs beside another."""
    triton = make_triton(installation, tmp_path)
    [port] = free_ports(1)
    config = governor_config(
        port=port, triton_url=triton.url, metrics_url=triton.metrics_url, backend="health_interval_ms = 100"
    )
    work = WorkLog(tmp_path / "work.jsonl", "slow")
    try:
        await triton.start()
        async with running_governor(config, port, tmp_path) as governor, trio.open_nursery() as nursery:
            nursery.start_soon(governor.generate, "slow", "60 seconds")
            await work.wait_started(1)
            await triton.kill()
            await governor.wait_metric("vig_claims", 1, model="slow", state="reconciling")
            assert await governor.metric("vig_free_slots", model="slow") == 0
            await triton.start()
            await governor.wait_metric("vig_free_slots", 1, model="slow")
            assert await governor.metric("vig_restarts_total", model="slow") == 1
            answer = await governor.generate("slow", "0.1 seconds")
            assert answer is not None
            assert answer.status_code == 200
            assert await governor.metric("vig_claims", model="slow", state="quarantined") == 0
    finally:
        triton.end_now()


async def wait_ready(governor: Governor, status: int) -> None:
    with trio.fail_after(10):
        while (await governor.client.get("/readyz")).status_code != status:
            await trio.sleep(0.02)
