"""A server that answers as it is told to, in threads of its own, so that every kind of client can be held against it.

It speaks just enough HTTP/1.1. What a test does not care about is answered as a governor would.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 10.0
EPOCH = "epoch-1"
SESSION = "11111111-1111-4111-8111-111111111111"
Respond = Callable[["Request", "Wire"], None]


class GoneError(Exception):
    """The client has closed its connection."""


@dataclass(frozen=True)
class Request:
    """One request; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def cursor(self) -> int | None:
        """The event after which a stream is to begin."""
        value = self.headers.get("last-event-id")
        return int(value) if value is not None else None


class Wire:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.file = sock.makefile("rb")
        self.keep = True

    def read(self) -> Request:
        """The next request."""
        line = self._line()
        method, path, _ = line.split(" ")
        headers = {}
        while line := self._line(gone=False):
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return Request(method, path, headers, self.file.read(int(headers.get("content-length", "0"))))

    def _line(self, *, gone: bool = True) -> str:
        line = self.file.readline()
        if gone and not line:
            raise GoneError
        return line.decode().rstrip("\r\n")

    def send(self, data: bytes) -> None:
        """Raw bytes."""
        try:
            self.sock.sendall(data)
        except OSError:
            raise GoneError from None

    def json(self, status: int, body: Any, **headers: str) -> None:
        """A whole answer, and the connection goes on."""
        content = b"" if body is None else json.dumps(body).encode()
        self.answer(status, content, **headers)

    def answer(self, status: int, content: bytes, *, kind: str = "application/json", **headers: str) -> None:
        """A whole answer of any kind."""
        fields = {"Content-Type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if status != 204:
            fields["Content-Length"] = str(len(content))
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.send(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + content)

    def stream(self, *, epoch: str = EPOCH, kind: str = "text/event-stream") -> None:
        """The head of an event stream; its end is the end of the connection."""
        self.keep = False
        fields = f"Content-Type: {kind}\r\nX-Qwen-Event-Epoch: {epoch}\r\nConnection: close\r\n"
        self.send(f"HTTP/1.1 200 OK\r\n{fields}\r\n".encode())

    def event(self, event_id: int | None, event_type: str, **data: Any) -> None:
        """One event."""
        self.send(frame(event_id, event_type, **data))

    def reset(self) -> None:
        """Ends the connection with a RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self.keep = False
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.file.close()
        self.sock.close()

    def wait_gone(self) -> None:
        """Sends nothing until the client has left."""
        with suppress(OSError, ValueError):
            while self.sock.recv(1024):
                pass
        raise GoneError


def frame(event_id: int | None, event_type: str, **data: Any) -> bytes:
    """An event as the governor would send it; `promptId` goes on its envelope as well."""
    envelope: dict[str, Any] = {"v": 1, "type": event_type, "data": data}
    head = f"event: {event_type}\n"
    if event_id is not None:
        envelope["id"] = event_id
        head = f"id: {event_id}\n{head}"
    if "promptId" in data:
        envelope["promptId"] = data["promptId"]
    return f"{head}data: {json.dumps(envelope)}\n\n".encode()


def chunk(event_id: int, prompt_id: str, text: str) -> bytes:
    """A piece of an answer."""
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return frame(event_id, "session_update", promptId=prompt_id, update=update)


def complete(event_id: int, prompt_id: str, stop_reason: str = "end_turn") -> bytes:
    """The end of a turn."""
    return frame(event_id, "turn_complete", promptId=prompt_id, stopReason=stop_reason)


def accept(prompt_id: str = "p1", last_event_id: int | None = 0, epoch: str | None = EPOCH) -> Respond:
    """A 202."""
    body: dict[str, Any] = {"promptId": prompt_id}
    if last_event_id is not None:
        body |= {"lastEventId": last_event_id}
    if epoch is not None:
        body |= {"eventEpoch": epoch}
    return lambda _, wire: wire.json(202, body)


def refuse(status: int, body: Any, **headers: str) -> Respond:
    """A whole answer, the same each time."""
    return lambda _, wire: wire.json(status, body, **headers)


def reset(_: Request, wire: Wire) -> None:
    """The connection ends with a RST instead of an answer."""
    wire.reset()


def in_turn(*responds: Respond) -> Respond:
    """One after the other; the last one again and again."""
    left = list(responds)
    lock = threading.Lock()

    def respond(request: Request, wire: Wire) -> None:
        with lock:
            this = left.pop(0) if len(left) > 1 else left[0]
        this(request, wire)

    return respond


def tell(*pieces: bytes, then: Callable[[Wire], None] = Wire.wait_gone) -> Respond:
    """An event stream of these pieces, whatever the cursor; by default it stays open."""

    def respond(_: Request, wire: Wire) -> None:
        wire.stream()
        for piece in pieces:
            wire.send(piece)
        then(wire)

    return respond


@dataclass
class FakeServer:
    """A server on a port of its own.

    Attributes:
        routes: pairs of a pattern for `METHOD /path` and what answers it; the first that fits is taken.
        seen: every request, as `METHOD /path`.
        connections: connections that are open.
    """

    routes: list[tuple[str, Respond]]
    url: str = ""
    seen: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wires: set[Wire] = field(default_factory=set)

    def count(self, pattern: str) -> int:
        """How many requests fit a pattern."""
        return sum(1 for line in self.seen if re.fullmatch(pattern, line))

    def wait_connections(self, number: int) -> None:
        """Waits until so many connections are open."""
        wait_until(lambda: self.connections == number, lambda: f"{self.connections} connections are open")

    def wait_seen(self, pattern: str, number: int = 1) -> None:
        """Waits until so many requests fit a pattern."""
        wait_until(lambda: self.count(pattern) >= number, lambda: f"no {pattern} among {self.seen}")

    def serve(self, sock: socket.socket) -> None:
        """One connection, to its end."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = Wire(sock)
        with self._lock:
            self.connections += 1
            self._wires.add(wire)
        try:
            while wire.keep:
                request = wire.read()
                line = f"{request.method} {request.path}"
                with self._lock:
                    self.seen.append(line)
                    self.requests.append(request)
                next(respond for pattern, respond in self.routes if re.fullmatch(pattern, line))(request, wire)
        except (GoneError, OSError, ValueError):
            pass  # the client's leaving, and the test's end, are no errors of the server
        finally:
            with self._lock:
                self.connections -= 1
                self._wires.discard(wire)
            wire.close()

    def end(self) -> None:
        """Ends every connection."""
        with self._lock:
            wires = list(self._wires)
        for wire in wires:
            with suppress(OSError):
                wire.sock.shutdown(socket.SHUT_RDWR)


def wait_until(condition: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """Waits in small steps for what another thread brings about."""
    deadline = time.monotonic() + PATIENCE_S
    ready = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, otherwise()
        ready.wait(0.002)


@contextmanager
def fake_server(
    *,
    prompt: Respond | None = None,
    events: Respond | None = None,
    turn: Respond | None = None,
    more: tuple[tuple[str, Respond], ...] = (),
) -> Iterator[FakeServer]:
    """A server whose prompts, event streams and turns are answered as the test says."""
    session = {"sessionId": SESSION, "workspaceCwd": "/", "attached": False, "clientId": "client_1"}
    missing: Respond = lambda _, wire: wire.json(404, {"error": "no such thing", "code": "not_found"})  # noqa: E731
    routes: list[tuple[str, Respond]] = [
        *more,
        ("POST /session", lambda _, wire: wire.json(200, session)),
        ("POST /session/[^/]*/resume", lambda _, wire: wire.json(200, {**session, "clientId": "client_2"})),
        ("POST /session/[^/]*/prompt", prompt or accept()),
        ("GET /session/[^/]*/events.*", events or tell(complete(1, "p1"))),
        ("GET /session/[^/]*/turns/.*", turn or missing),
        ("DELETE /session/[^/]*/pending-prompts/.*", lambda _, wire: wire.json(200, {"removed": True})),
        ("POST /session/[^/]*/cancel", lambda _, wire: wire.json(204, None)),
        (".*", missing),
    ]
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        server = FakeServer(routes, url=f"http://127.0.0.1:{listener.getsockname()[1]}")

        def listen() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=server.serve, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=listen, daemon=True).start()
        try:
            yield server
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            server.end()
