"""What the Python client costs: `python -m bench.client [URL]`.

A refusal by the local limit, and the reading of events, need no server. With the URL of a governor, a thousand prompts
are sent at once over two hundred sessions, and memory and sockets are looked at before and after.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import anyio
import httpx

from governor.client import (
    CreateSessionRequest,
    DaemonClient,
    DaemonPendingPromptLimitError,
    SseParser,
    SyncDaemonClient,
)
from governor.client.events import decode_event

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, REFUSALS = 9, 2000
SESSIONS, PROMPTS_EACH = 200, 5
EVENT = (
    b'id: 7\nevent: session_update\ndata: {"id":7,"v":1,"type":"session_update","promptId":"0b1c2d3e",'
    b'"data":{"sessionId":"0b1c2d3e","promptId":"0b1c2d3e","update":{"sessionUpdate":"agent_message_chunk",'
    b'"content":{"type":"text","text":" word"}}},"_meta":{"serverTimestamp":1764500000000}}\n\n'
)


def nothing_is_sent(request: httpx.Request) -> httpx.Response:
    """The transport of a client that must send nothing."""
    raise AssertionError(f"{request.method} {request.url} was sent")


def shown(name: str, seconds: list[float]) -> None:
    """One line: the median and the fastest of the rounds, in microseconds."""
    print(f"{name:<32} {median(seconds) * 1e6:8.1f} us (fastest {min(seconds) * 1e6:.1f})")


async def refusals(backend: str) -> None:
    """What it costs to be refused by an async client."""
    async with DaemonClient("http://x", transport=httpx.MockTransport(nothing_is_sent)) as client:
        places = [client._reservations.reserve("s", None) for _ in range(5)]  # noqa: SLF001  # five that never end
        found = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            for _ in range(REFUSALS):
                with suppress(DaemonPendingPromptLimitError):
                    await client.prompt("s", "hello")
            found.append((time.perf_counter() - begun) / REFUSALS)
        for place in places:
            place.release()
    shown(f"refusal, {backend}", found)


def blocking_refusals() -> None:
    """What it costs to be refused by the blocking client."""
    with SyncDaemonClient("http://x", transport=httpx.MockTransport(nothing_is_sent)) as client:
        for _ in range(5):
            client.inner._reservations.reserve("s", None)  # noqa: SLF001  # five that never end
        found = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            for _ in range(REFUSALS):
                with suppress(DaemonPendingPromptLimitError):
                    client.prompt("s", "hello")
            found.append((time.perf_counter() - begun) / REFUSALS)
    shown("refusal, blocking", found)


def events() -> None:
    """What it costs to read one event, from its bytes to its object."""
    data = EVENT * REFUSALS
    found = []
    for _ in range(ROUNDS):
        parser, begun = SseParser(), time.perf_counter()
        count = 0
        for at in range(0, len(data), 4096):
            count += sum(decode_event(frame.data) is not None for frame in parser.feed(data[at : at + 4096]))
        assert count == REFUSALS
        found.append((time.perf_counter() - begun) / REFUSALS)
    shown("one event, bytes to object", found)


async def one_round(client: DaemonClient, sessions: list[str]) -> str:
    """All prompts at once; what was seen."""
    gc.collect()
    memory, sockets = tracemalloc.get_traced_memory()[0], open_sockets()
    begun, most = time.perf_counter(), 0
    ends: list[str] = []

    async def ask(session_id: str) -> None:
        ends.append((await client.prompt(session_id, "What a day")).stop_reason)

    async with anyio.create_task_group() as tasks:
        for session_id in sessions:
            for _ in range(PROMPTS_EACH):
                tasks.start_soon(ask, session_id)
        while len(ends) < SESSIONS * PROMPTS_EACH:
            most = max(most, open_sockets())
            await anyio.sleep(0.05)
    took = time.perf_counter() - begun
    await anyio.sleep(0.1)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - memory
    return (
        f"{len(ends)} prompts in {took:.1f} s, {set(ends)}, pending {client.pending_prompts_total}; sockets {sockets}"
        f" before, {most} at most, {open_sockets()} after; memory {grown / 1024:+.0f} KiB"
    )


async def thousand(url: str, model: str | None) -> None:
    """A thousand prompts at once."""
    async with DaemonClient(url) as client:
        request = CreateSessionRequest(model_service_id=model, session_scope="thread")
        sessions = [(await client.create_or_attach_session(request)).session_id for _ in range(SESSIONS)]
        for number in (1, 2):
            print(f"round {number}: {await one_round(client, sessions)}")
        for session_id in sessions:
            await client.close_session(session_id)


def open_sockets() -> int:
    """How many sockets this process has open."""
    links = (item for item in Path("/proc/self/fd").iterdir())
    return sum(1 for item in links if item.is_symlink() and str(item.readlink()).startswith("socket:"))


def measured(run: Callable[[], None]) -> None:
    """Runs something while memory is counted."""
    tracemalloc.start()
    run()
    tracemalloc.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", metavar="URL", help="a governor; a thousand prompts are sent to it")
    parser.add_argument("--model", help="the model that gets them; a quick one")
    options = parser.parse_args()
    for backend in ("trio", "asyncio"):
        anyio.run(refusals, backend, backend=backend)
    blocking_refusals()
    events()
    if options.url is not None:
        for backend in ("trio", "asyncio"):
            print(backend)
            measured(lambda backend=backend: anyio.run(thousand, options.url, options.model, backend=backend))  # type: ignore[misc]


if __name__ == "__main__":
    main()
