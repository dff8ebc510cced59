"""HTTP/1.1 and nothing else: hypercorn's protocol and its running of the application, mended."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

import h11
import trio
from hypercorn.events import Closed, RawData
from hypercorn.protocol.events import Body, Request, Response
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.task_group import TaskGroup

from .limits import ClientGoneError
from .refusals import BAD_TARGET, HEAD_TOO_LARGE, HTTP_ONE_ONLY, NO_CONNECT, NO_WEBSOCKET, note_refusal, refusal_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.config import Config
    from hypercorn.protocol.events import Event as StreamEvent
    from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, H11SendableEvent, Scope

    from .refusals import Refusal


class Inbox:
    """Fault: a stock disconnect queues behind unread body messages, so an application not reading never finishes.

    Its last `send` waits for room in the queue that only itself could empty. Here the disconnect needs no room.
    """

    def __init__(self, messages_max: int) -> None:
        self._send, self._receive = trio.open_memory_channel["ASGIReceiveEvent"](messages_max)

    async def put(self, message: ASGIReceiveEvent) -> None:
        """Queues a body message, waiting for room, or closes the queue with the disconnect, waiting for nothing."""
        if message["type"] == "http.disconnect":
            self._send.close()
            return
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._send.send(message)

    async def receive(self) -> ASGIReceiveEvent:
        """The application's `receive`: what was put, then disconnects without end."""
        try:
            return await self._receive.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            # An application that ignores disconnects must not starve the rest.
            await trio.lowlevel.checkpoint()
            return {"type": "http.disconnect"}


class RequestTasks(TaskGroup):
    """Runs the application with an `Inbox`; whatever it raises is logged and ends its request only."""

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Starts `app` for one request; returns where the request's messages are to be put."""
        inbox = Inbox(config.max_app_queue_size)

        async def run() -> None:
            try:
                await app(scope, inbox.receive, send, trio.to_thread.run_sync, trio.from_thread.run)
            except* ClientGoneError:
                pass  # its own send told it so
            except* Exception:  # noqa: BLE001  # one request's fault must end no other
                await config.log.exception("Error in ASGI Framework")
            await send(None)

        self.spawn(run)
        return inbox.put


class FlushingStream(HTTPStream):
    """Keeps one habit working under `OneWrite`: an empty first body message sends the head of a stream."""

    async def app_send(self, message: ASGISendEvent | None) -> None:
        """The application's `send`; None says that it ended."""
        await super().app_send(message)
        if message is None or message["type"] != "http.response.body":
            return
        if message.get("more_body", False) and not message.get("body", b""):
            await self.send(Body(stream_id=self.stream_id, data=b""))


class HttpOneOnly(H11Protocol):
    """Fault: stock connections switch to HTTP/2 and websockets unasked, and die of many inputs there.

    No configuration turns that off. An `Upgrade: h2c` is ignored, everything else that is not HTTP/1.x is refused.
    """

    method = b""

    async def refuse(self, refusal: Refusal) -> None:
        """Answers with `refusal` if no answer has begun, and ends the connection."""
        our_state = self.connection.our_state
        if our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            note_refusal(refusal)
            headers = list(chain(refusal.headers(), self.config.response_headers("h11")))
            await self._send_h11_event(h11.Response(status_code=refusal.status, headers=headers))
            if our_state is h11.IDLE or self.method != b"HEAD":
                await self._send_h11_event(h11.Data(data=refusal.body()))
            await self._send_h11_event(h11.EndOfMessage())
        await self.send(Closed())

    def refusal(self, request: h11.Request) -> Refusal | None:
        """Why this request is not for the application; None when it is."""
        if request.http_version not in {b"1.0", b"1.1"}:
            return HTTP_ONE_ONLY
        if request.method == b"CONNECT":
            return NO_CONNECT
        for name, value in request.headers:
            if name == b"upgrade" and b"websocket" in value.lower():
                return NO_WEBSOCKET
        return None

    @staticmethod
    def path_of(request: h11.Request) -> bytes | None:
        """Path and query of the target: origin form, absolute form, `OPTIONS *` (RFC 9112 3.2); None for others."""
        target = request.target
        if target.startswith(b"/") or (target == b"*" and request.method == b"OPTIONS"):
            return target
        scheme, separator, rest = target.partition(b"://")
        if not separator or scheme.lower() not in {b"http", b"https"}:
            return None
        slash, query = rest.find(b"/"), rest.find(b"?")
        if slash >= 0 and not 0 <= query < slash:
            return rest[slash:]
        return b"/" + (rest[query:] if query >= 0 else b"")

    async def _check_protocol(self, event: h11.Request) -> None:
        """The stock method switches the protocol here."""

    async def _send_error_response(self, status_code: int) -> None:
        await self.refuse(refusal_for(status_code))

    async def _create_stream(self, request: h11.Request) -> None:
        self.method = request.method
        path = self.path_of(request)
        refusal = self.refusal(request)
        if refusal is not None or path is None:
            await self.refuse(refusal or BAD_TARGET)
            return
        self.stream = FlushingStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        raw = self.config.h11_pass_raw_headers
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=request.headers.raw_items() if raw else list(request.headers),
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii").upper(),
                raw_path=path,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
        await self.context.mark_request()


class BoundedHead(HttpOneOnly):
    """Fault: the stock limit of a head (16 KiB) misses what comes at once: 64 KiB pass."""

    def refusal(self, request: h11.Request) -> Refusal | None:
        """431 for a head over `h11_max_incomplete_size` bytes."""
        size = len(request.method) + len(request.target)
        size += sum(len(name) + len(value) + 4 for name, value in request.headers)
        return HEAD_TOO_LARGE if size > self.config.h11_max_incomplete_size else super().refusal(request)


class AnnouncedClose(BoundedHead):
    """Fault: an answer given during a shutdown does not say that the connection ends with it."""

    async def stream_send(self, event: StreamEvent) -> None:
        """Takes what the application's stream sends."""
        if isinstance(event, Response) and event.status_code >= 200 and self.context.terminated.is_set():
            headers = [*event.headers, (b"connection", b"close")]
            event = Response(stream_id=event.stream_id, headers=headers, status_code=event.status_code)
        await super().stream_send(event)


class OneWrite(AnnouncedClose):
    """Fault: a stock head and its body are two writes and two packets. Here the head waits for the first of a body."""

    head = b""

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        try:
            data = self.connection.send(event) or b""
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return
        if isinstance(event, h11.Response):
            self.head = data
            return
        data, self.head = self.head + data, b""
        if data:
            await self.send(RawData(data=data))
