"""Large bodies on their way straight through (ADR-0018): no slot is held by an upload, and none executes too early."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest
import trio

from governor.demo.ports import free_ports
from tests.e2e.conftest import make_triton
from tests.e2e.stack import Governor, governor_config, running_governor
from tests.e2e.uploads import UploadProxy, calling
from tests.e2e.worklog import WorkLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from governor.demo.install import Installation
    from governor.demo.triton import RealTriton

pytestmark = pytest.mark.real_triton

HALF = 2_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uploads")


@pytest.fixture(scope="module")
def own_triton(installation: Installation, folder: Path) -> Iterator[RealTriton]:
    """To be killed, and to have its models unloaded."""
    triton = make_triton(installation, folder)
    trio.run(triton.start)
    yield triton
    triton.end_now()


@asynccontextmanager
async def governed(triton: RealTriton, folder: Path) -> AsyncIterator[tuple[Governor, UploadProxy]]:
    """A governor with one slot for `slow`, and the proxy that its calls go through."""
    [port] = free_ports(1)
    async with trio.open_nursery() as nursery:
        proxy: UploadProxy = await nursery.start(UploadProxy(int(triton.url.rsplit(":", 1)[1])).serve)
        config = governor_config(
            port=port, triton_url=proxy.url, metrics_url=triton.metrics_url, backend="health_interval_ms = 100"
        )
        async with running_governor(config, port, folder) as governor:
            yield governor, proxy
        nursery.cancel_scope.cancel()


async def all_is_free(governor: Governor) -> None:
    """The slot is free and no claim is left."""
    await governor.wait_metric("vig_free_slots", 1, model="slow")
    text = (await governor.client.get("/metrics")).text
    claims = [line for line in text.splitlines() if line.startswith("vig_claims{") and 'model="slow"' in line]
    assert claims
    assert all(line.endswith(" 0.0") for line in claims), claims


async def test_an_upload_holds_no_slot(own_triton: RealTriton, folder: Path, tmp_path: Path) -> None:
    """E1, E3: another call takes the only slot in mid-upload; the upload's end then waits until that has ended."""
    work = WorkLog(folder / "work.jsonl", "slow")
    async with governed(own_triton, tmp_path) as (governor, proxy), calling(governor.url, "0.2 seconds", "up") as up:
        await up.send(0.55)
        await proxy.wait_carried("up", HALF)
        assert await governor.metric("vig_free_slots", model="slow") == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(governor.generate, "slow", "1 second")
            await work.wait_started(1)
            await up.send(1)
            await governor.wait_metric("vig_waiting_calls", 1, model="slow")
            await proxy.wait_carried("up", 4_000_000)
            assert len(work.executions()) == 1
            reply = await up.reply()
        assert reply.status == 200, reply
        assert json.loads(reply.body)["outputs"]
        await all_is_free(governor)
    first, second = work.executions()
    assert first.end_s is not None
    assert second.start_s >= first.end_s
    assert work.peak() == 1


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("rest", [HALF, 1])
async def test_a_caller_that_leaves_in_mid_upload_leaves_nothing(
    own_triton: RealTriton, folder: Path, tmp_path: Path, rest: int, how: str
) -> None:
    """E3: it never executes; the next upload on the same slot is served."""
    work = WorkLog(folder / "work.jsonl", "slow")
    async with governed(own_triton, tmp_path) as (governor, proxy):
        async with calling(governor.url, "0.1 seconds", "gone") as gone:
            await gone.send_all_but(rest)
            await proxy.wait_carried("gone", HALF)
            gone.leave(reset=how == "reset")
        async with calling(governor.url, "0.1 seconds", "next") as up:
            await up.send(1)
            assert (await up.reply()).status == 200
        await all_is_free(governor)
        assert await governor.metric("vig_calls_undelivered_total", model="slow") == 0, "it was no call yet"
    assert len(work.executions()) == 1


async def test_a_caller_that_leaves_while_its_upload_waits_leaves_nothing(
    own_triton: RealTriton, folder: Path, tmp_path: Path
) -> None:
    """A6: all but the last byte is at the backend, and the call waits for its slot."""
    work = WorkLog(folder / "work.jsonl", "slow")
    async with governed(own_triton, tmp_path) as (governor, proxy), trio.open_nursery() as nursery:
        async with calling(governor.url, "0.1 seconds", "gone") as gone:
            await gone.send_all_but(1)
            await proxy.wait_carried("gone", HALF)
            nursery.start_soon(governor.generate, "slow", "1 second")
            await work.wait_started(1)
            await gone.send(1)
            await governor.wait_metric("vig_waiting_calls", 1, model="slow")
        await governor.wait_metric("vig_waiting_calls", 0, model="slow")
        await work.wait_ended(1)
        await all_is_free(governor)
    assert len(work.executions()) == 1


async def test_a_wrong_shape_is_refused_here_and_its_caller_can_read_that(
    own_triton: RealTriton, folder: Path, tmp_path: Path
) -> None:
    """Nothing of it reaches the backend; the rest of the body is read away, and the connection serves on."""
    work = WorkLog(folder / "work.jsonl", "slow")
    async with governed(own_triton, tmp_path) as (governor, proxy):
        async with calling(governor.url, "0.1 seconds", "wrong", shape=3) as up:
            await up.send(1)
            reply = await up.reply()
            assert reply.status == 400
            assert set(json.loads(reply.body)) >= {"error", "code"}
            await up.stream.send_all(f"GET /healthz HTTP/1.1\r\nHost: {governor.url[7:]}\r\n\r\n".encode())
            assert (await up.reply()).status == 200
        await all_is_free(governor)
    assert not work.executions()
    assert "wrong" not in proxy.carried


async def test_a_backend_that_dies_in_mid_upload(own_triton: RealTriton, folder: Path, tmp_path: Path) -> None:
    """E3, E6: the caller gets an error in Triton's shape; no claim stays, and the next process serves at once."""
    work = WorkLog(folder / "work.jsonl", "slow")
    async with governed(own_triton, tmp_path) as (governor, proxy):
        async with calling(governor.url, "0.1 seconds", "dies") as up:
            await up.send(0.55)
            await proxy.wait_carried("dies", HALF)
            await own_triton.kill()
            await up.send(1)
            reply = await up.reply()
        told = json.loads(reply.body)
        assert (reply.status, told["code"]) == (503, "backend_unavailable"), told
        assert isinstance(told["error"], str)
        await own_triton.start()
        with trio.fail_after(10):
            while (await governor.client.get("/readyz")).status_code != 200:
                await trio.sleep(0.02)
        async with calling(governor.url, "0.1 seconds", "next") as up:
            await up.send(1)
            assert (await up.reply()).status == 200
        await all_is_free(governor)
    assert len(work.executions()) == 1


async def test_a_connection_that_breaks_in_mid_upload_is_told_and_forgotten(
    own_triton: RealTriton, folder: Path, tmp_path: Path
) -> None:
    work = WorkLog(folder / "work.jsonl", "slow")
    async with governed(own_triton, tmp_path) as (governor, proxy):
        async with calling(governor.url, "0.1 seconds", "broken") as up:
            await up.send(0.55)
            await proxy.wait_carried("broken", HALF)
            assert proxy.reset("broken")
            await up.send(1)
            reply = await up.reply()
            assert (reply.status, json.loads(reply.body)["code"]) == (503, "backend_unavailable"), reply
        await all_is_free(governor)
    assert not work.executions()


async def test_what_is_said_before_the_end_of_the_body_is_its_callers_answer(
    own_triton: RealTriton, folder: Path, tmp_path: Path
) -> None:
    """E3: a proxy that wants no large bodies says so at once and reads on; the call was never delivered."""
    work = WorkLog(folder / "work.jsonl", "slow")
    async with governed(own_triton, tmp_path) as (governor, proxy), calling(governor.url, "0.1 seconds", "big") as up:
        said = b'{"error":"too large"}'
        proxy.refusal = (
            b"HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(said), said)
        )
        await up.send(1)
        reply = await up.reply()
        assert (reply.status, reply.body) == (413, said)
        await all_is_free(governor)
        assert await governor.metric("vig_calls_undelivered_total", model="slow") == 1
    assert not work.executions()


@pytest.mark.parametrize("again", [True, False])
async def test_a_model_that_is_loaded_anew_in_mid_upload(
    own_triton: RealTriton, folder: Path, tmp_path: Path, *, again: bool
) -> None:
    """E7: the upload is answered by what there is at its end: the new instance, or Triton's refusal."""
    work = WorkLog(folder / "work.jsonl", "slow")
    async with governed(own_triton, tmp_path) as (governor, proxy), httpx.AsyncClient(timeout=60) as operator:
        repository = f"{own_triton.url}/v2/repository/models/slow"
        async with calling(governor.url, "0.1 seconds", "up") as up:
            await up.send(0.55)
            await proxy.wait_carried("up", HALF)
            try:
                assert (await operator.post(f"{repository}/unload")).status_code == 200
                await trio.sleep(0.3)
                if again:
                    assert (await operator.post(f"{repository}/load")).status_code == 200
                await up.send(1)
                reply = await up.reply()
            finally:
                await operator.post(f"{repository}/load")
        assert reply.status == 200 if again else reply.status in {400, 404, 503}, reply
        assert again or "error" in json.loads(reply.body)
        await all_is_free(governor)
    assert len(work.executions()) == again
