"""Many prompts at once against a server whose answers and events come in any order in time and in any pieces.

The server lives in the transport, on a clock that jumps: hundreds of runs, each with other delays, 202s that overtake
each other and their own turns, and streams that break wherever they like.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
import trio
import trio.testing

from governor.client import DaemonClient, RetryPolicy, TerminalEvent
from tests.client import fake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SEEDS = 100
PROMPTS = 12
SESSION = "s"


class Server(httpx.AsyncBaseTransport):
    """One session, its log, and turns one after the other.

    Args:
        seed: decides all delays.
        nursery: owns the turns.
    """

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.random = random.Random(seed)
        self.log: list[bytes] = []
        self.grown = trio.Event()
        self.turns = trio.Lock()
        self.nursery = nursery
        self.breaks = self.random.choice([0.0, 0.1, 0.3])
        self.slow_answers = self.random.choice([0.0, 4.0, 20.0])
        self.slow_events = self.random.choice([0.0, 4.0, 20.0])

    def publish(self, make: Any, *arguments: Any) -> None:
        self.log.append(make(len(self.log) + 1, *arguments))
        self.grown.set()
        self.grown = trio.Event()

    async def delay(self, longest_s: float) -> None:
        # Few different moments, so that many things happen in the same one.
        await trio.sleep(self.random.choice([0, 0, 1, 2, 4]) * longest_s / 4)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await self.delay(self.slow_answers)
        if request.method == "POST":
            text = json.loads(b"".join([piece async for piece in request.stream]))["prompt"][0]["text"]  # type: ignore[union-attr]
            prompt_id, cursor = f"prompt-{text}", len(self.log)
            self.publish(lambda event_id: fake.frame(event_id, "pending_prompt_added", promptId=prompt_id, text=text))
            self.nursery.start_soon(self.turn, prompt_id, text)
            await self.delay(self.slow_answers)
            return httpx.Response(202, json={"promptId": prompt_id, "lastEventId": cursor, "eventEpoch": "e"})
        if self.random.random() < self.breaks:
            raise httpx.ReadError("broken")
        cursor = int(request.headers["Last-Event-ID"])
        headers = {"Content-Type": "text/event-stream", "X-Qwen-Event-Epoch": "e"}
        return httpx.Response(200, headers=headers, stream=Stream(self, cursor))

    async def turn(self, prompt_id: str, text: str) -> None:
        async with self.turns:
            for piece in text:
                await self.delay(self.random.choice([0.0, 4.0]))
                self.publish(fake.chunk, prompt_id, piece)
            self.publish(fake.complete, prompt_id)


class Stream(httpx.AsyncByteStream):
    """The events after a cursor, in pieces that are cut anywhere, until it breaks."""

    def __init__(self, server: Server, cursor: int) -> None:
        self.server = server
        self.next = cursor
        self.rest = b""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        server = self.server
        await server.delay(server.slow_events)
        if server.random.random() < server.breaks / 10:
            raise httpx.ReadError("broken")
        if server.random.random() < server.breaks / 10:
            raise StopAsyncIteration
        while not self.rest:
            while self.next >= len(server.log):
                await server.grown.wait()
            self.rest = b"".join(server.log[self.next :])
            self.next = len(server.log)
        cut = server.random.randrange(1, len(self.rest) + 1)
        piece, self.rest = self.rest[:cut], self.rest[cut:]
        return piece


async def run(seed: int) -> None:
    async with trio.open_nursery() as nursery:
        server = Server(seed, nursery)
        chance = random.Random(-seed)
        policy = RetryPolicy(attempts=50, chance=chance.random)
        texts = [f"{number:02d}-" + "x" * chance.randrange(6) for number in range(PROMPTS)]
        async with DaemonClient(
            "http://x", transport=server, retry=policy, max_pending_prompts_per_session=None, stream_silence_s=1000
        ) as client:
            results: dict[str, str] = {}

            async def ask(text: str) -> None:
                await trio.sleep(chance.choice([0, 0, 1, 5, 20, 50]))
                async with client.stream(SESSION, text) as turn:
                    events = [event async for event in turn]
                    results[text] = (await turn.result()).text
                numbers = [event.id for event in events]
                assert numbers == sorted(set(numbers))  # type: ignore[type-var]
                assert sum(isinstance(event, TerminalEvent) for event in events) == 1

            with trio.fail_after(100_000):
                async with anyio.create_task_group() as tasks:
                    for text in texts:
                        tasks.start_soon(ask, text)
            assert results == {text: text for text in texts}
            assert client.pending_prompts_total == 0


@pytest.mark.parametrize("part", range(5))
def test_every_prompt_gets_all_that_is_its_own_and_its_end(part: int) -> None:
    for seed in range(part, SEEDS, 5):
        trio.run(run, seed, clock=trio.testing.MockClock(autojump_threshold=0))
