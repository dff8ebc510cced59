"""A client of `/acp` that speaks ASGI to the application."""

from __future__ import annotations

import itertools
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.api.harness import Events, streaming

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.api.harness import Answer, Service

SSE = {"Accept": "text/event-stream"}


class Messages:
    """Reads the messages of one stream.

    Attributes:
        seen: every message so far, with the id of its frame; given, it is added to.
    """

    def __init__(self, events: Events, seen: list[tuple[int | None, dict[str, Any]]] | None = None) -> None:
        self.events = events
        self.seen: list[tuple[int | None, dict[str, Any]]] = seen if seen is not None else []

    async def next(self) -> dict[str, Any] | None:
        """The next message; comments are passed over. None at the end of the stream."""
        comments = 0
        while (frame := await self.events.next()) is not None:
            lines = frame.splitlines()
            data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
            if data:
                ids = [int(line.removeprefix("id: ")) for line in lines if line.startswith("id: ")]
                assert not any(line.startswith("event:") for line in lines)
                (message,) = map(json.loads, data)
                assert message["jsonrpc"] == "2.0"
                self.seen.append((ids[0] if ids else None, message))
                return dict(message)
            comments += 1
            assert comments < 100, f"nothing comes any more; the stream had {self.seen}"
        return None

    async def response(self, request_id: object) -> dict[str, Any]:
        """The response of this id; reads up to it, if it has not come before."""
        for _, seen in self.seen:
            if "method" not in seen and seen["id"] == request_id:
                return seen
        while (message := await self.next()) is not None:
            if "method" not in message and message["id"] == request_id:
                return message
        raise AssertionError(f"the stream ended before the response {request_id}; it had {self.seen}")

    async def notified(self, kind: str) -> dict[str, Any]:
        """Reads up to the notification of this kind, `session/update` or one of the events'; returns its params."""
        while (message := await self.next()) is not None:
            if kind_of(message) == kind:
                return dict(message["params"])
        raise AssertionError(f"the stream ended before {kind}; it had {self.seen}")

    async def rest(self) -> list[dict[str, Any]]:
        """Everything up to the end of the stream."""
        told = []
        while (message := await self.next()) is not None:
            told.append(message)
        return told


def kind_of(message: dict[str, Any]) -> str | None:
    """What a notification tells; None for a response."""
    if message.get("method") == "session/update":
        return str(message["params"]["update"]["sessionUpdate"])
    return str(message["params"]["kind"]) if "method" in message else None


@dataclass
class Acp:
    """One connection's client."""

    up: Service
    connection: str
    headers: dict[str, str]
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def post(self, message: object, **headers: str) -> Answer:
        """One message."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.up.ask("POST", "/acp", body=message, headers={**self.headers, **named})

    async def send(self, method: str, params: object = None, **headers: str) -> int:
        """A request that is accepted; returns its id."""
        request_id = next(self.ids)
        answer = await self.post(
            {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}, **headers
        )
        assert (answer.status, answer.body) == (202, b""), answer
        return request_id

    async def notify(self, method: str, params: object = None) -> Answer:
        """A notification."""
        return await self.post({"jsonrpc": "2.0", "method": method, "params": params or {}})

    async def prompt(self, session_id: str, text: str, **params: object) -> int:
        """Hands in one text block; returns the request's id."""
        blocks = [{"type": "text", "text": text}]
        return await self.send("session/prompt", {"sessionId": session_id, "prompt": blocks, **params})

    async def new_session(self, **params: object) -> str:
        """A session of the connection's own; reads the connection's stream for it."""
        async with self.stream() as own:
            request_id = await self.send("session/new", {"cwd": "/", "mcpServers": [], **params})
            return str((await own.response(request_id))["result"]["sessionId"])

    @asynccontextmanager
    async def stream(self, session_id: str | None = None, **headers: str) -> AsyncIterator[Messages]:
        """The connection's own stream, or that of a session."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {**self.headers, **SSE, **named, **({"Acp-Session-Id": session_id} if session_id is not None else {})}
        async with streaming(self.up, "/acp", headers=sent) as exchange:
            assert await exchange.head() == 200
            events = Events(exchange)
            assert await events.next() == "retry: 3000"
            yield Messages(events)

    async def delete(self) -> Answer:
        """Ends the connection."""
        return await self.up.ask("DELETE", "/acp", headers=self.headers)


async def connect(up: Service, **headers: str) -> Acp:
    """Opens a connection."""
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
    answer = await up.ask("POST", "/acp", body=message, headers=headers)
    assert answer.status == 200, answer
    connection = answer.headers["acp-connection-id"]
    return Acp(up, connection, {**headers, "Acp-Connection-Id": connection})


def responses(seen: list[tuple[int | None, dict[str, Any]]], request_id: int) -> list[dict[str, Any]]:
    """All responses to one request, among what a stream has told."""
    return [message for _, message in seen if "method" not in message and message["id"] == request_id]
