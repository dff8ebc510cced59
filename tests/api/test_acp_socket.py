"""`/acp` over real sockets, by a client of plain httpx that knows nothing of the governor's code."""

from __future__ import annotations

import itertools
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from tests.api.harness import make_config
from tests.api.test_main import (
    SERVER,
    Running,
    running,
    runtime_dir,  # noqa: F401  # a fixture of every test here
)
from tests.shell.world import Plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import httpx
    import pytest


@dataclass
class Client:
    """One connection; what its streams tell is kept until somebody waits for it."""

    http: httpx.AsyncClient
    headers: dict[str, str]
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    told: list[tuple[str | None, dict[str, Any]]] = field(default_factory=list)
    changed: trio.Event = field(default_factory=trio.Event)

    async def request(self, method: str, **params: object) -> int:
        number = next(self.ids)
        body = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        answer = await self.http.post("/acp", json=body, headers=self.headers)
        assert (answer.status_code, answer.content) == (202, b"")
        return number

    async def response(self, number: int) -> dict[str, Any]:
        with trio.fail_after(10):
            while True:
                found = [message for _, message in self.told if "method" not in message and message["id"] == number]
                if found:
                    assert len(found) == 1
                    return found[0]
                await self.changed.wait()

    async def listen(
        self, nursery: trio.Nursery, session_id: str | None = None, last_event_id: str | None = None
    ) -> trio.CancelScope:
        """Reads a stream until its end, or until the scope is cancelled, which breaks the connection."""
        headers = {**self.headers, "Accept": "text/event-stream"}
        headers |= {"Acp-Session-Id": session_id} if session_id is not None else {}
        headers |= {"Last-Event-ID": last_event_id} if last_event_id is not None else {}
        scope: trio.CancelScope = await nursery.start(self._read, headers)
        return scope

    async def _read(
        self, headers: dict[str, str], *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.CancelScope() as scope:
            async with self.http.stream("GET", "/acp", headers=headers, timeout=None) as stream:
                assert stream.status_code == 200
                task_status.started(scope)
                number = None
                async for line in stream.aiter_lines():
                    if line.startswith("id: "):
                        number = line.removeprefix("id: ")
                    elif line.startswith("data: "):
                        self.told.append((number, json.loads(line.removeprefix("data: "))))
                        number = None
                        self.changed.set()
                        self.changed = trio.Event()


@asynccontextmanager
async def connected(up: Running) -> AsyncIterator[tuple[Client, str, trio.Nursery]]:
    """A connection with its own stream, and a session."""
    async with up.client() as http, trio.open_nursery() as nursery:
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
        answer = await http.post("/acp", json=body)
        client = Client(http, {"Acp-Connection-Id": answer.headers["Acp-Connection-Id"]})
        await client.listen(nursery)
        made = await client.response(await client.request("session/new", cwd="/", mcpServers=[]))
        yield client, made["result"]["sessionId"], nursery
        nursery.cancel_scope.cancel()


def ask(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


async def test_prompts_are_answered_and_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as up, connected(up) as (client, session, nursery):
        await client.listen(nursery, session)
        for _ in range(5):
            told = await client.response(await client.request("session/prompt", sessionId=session, prompt=ask("0")))
            assert told["result"]["stopReason"] == "end_turn"
        long = await client.request("session/prompt", sessionId=session, prompt=ask("60"))
        cancel = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}
        await up.until(lambda: bool(up.world.executing))
        assert (await client.http.post("/acp", json=cancel, headers=client.headers)).status_code == 202
        assert (await client.response(long))["result"]["stopReason"] == "cancelled"
        assert (await client.http.delete("/acp", headers=client.headers)).status_code == 202
        await up.until(lambda: up.governor.statistics().subscribers == 0)


async def test_a_tcp_connection_that_breaks_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(server=SERVER, model={"kind": "generate_stream"})
    async with running(monkeypatch, config) as up, connected(up) as (client, session, nursery):
        up.world.next_plans += [Plan(seconds=1, texts=tuple(f"{number} " for number in range(20)))]
        asked = await client.request("session/prompt", sessionId=session, prompt=ask("tell"))
        last = "0"
        for _ in range(3):
            scope = await client.listen(nursery, session, last)
            await trio.sleep(0.2)
            scope.cancel()
            last = max((number for number, _ in client.told if number is not None), key=int, default="0")
        await client.listen(nursery, session, last)
        assert (await client.response(asked))["result"]["stopReason"] == "end_turn"
        await up.until(lambda: client.told[-1][0] is not None)
        numbers = [int(number) for number, _ in client.told if number is not None]
        assert numbers == list(range(1, len(numbers) + 1))
        assert numbers[-1] == up.governor.sessions[session].log.last_id


async def test_a_shutdown_answers_every_prompt_and_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as up, connected(up) as (client, session, nursery):
        await client.listen(nursery, session)
        asked = [await client.request("session/prompt", sessionId=session, prompt=ask("60")) for _ in range(3)]
        await up.until(lambda: bool(up.world.executing))
        took = await up.end(within_s=4)
        assert up.error is None
        for each in asked:
            assert (await client.response(each))["error"]["data"]["errorKind"] == "daemon_shutdown"
        assert took < 2.5, "the connection's own stream holds nothing up"
