"""`serve` on real sockets: D12, T2, S7. Only here does a client's departure cross a real connection."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import httpx
import pytest
import trio

from api.main import GovernorFailedError, serve
from api.ownership import IdentityOwnedError, owned_identities
from api.serving import ListenError
from governor.config import ModelConfig
from governor.core.claims import ClaimState
from governor.errors import ConfigError
from governor.service import Governor
from tests.api.harness import PATIENCE_S, ApiWorld, make_config
from tests.shell.fakes import FakeLane, FakePort
from tests.shell.harness import FakeHealth
from tests.shell.world import Plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from governor.config import Config

SERVER = {"port": 0, "graceful_timeout_ms": 2000, "send_timeout_ms": 1000, "keep_alive_timeout_ms": 60_000}


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of tests are nobody else's."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@dataclass(slots=True)
class Running:
    """A service that serves.

    Attributes:
        error: what it ended with.
        ended: it has ended.
    """

    url: str
    world: ApiWorld
    governor: Governor
    ended: trio.Event
    error: Exception | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    def client(self) -> httpx.AsyncClient:
        """A client that keeps its connections."""
        return httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S)

    async def end(self, within_s: float) -> float:
        """Sends SIGTERM and waits for the end; returns how long it took, in seconds."""
        began = trio.current_time()
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.fail_after(within_s):
            await self.ended.wait()
        return trio.current_time() - began

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that must happen."""
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await trio.sleep(0.005)

    def claims(self) -> dict[ClaimState, int]:
        """Claims by state, without zeros."""
        identity = next(iter(self.governor.identities.values()))
        return {state: count for state, count in identity.statistics().ledger.states.items() if count}


@asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, config: Config | None = None, load: Callable[[], Config] | None = None
) -> AsyncIterator[Running]:
    """`serve` with a fake backend; ended by a signal at the end, unless it has ended before."""
    config = config if config is not None else make_config(server=SERVER)
    async with trio.open_nursery() as nursery:
        world = ApiWorld(nursery)
        made: list[Governor] = []

        def make(given: Config, **_: object) -> Governor:
            health, make_port = FakeHealth(world), lambda *_: FakePort(world)
            made.append(Governor(given, make_port=make_port, check=health, make_lane=lambda _: FakeLane(world)))
            return made[0]

        monkeypatch.setattr("api.main.Governor", make)
        ended = trio.Event()
        up: list[Running] = []

        async def run(*, task_status: trio.TaskStatus[str]) -> None:
            try:
                async with trio.open_nursery() as inner:
                    urls = await inner.start(partial(serve, config, load=load))
                    task_status.started(urls[0])
            except* Exception as group:  # noqa: BLE001  # the tests look at it
                up[0].error = group.exceptions[0]
            ended.set()

        url = await nursery.start(run)
        up.append(Running(url, world, made[0], ended))
        yield up[0]
        if not ended.is_set():
            await up[0].end(PATIENCE_S)
        nursery.cancel_scope.cancel()


async def raw(running: Running, *, small_buffer: bool = False) -> trio.SocketStream:
    """A connection without a client library's habits."""
    sock = trio.socket.socket()
    if small_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await sock.connect(("127.0.0.1", running.port))
    return trio.SocketStream(sock)


def request(running: Running, method: str, path: str, body: bytes = b"") -> bytes:
    """A request as it goes over the wire."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_a_prompt_is_answered_over_sse(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as up, up.client() as client:
        session = (await client.post("/session", json={})).json()["sessionId"]
        async with client.stream("GET", f"/session/{session}/events") as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "retry: 3000"
            body = {"prompt": [{"type": "text", "text": "0 hello"}]}
            assert (await client.post(f"/session/{session}/prompt", json=body)).status_code == 202
            seen = []
            async for line in lines:
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: ")))
                    if seen[-1]["type"] == "turn_complete":
                        break
        assert [event["id"] for event in seen] == [1, 2, 3]
        assert seen[1]["data"]["update"]["content"]["text"] == "ok"


async def test_a_client_that_closes_in_mid_call_leaves_the_claim_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """E2 over a real connection: noticed at once, `timed_out`, and freed by its late answer."""
    async with running(monkeypatch) as up:
        up.world.next_plans.append(Plan(seconds=0.5, body=b"{}"))
        stream = await raw(up)
        await stream.send_all(request(up, "POST", "/v2/models/chat/infer", b"{}"))
        await up.until(lambda: bool(up.world.executing))
        await stream.aclose()
        await up.until(lambda: up.claims() == {ClaimState.TIMED_OUT: 1})
        assert up.world.executing, "seen long before the work ended"
        await up.until(lambda: up.claims() == {})
        assert not up.world.executing


async def test_sigterm_ends_everything_in_good_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminal events and `session_died` reach an open stream, which then ends; an idle keep-alive connection and a
    stream whose reader stopped reading hold nothing up; exit without an error."""
    async with running(monkeypatch) as up, up.client() as client, trio.open_nursery() as nursery:
        session = (await client.post("/session", json={})).json()["sessionId"]
        idle = await raw(up)
        await idle.send_all(request(up, "GET", "/health"))
        await idle.receive_some()
        events: list[str] = []
        complete = trio.Event()

        async def listen() -> None:
            async with client.stream("GET", f"/session/{session}/events") as stream:
                events.extend([line async for line in stream.aiter_lines() if line.startswith("event: ")])
            complete.set()

        nursery.start_soon(listen)
        stalled = await raw(up, small_buffer=True)
        await stalled.send_all(request(up, "GET", f"/session/{session}/events"))
        live = up.governor.sessions[session]
        await up.until(lambda: live.log.subscriber_count == 2)
        prompt = {"prompt": [{"type": "text", "text": "60 " + "x" * 1_000_000}]}
        for _ in range(3):
            assert (await client.post(f"/session/{session}/prompt", json=prompt)).status_code == 202
        await up.until(lambda: bool(up.world.executing))
        took = await up.end(within_s=2 + 1 + 1)
        assert up.error is None
        with trio.fail_after(1):
            await complete.wait()
        assert events.count("event: turn_error") == 3
        assert events[-1] == "event: session_died"
        assert took < 2.5, "the stalled reader costs its send timeout, nobody the whole grace"
        await idle.aclose()
        await stalled.aclose()


async def test_an_idle_service_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as up:
        assert await up.end(within_s=3) < 1.5
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", up.port)


async def test_a_call_in_flight_is_answered_within_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as up, up.client() as client, trio.open_nursery() as nursery:
        up.world.next_plans.append(Plan(seconds=0.5, body=b'"late"'))
        answers = []

        async def call() -> None:
            answers.append(await client.post("/v2/models/chat/infer", json={}))

        nursery.start_soon(call)
        await up.until(lambda: bool(up.world.executing))
        assert 0.3 < await up.end(within_s=3) < 1.5
        await up.until(lambda: bool(answers))
        assert answers[0].text == '"late"'


async def test_a_call_beyond_the_grace_does_not_hold_the_end_up(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(server={**SERVER, "graceful_timeout_ms": 300})
    async with running(monkeypatch, config) as up, trio.open_nursery() as nursery:
        stream = await raw(up)
        up.world.next_plans.append(Plan(seconds=60, body=b"{}"))
        await stream.send_all(request(up, "POST", "/v2/models/chat/infer", b"{}"))
        await up.until(lambda: bool(up.world.executing))
        assert await up.end(within_s=3) < 1.5
        assert up.error is None
        nursery.cancel_scope.cancel()


async def test_sighup_reads_the_configuration_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a mistake in it ends nothing. A removed model's lock is given back once nothing of it is left."""
    second = ModelConfig(name="other", triton_model="m2", backend="b", slots=1, kind="generate")
    first, both = make_config(server=SERVER), make_config(server=SERVER, model={"slots": 3}, more_models=(second,))
    alone = make_config(server=SERVER, model={"name": "other", "triton_model": "m2"})
    steps: list[Config | ConfigError] = [both, ConfigError(["all wrong"]), first]

    def load() -> Config:
        step = steps.pop(0)
        if isinstance(step, ConfigError):
            raise step
        return step

    async with running(monkeypatch, first, load) as up, up.client() as client:
        os.kill(os.getpid(), signal.SIGHUP)
        await up.until(lambda: len(up.governor.models) == 2)
        assert next(iter(up.governor.identities.values())).statistics().ledger.slots == 3
        with pytest.raises(IdentityOwnedError), owned_identities(alone):
            pass
        os.kill(os.getpid(), signal.SIGHUP)
        await up.until(lambda: len(steps) == 1)
        assert (await client.get("/capabilities")).json()["modelServices"][1]["id"] == "other"
        os.kill(os.getpid(), signal.SIGHUP)
        await up.until(lambda: len(up.governor.identities) == 1)
        with owned_identities(alone):
            pass
        assert await up.end(within_s=3) < 1.5
        assert up.error is None


async def test_a_governor_that_fails_ends_the_service_with_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """D12: never a server that answers 200 over a dead nursery; streams get their end all the same."""
    async with running(monkeypatch) as up, up.client() as client:
        session = (await client.post("/session", json={})).json()["sessionId"]

        async def fail() -> None:
            raise RuntimeError("broken inside")

        async with client.stream("GET", f"/session/{session}/events") as stream:
            assert up.governor._turns is not None
            up.governor._turns.start_soon(fail)
            lines = [line async for line in stream.aiter_lines()]
            assert any(line == "event: session_died" for line in lines)
        with trio.fail_after(3):
            await up.ended.wait()
        assert isinstance(up.error, GovernorFailedError)
        assert "broken inside" in up.error.message


async def test_a_taken_port_is_a_sentence_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = make_config(server={**SERVER, "port": taken.getsockname()[1]})
        with pytest.raises(ListenError, match="Another process listens there"):
            await serve(config)
    with owned_identities(config):
        pass


async def test_a_second_governor_is_refused_before_anything_runs() -> None:
    config = make_config(server=SERVER)
    with owned_identities(config), pytest.raises(IdentityOwnedError):
        await serve(config)


async def test_hostile_packets_end_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: a sample of what kills a stock server; the whole list is tested with the server alone."""
    packets = [
        b"POST /session HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nx",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v2/models/chat/infer HTTP/1.1\r\nHost: %s\r\nContent-Length: 100\r\n\r\nx",
        b"\x16\x03\x01\x02\x00",
        b"GET /session/%ff/events HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
    ]
    async with running(monkeypatch) as up, up.client() as client:
        for packet in packets:
            stream = await raw(up)
            await stream.send_all(packet)
            await trio.sleep(0.02)
            await stream.aclose()
            assert (await client.get("/health")).status_code == 200
        assert not up.ended.is_set()
        assert up.claims() == {}


def test_the_options_of_the_server_are_the_configurations() -> None:
    from api.main import serve_options

    options = serve_options(make_config(server={"max_connections": 7, "send_timeout_ms": 1500}))
    assert options.max_connections == 7
    assert options.send_timeout_s == 1.5
    assert replace(options, port=1).host == "127.0.0.1"
