"""A fake server that puts one request to an ASGI application."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypercorn.typing import ASGIReceiveEvent, ASGISendEvent, HTTPScope

    from api.guard import Guard


class Exchange:
    """One request as a server would put it to the application; records what is sent.

    Attributes:
        sent: every message in order.
        on_send: called with each message, before it is recorded.
    """

    def __init__(
        self, path: str = "/", *parts: bytes, length: bytes | None = None, headers: tuple[bytes, ...] = ()
    ) -> None:
        fields = [(name, b"x") for name in headers]
        if length is not None:
            fields.append((b"content-length", length))
        self.scope: HTTPScope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": fields,
            "client": None,
            "server": None,
            "state": {},  # type: ignore[typeddict-item]  # a NewType of dict, which hypercorn does not export
            "extensions": {},
        }
        self._incoming: list[ASGIReceiveEvent] = [
            {"type": "http.request", "body": part, "more_body": True} for part in parts
        ]
        self._incoming.append({"type": "http.request", "body": b"", "more_body": False})
        self.sent: list[ASGISendEvent] = []
        self.on_send: Callable[[ASGISendEvent], None] = lambda _: None

    async def receive(self) -> ASGIReceiveEvent:
        await trio.lowlevel.checkpoint()
        if not self._incoming:
            await trio.sleep_forever()
        return self._incoming.pop(0)

    async def send(self, message: ASGISendEvent) -> None:
        await trio.lowlevel.checkpoint()
        self.on_send(message)
        self.sent.append(message)

    async def run(self, guard: Guard) -> Exchange:
        with trio.fail_after(5):
            await guard(self.scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        first = self.sent[0]
        assert first["type"] == "http.response.start"
        return first["status"]

    @property
    def headers(self) -> dict[bytes, bytes]:
        first = self.sent[0]
        assert first["type"] == "http.response.start"
        return dict(first["headers"])

    @property
    def content(self) -> bytes:
        return b"".join(m["body"] for m in self.sent if m["type"] == "http.response.body")

    @property
    def error(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.content)
        return found
