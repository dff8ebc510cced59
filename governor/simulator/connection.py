"""One HTTP/1.1 connection of a simulated Triton."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import h11
import trio

from governor.simulator.answers import Answer, error_answer

if TYPE_CHECKING:
    from collections.abc import Callable

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Not Allowed",
    413: "Payload Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}
_RECEIVE_BYTES: Final = 65536


@dataclass(frozen=True)
class Limits:
    """What one connection may cost. Sizes in bytes, times in seconds."""

    head_bytes: int = 65536
    body_bytes: int = 64 * 1024 * 1024
    request_s: float = 120.0
    idle_s: float = 300.0
    send_s: float = 30.0
    connections: int = 512


class ResetConnectionError(Exception):
    """The connection is to be reset: the client gets ECONNRESET, or EOF over a memory stream."""


@dataclass(frozen=True)
class Head:
    """A request's head; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]


@dataclass
class Client:
    """The other end of a connection, as far as an answer in the making must know it."""

    left: bool = False
    on_left: Callable[[], None] = field(default=lambda: None)


class Pieces(Protocol):
    """An answer that is sent piece by piece: chunked where it has no length."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def content_type(self) -> str:
        """The content type."""

    @property
    def content_length(self) -> int | None:
        """The length of the whole body in bytes; None where the pieces are sent as chunks."""

    async def next_piece(self) -> bytes | None:
        """The next piece; None at the end.

        Raises:
            ResetConnectionError: the connection shall be reset here.
            AbandonedError: the client left; the connection ends without the answer's end.
        """


class AbandonedError(Exception):
    """The client left in the middle of an answer in pieces."""


class App(Protocol):
    """What answers the requests of a connection."""

    def begin(self, head: Head) -> Responder:
        """Look at a request's head, before its body is read.

        Raises:
            ResetConnectionError: the connection shall be reset now.
        """


class Responder(Protocol):
    """Answers one request."""

    async def answer(self, body: bytes, client: Client) -> Answer | Pieces:
        """Answer it, now that its body is there.

        Raises:
            ResetConnectionError: the connection shall be reset.
        """


_ENDED: Final = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    h11.ProtocolError,
    AbandonedError,
    ResetConnectionError,
)


class Connection:
    """Serves requests on one stream until it ends.

    A request that never arrives completely is never answered and never executes. Broken HTTP ends the
    connection without an answer, as Triton does it.
    """

    def __init__(self, stream: trio.abc.Stream, app: App, limits: Limits) -> None:
        self._stream = stream
        self._app = app
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._client = Client()
        self._early = b""
        self._method = ""

    async def serve(self) -> None:
        """Serve until either side closes; the stream is closed when this returns."""
        try:
            while await self._serve_one():
                self._http.start_next_cycle()
        except ResetConnectionError:
            reset(self._stream)
        except _ENDED:
            pass  # the client is gone, too slow, or speaks no HTTP: nobody is left to tell
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _serve_one(self) -> bool:
        """Serve one request; returns whether another may follow."""
        head = await self._head()
        if head is None:
            return False
        responder = self._app.begin(head)
        body = await self._body()
        if body is None:
            return False
        self._client = Client()
        ended: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, self._client)
            try:
                await self._respond(responder, body)
            except _ENDED as reason:
                ended = reason
            nursery.cancel_scope.cancel()
        if ended is not None:
            raise ended
        if self._early:
            self._http.receive_data(self._early)
            self._early = b""
        reusable = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        return reusable and not self._client.left

    # -- reading -------------------------------------------------------------------------------------------

    async def _head(self) -> Head | None:
        event = await self._next_event(self._limits.idle_s)
        if not isinstance(event, h11.Request):
            return None
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in event.headers}
        self._method = event.method.decode()
        return Head(self._method, event.target.decode("latin-1"), headers)

    async def _body(self) -> bytes | None:
        """The request's body; None where it was too large and so was answered already."""
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        body = bytearray()
        with trio.fail_after(self._limits.request_s):
            while True:
                event = await self._next_event(self._limits.request_s)
                if isinstance(event, h11.EndOfMessage):
                    return bytes(body)
                assert isinstance(event, h11.Data), "a body is data up to its end, or a protocol error"
                body += event.data
                if len(body) > self._limits.body_bytes:
                    limit = self._limits.body_bytes
                    await self._send_answer(error_answer(413, f"this simulation takes bodies up to {limit} bytes"))
                    return None

    async def _next_event(self, timeout_s: float) -> object:
        with trio.fail_after(timeout_s):
            while True:
                event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return event
                self._http.receive_data(bytes(await self._stream.receive_some(_RECEIVE_BYTES)))

    async def _watch(self, client: Client) -> None:
        """Notice a client that leaves while its request is worked on; keep what it sends early."""
        try:
            self._early = bytes(await self._stream.receive_some(_RECEIVE_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._early = b""
        if not self._early:
            client.left = True
            client.on_left()

    # -- writing -------------------------------------------------------------------------------------------

    async def _respond(self, responder: Responder, body: bytes) -> None:
        answer = await responder.answer(body, self._client)
        if isinstance(answer, Answer):
            await self._send_answer(answer)
            return
        await self._send(_response(answer.status, answer.content_type, answer.content_length, {}))
        while (piece := await answer.next_piece()) is not None:
            await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def _send_answer(self, answer: Answer) -> None:
        length = None if answer.chunked else len(answer.body)
        head = _response(answer.status, answer.content_type, length, answer.headers)
        # The answer to HEAD tells the length of a body that does not come.
        body = b"" if self._method == "HEAD" else answer.body
        await self._send(head, h11.Data(data=body), h11.EndOfMessage())

    async def _send(self, *events: h11.Event) -> None:
        data = b"".join(self._http.send(event) or b"" for event in events)
        with trio.fail_after(self._limits.send_s):
            await self._stream.send_all(data)


def _response(status: int, content_type: str, length: int | None, headers: dict[str, str]) -> h11.Response:
    framing = ("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))
    told = [("Content-Type", content_type), *headers.items(), framing]
    return h11.Response(status_code=status, headers=told, reason=_REASONS[status].encode())


def reset(stream: trio.abc.Stream) -> None:
    """Make the stream's close a reset, where it is a TCP connection."""
    if isinstance(stream, trio.SocketStream):
        # SO_LINGER with a time of zero: close() sends RST and forgets what was not sent.
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
