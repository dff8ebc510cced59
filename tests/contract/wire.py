"""A small HTTP/1.1 client over any trio stream, with full control over what is sent and when."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h11
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

ANSWER_S = 20.0


@dataclass(frozen=True)
class Reply:
    """A complete answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        told = self.json()
        return str(told["error"]) if isinstance(told, dict) and "error" in told else ""


def request_bytes(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """A whole request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: triton", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def as_body(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


class Wire:
    """One connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._method = "GET"

    async def send(self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a whole request; read its answer with `reply` or `events`."""
        raw = as_body(body)
        told = [("Host", "triton"), ("Content-Length", str(len(raw))), *(headers or {}).items()]
        data = self._http.send(h11.Request(method=method, target=path, headers=told)) or b""
        data += self._http.send(h11.Data(data=raw)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        await self.stream.send_all(data)

    async def reply(self) -> Reply:
        """Read a whole answer.

        Raises:
            h11.RemoteProtocolError, trio.BrokenResourceError: the connection ended before it was whole.
        """
        with trio.fail_after(ANSWER_S):
            head = await self._event()
            assert isinstance(head, h11.Response)
            body = b""
            while isinstance(event := await self._event(), h11.Data):
                body += event.data
            assert isinstance(event, h11.EndOfMessage)
        self._http.start_next_cycle()
        return Reply(head.status_code, _headers(head), body)

    async def ask(self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request and read its answer."""
        await self.send(method, path, body, headers)
        return await self.reply()

    async def head(self) -> Reply:
        """Read the head of an answer only."""
        with trio.fail_after(ANSWER_S):
            head = await self._event()
        assert isinstance(head, h11.Response)
        return Reply(head.status_code, _headers(head), b"")

    async def data(self) -> AsyncIterator[bytes]:
        """Read the rest of a body as it arrives, after `head`."""
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)
        assert isinstance(event, h11.EndOfMessage)

    async def next_data(self) -> bytes:
        """The next piece of a body; empty at its end."""
        with trio.fail_after(ANSWER_S):
            event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def rest(self) -> None:
        """Read a body to its end, after `head`."""
        while await self.next_data():
            pass

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(bytes(await self.stream.receive_some(65536)))
        assert not isinstance(event, h11.ConnectionClosed), "the connection ended instead"
        return event

    async def close(self) -> None:
        """Close it at once, whatever is under way."""
        await trio.aclose_forcefully(self.stream)

    async def reset(self) -> None:
        """Reset it (over memory: close it)."""
        if isinstance(self.stream, trio.SocketStream):
            self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(self.stream)

    async def half_close(self) -> None:
        """Close our direction only."""
        assert isinstance(self.stream, trio.abc.HalfCloseableStream)
        await self.stream.send_eof()


def _headers(head: h11.Response) -> dict[str, str]:
    return {name.decode().lower(): value.decode() for name, value in head.headers}
