"""Many prompts at once: all settle, and everything returns to where it was. And what a refusal costs."""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import TYPE_CHECKING

import anyio
import httpx
import pytest

from governor.client import (
    CreateSessionRequest,
    DaemonClient,
    DaemonPendingPromptLimitError,
    DaemonTurnError,
    SyncDaemonClient,
)
from tests.serving.support import open_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PROMPTS_EACH = 5
GROWTH_BYTES_MAX = 512 * 1024
"""What may be left of the prompts: nothing of theirs, but caches of libraries grow a little."""
REFUSALS, BATCHES = 500, 5
REFUSAL_S_MAX = 50e-6


async def ask_everywhere(client: DaemonClient, sessions: list[str], each: int) -> list[str]:
    """So many prompts of every session at once; how each ended."""
    ends: list[str] = []

    async def ask(session_id: str) -> None:
        try:
            ends.append((await client.prompt(session_id, "What a day")).stop_reason)
        except DaemonTurnError as error:
            # On a machine that is too busy for the governor's health check; an end all the same.
            assert error.code == "backend_unavailable"  # noqa: PT017  # of one task among many
            ends.append("end_turn")

    async with anyio.create_task_group() as tasks:
        for session_id in sessions:
            for _ in range(each):
                tasks.start_soon(ask, session_id)
    return ends


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_five_prompts_in_each_of_many_sessions_at_once(count: int, backend: str, governor_url: str) -> None:
    """With 200 sessions, a thousand prompts."""

    async def run() -> None:
        async with DaemonClient(governor_url) as client:
            request = CreateSessionRequest(model_service_id="sentiment", session_scope="thread")
            sessions = [(await client.create_or_attach_session(request)).session_id for _ in range(count)]
            # Once to fill what libraries keep for a while: trio forgets passed deadlines a thousand at a time.
            warm = await ask_everywhere(client, sessions, PROMPTS_EACH)
            assert set(warm) == {"end_turn"}
            gc.collect()
            before, files = tracemalloc.get_traced_memory()[0], open_files()
            ends = await ask_everywhere(client, sessions, PROMPTS_EACH)
            assert ends == ["end_turn"] * (count * PROMPTS_EACH)
            assert client.pending_prompts_total == 0
            assert client._opened is not None
            with anyio.fail_after(5):
                while client._opened[0]._by_session:
                    await anyio.sleep(0.01)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] - before < GROWTH_BYTES_MAX
            assert open_files() <= files + 16  # connections that are kept for the next request
            for session_id in sessions:
                await client.close_session(session_id)

    files = open_files()
    tracemalloc.start()
    try:
        anyio.run(run, backend=backend)
    finally:
        tracemalloc.stop()
    assert open_files() <= files


def never(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"{request.method} {request.url}: nothing may be sent")


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_refusal_takes_less_than_fifty_microseconds_and_sends_nothing(backend: str) -> None:
    """C2. The fastest of some batches, as other processes take their share of the machine."""

    async def run() -> float:
        async with DaemonClient("http://x", transport=httpx.MockTransport(never)) as client:
            places = [client._reservations.reserve("s", None) for _ in range(5)]
            seconds = await fastest(lambda: client.prompt("s", "hello"))
            for place in places:
                place.release()
            return seconds

    assert anyio.run(run, backend=backend) < REFUSAL_S_MAX


async def fastest(ask: Callable[[], Awaitable[object]]) -> float:
    """Seconds for one refusal."""
    found = []
    for _ in range(BATCHES):
        begun = time.perf_counter()
        for _ in range(REFUSALS):
            try:
                await ask()
            except DaemonPendingPromptLimitError:
                continue
            raise AssertionError("it was not refused")
        found.append((time.perf_counter() - begun) / REFUSALS)
    return min(found)


def test_the_blocking_client_refuses_as_fast() -> None:
    with SyncDaemonClient("http://x", transport=httpx.MockTransport(never)) as client:
        for _ in range(5):
            client.inner._reservations.reserve("s", None)
        found = []
        for _ in range(BATCHES):
            begun = time.perf_counter()
            for _ in range(REFUSALS):
                with pytest.raises(DaemonPendingPromptLimitError):
                    client.prompt("s", "hello")
            found.append((time.perf_counter() - begun) / REFUSALS)
    assert min(found) < REFUSAL_S_MAX
