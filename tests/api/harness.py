"""The HTTP surface over a governor with a fake backend, and clients that speak ASGI or raw sockets to it."""

from __future__ import annotations

import json
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from api.app import create_app
from api.context import GovernorApp
from governor.config import BackendConfig, Config, LimitsConfig, ModelConfig, ServerConfig, TokensConfig
from governor.service import Governor
from tests.api.conformance import EVENT_STREAM, check_answer, check_event
from tests.shell.fakes import FakeLane, FakePort
from tests.shell.harness import FakeHealth
from tests.shell.world import MODEL, Plan, Response, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from hypercorn.typing import ASGIFramework, HTTPScope

    from governor.triton.wire import WireRequest
    from tests.shell.world import Connection

PORT = 4170
HOST = f"127.0.0.1:{PORT}"
PATIENCE_S = 10.0
"""Bounds every wait for something that must happen; on a clock that jumps it costs nothing."""


class ApiWorld(World):
    """A fake backend that keeps what it was sent, and answers what it is told to, whatever the body says.

    Attributes:
        wires: every delivered inference.
        next_plans: what becomes of the next requests; the bodies' texts decide when it is empty.
        questions: every delivered request that is no inference.
        replies: what these get, by method and path: status, content type, body. Others get Triton's 404.
        questions_wait: while it is not set, they get nothing.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self.wires: list[WireRequest] = []
        self.questions: list[WireRequest] = []
        self.replies: dict[str, tuple[int, str | None, bytes]] = {}
        self.questions_wait = trio.Event()
        self.questions_wait.set()
        self.next_plans: deque[Plan] = deque()
        self._planned: dict[int, Plan] = {}

    def plan_of(self, wire: WireRequest) -> tuple[str, Plan]:
        if not _is_inference(wire):
            return "question", Plan()
        if id(wire) in self._planned:
            return "planned", self._planned[id(wire)]
        if self.next_plans:
            self._planned[id(wire)] = self.next_plans.popleft()
            return self.plan_of(wire)
        return super().plan_of(wire)

    def deliver(self, connection: Connection, wire: WireRequest) -> Response:
        if not _is_inference(wire):
            return self._reply(connection, wire)
        self.wires.append(wire)
        return super().deliver(connection, wire)

    def _reply(self, connection: Connection, wire: WireRequest) -> Response:
        self.questions.append(wire)
        not_found = (404, "text/plain", b'{"error":"Not Found"}')
        status, content_type, body = self.replies.get(f"{wire.method} {wire.path}", not_found)
        response = connection.response = Response()
        response.headers = (("Content-Type", content_type),) if content_type is not None else ()
        response.pieces.append(body)

        async def later() -> None:
            await self.questions_wait.wait()
            response.status, response.complete = status, True
            response.notify()

        self.nursery.start_soon(later)
        return response


def _is_inference(wire: WireRequest) -> bool:
    return wire.path.partition("?")[0].endswith(("/infer", "/generate", "/generate_stream"))


@dataclass(slots=True)
class Service:
    """A running governor and its application."""

    world: ApiWorld
    health: FakeHealth
    governor: Governor
    app: GovernorApp

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **scope: Any,
    ) -> Answer:
        """One request and its whole answer. `body` is sent as JSON, `data` as it is."""
        request = dict(headers or {})
        if data is None:
            data = json.dumps(body).encode() if body is not None else b""
            if body is not None:
                request.setdefault("Content-Type", "application/json")
        async with trio.open_nursery() as nursery:
            exchange = AsgiExchange(self.app, method, path, data=data, headers=request, **scope)
            nursery.start_soon(exchange.run)
            with trio.fail_after(PATIENCE_S * 1000):
                answer = await exchange.whole()
            nursery.cancel_scope.cancel()
        return answer

    async def new_session(self, **body: object) -> str:
        """A session of its own; returns its id."""
        answer = await self.ask("POST", "/session", body={"sessionScope": "thread", **body})
        assert answer.status == 200, answer
        return str(answer.json["sessionId"])

    async def prompt(self, session_id: str, text: str, **body: object) -> Answer:
        """Sends one text block."""
        whole = {"prompt": [{"type": "text", "text": text}], **body}
        return await self.ask("POST", f"/session/{session_id}/prompt", body=whole)

    @property
    def free(self) -> int:
        """Free slot credits of the first identity."""
        return next(iter(self.governor.identities.values())).statistics().ledger.free


@dataclass(slots=True)
class Answer:
    """A complete HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value

    @property
    def code(self) -> object:
        """The stable code of an error; its body must have the shape of one."""
        assert self.headers["content-type"] == "application/json", self
        assert isinstance(self.json["error"], str), self
        return self.json["code"]


@dataclass(slots=True, eq=False)
class AsgiExchange:
    """One request on its way through an ASGI application, seen from the server's side.

    Every complete answer of the governor's application is held against its OpenAPI document.

    Attributes:
        blocked: while it is not set, the client takes nothing.
        closes_when_read: the client closes the connection once it has read an answer that asks for it.
        declares_length: the request has a Content-Length.
        cut: the client sends half of its body and then nothing.
    """

    app: ASGIFramework
    method: str
    path: str
    data: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: bytes = b""
    client: tuple[str, int] = ("127.0.0.1", 50000)
    host: str | None = HOST
    raw_path: bytes | None = None
    status: int | None = None
    sent_headers: dict[str, str] = field(default_factory=dict)
    ended: trio.Event = field(default_factory=trio.Event)
    blocked: trio.Event | None = None
    closes_when_read: bool = True
    declares_length: bool = True
    cut: bool = False
    _received: int = 0
    _whole: list[bytes] = field(default_factory=list)
    _pieces: deque[bytes] = field(default_factory=deque)
    _complete: bool = False
    _changed: trio.Event = field(default_factory=trio.Event)
    _gone: trio.Event = field(default_factory=trio.Event)
    _asked: bool = False

    def scope(self) -> HTTPScope:
        """What a server makes of the request line and the headers."""
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        if self.host is not None:
            headers.append((b"host", self.host.encode()))
        if self.data and self.declares_length:
            headers.append((b"content-length", str(len(self.data)).encode()))
        return {
            "type": "http",
            "http_version": "1.1",
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.raw_path if self.raw_path is not None else self.path.encode(),
            "query_string": self.query,
            "root_path": "",
            "headers": headers,
            "client": self.client,
            "server": ("127.0.0.1", PORT),
            "state": {},  # type: ignore[typeddict-item]  # a server's own; the application does not look at it
            "extensions": {},
        }

    async def run(self) -> None:
        """Runs the application; `ended` is set however it ends."""
        try:
            await self.app(self.scope(), self._receive, self._send)
        finally:
            self.ended.set()
            self._notify()
        if self._complete:
            self._check()

    def _check(self) -> None:
        if isinstance(self.app, GovernorApp) and self.status is not None:
            check_answer(self.method, self.path, self.status, self.sent_headers, b"".join(self._whole))

    def leave(self) -> None:
        """The client goes away."""
        self._gone.set()

    async def head(self) -> int:
        """Waits for the status."""
        while self.status is None:
            assert not self.ended.is_set(), "the application ended without an answer"
            await self._changed.wait()
        return self.status

    async def piece(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        while not self._pieces:
            if self._complete or self.ended.is_set():
                return None
            await self._changed.wait()
        return self._pieces.popleft()

    @property
    def was_read(self) -> bool:
        """The application has asked for the body."""
        return self._asked

    @property
    def complete(self) -> bool:
        """The answer came to its proper end."""
        return self._complete

    async def whole(self) -> Answer:
        """The complete answer."""
        status = await self.head()
        pieces = []
        while (piece := await self.piece()) is not None:
            pieces.append(piece)
        assert self._complete, "the answer was cut"
        self._check()
        return Answer(status, self.sent_headers, b"".join(pieces))

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            body = self.data[: len(self.data) // 2] if self.cut else self.data
            return {"type": "http.request", "body": body, "more_body": self.cut}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await trio.lowlevel.checkpoint()
        if self.blocked is not None:
            await self.blocked.wait()
        if message["type"] == "http.response.start":
            assert self.status is None, "two answers to one request"
            self.status = message["status"]
            self.sent_headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            if message.get("body"):
                self._pieces.append(message["body"])
                self._received += len(message["body"])
                if not self.sent_headers.get("content-type", "").startswith(EVENT_STREAM):
                    self._whole.append(message["body"])
            self._complete = self._complete or not message.get("more_body", False)
            asked = self.closes_when_read and self.sent_headers.get("connection") == "close"
            if asked and self._received == int(self.sent_headers.get("content-length", -1)):
                self.leave()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class Events:
    """Reads the frames of an event stream."""

    def __init__(self, exchange: AsgiExchange) -> None:
        self.exchange = exchange
        self.raw = b""
        self._rest = b""

    async def next(self) -> str | None:
        """The next frame without its blank line; None at the end."""
        while b"\n\n" not in self._rest:
            with trio.fail_after(PATIENCE_S * 1000):
                piece = await self.exchange.piece()
            if piece is None:
                assert not self._rest, "the stream ended inside a frame"
                return None
            self._rest += piece
            self.raw += piece
        frame, _, self._rest = self._rest.partition(b"\n\n")
        return frame.decode()

    async def event(self) -> dict[str, Any] | None:
        """The envelope of the next event; comments and `retry` are passed over."""
        while (frame := await self.next()) is not None:
            for line in frame.splitlines():
                if line.startswith("data: "):
                    value = json.loads(line.removeprefix("data: "))
                    assert isinstance(value, dict)
                    check_event(value, self.exchange.path)
                    return value
        return None

    async def until(self, *types: str) -> list[dict[str, Any]]:
        """Every event up to and with the first of one of these types."""
        seen = []
        while (event := await self.event()) is not None:
            seen.append(event)
            if event["type"] in types:
                return seen
        raise AssertionError(f"the stream ended before any of {types}; it had {[event['type'] for event in seen]}")


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """What happened, in order; chunks by their own names."""
    return [
        event["data"]["update"]["sessionUpdate"] if event["type"] == "session_update" else event["type"]
        for event in events
    ]


def make_config(
    *,
    server: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    tokens: Mapping[str, Any] | None = None,
    backend: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    more_models: tuple[ModelConfig, ...] = (),
) -> Config:
    """One backend, one model of one slot, what a test wants otherwise, and defaults."""
    chat = {"name": "chat", "triton_model": MODEL, "backend": "b", "slots": 1, "kind": "generate"}
    first = ModelConfig(**{**chat, **(model or {})})
    return Config(
        server=ServerConfig(**dict(server or {})),
        limits=LimitsConfig(**dict(limits or {})),
        tokens=TokensConfig(**dict(tokens or {})),
        backends=(BackendConfig(**{"name": "b", "url": "http://127.0.0.1:8000", **(backend or {})}),),
        models=(first, *more_models),
    )


@asynccontextmanager
async def service(config: Config | None = None, **options: Any) -> AsyncIterator[Service]:
    """A running governor behind its application; everything is cancelled at the end. Options as `make_config`."""
    config = config if config is not None else make_config(**options)
    async with trio.open_nursery() as nursery:
        world = ApiWorld(nursery)
        health = FakeHealth(world)
        clock = trio.current_time
        governor = Governor(
            config,
            now_ms=lambda: 1_700_000_000_000 + int(clock() * 1000),
            make_port=lambda _config, _model: FakePort(world),
            check=health,
            make_lane=lambda _config: FakeLane(world),
        )
        await nursery.start(governor.run)
        await trio.sleep(0.01)  # the first health check is over
        yield Service(world, health, governor, create_app(governor))
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def streaming(service: Service, path: str, **options: Any) -> AsyncIterator[AsgiExchange]:
    """A request whose answer is taken piece by piece; its client leaves at the end."""
    exchange = AsgiExchange(service.app, options.pop("method", "GET"), path, **options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run)
        yield exchange
        exchange.leave()
        with trio.fail_after(PATIENCE_S):
            await exchange.ended.wait()


@asynccontextmanager
async def listening(service: Service, session_id: str, **headers: str) -> AsyncIterator[Events]:
    """A subscriber of a session that has got its greeting."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with streaming(service, f"/session/{session_id}/events", headers=named) as exchange:
        assert await exchange.head() == 200
        events = Events(exchange)
        assert await events.next() == "retry: 3000"
        yield events
