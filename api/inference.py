"""`/v2/models/...` inference, passed through to Triton under a slot credit (A6).

A plain ASGI callable in front of the Quart application (D7): this is the hot path. Bodies pass unchanged, byte for
byte, in both directions; of the header fields only those named here do. Errors of the governor look like Triton's
own, `{"error": ...}`, with a `code` beside.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Final

import trio

from governor.errors import BackendTimeoutError, CreditWaitTimeoutError, GovernorError
from governor.identity import CallRequest, CallState
from governor.triton.outcomes import CallKind
from governor.triton.wire import WireRequest, model_path

from .departure import cancel_when_gone
from .errors import WrongMethodError, send_error
from .hardened import body_into_of, departure_of
from .v2.ahead import AheadBody, text_bytes
from .v2.bodies import SMALL_BYTES, BodyBudget, declared_bytes, read_body, read_large_body
from .v2.head import head_before_tensors, longest_wait_s, request_head
from .v2.models import find

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

    from governor.identity import Call, Head
    from governor.service import Governor
    from governor.triton.requestcheck import RequestHead
    from governor.triton.wire import Body
    from governor.turn import ServedModel

    T = TypeVar("T")

_TARGET = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/(infer|generate|generate_stream)")
ROUTES: Final = frozenset(
    ("POST", f"/v2/models/{{model}}{version}/{kind.value}")
    for version in ("", "/versions/{model_version}")
    for kind in CallKind
)
"""What this module answers in front of Quart, as the OpenAPI document has it."""
_TO_BACKEND: Final = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"content-encoding",
        b"content-type",
        b"endpoint-load-metrics-format",
        b"inference-header-content-length",
        b"traceparent",
        b"tracestate",
        b"x-request-id",
    }
)
_TO_CALLER: Final = frozenset(
    {
        "cache-control",
        "content-encoding",
        "content-length",
        "content-type",
        "endpoint-load-metrics",
        "inference-header-content-length",
    }
)
_DOUBTFUL: Final = frozenset({400, 404})
"""Triton's answers to what it finds wrong: the model may be another one than is known."""
WHOLE_BODY_BYTES: Final = 64 * 1024
"""An answer of at most this length is sent in one piece once it is complete; anything else as it arrives."""


class Inference:
    """ASGI middleware that answers `infer`, `generate` and `generate_stream` itself.

    Args:
        app: everything else.
        governor: whose models are called.
    """

    def __init__(self, app: ASGIFramework, governor: Governor) -> None:
        self._app = app
        self._governor = governor
        self._passed = {
            backend.name: _TO_BACKEND.union(name.encode() for name in backend.forward_headers)
            for backend in governor.config.backends
        }
        self._bodies = BodyBudget(governor.config.server.max_large_body_bytes)

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serves one ASGI scope."""
        match = _TARGET.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if match is None or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] != "POST":
            await send_error(send, WrongMethodError(scope["method"], ["POST"]))
            return
        size = declared_bytes(scope)
        if size is None or size > SMALL_BYTES:
            await self._serve_large(scope, match, size or 0, receive, send)
        else:
            await self._serve(scope, match, await read_body(receive), receive, send)

    async def _serve_large(
        self,
        scope: HTTPScope,
        match: re.Match[str],
        declared: int,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> None:
        limits = self._governor.config.limits
        give_up_at = trio.current_time() + limits.max_credit_wait_ms / 1000
        size = declared or limits.max_body_bytes
        try:
            reserved = await self._bodies.reserve(_fairness_key(scope), size, give_up_at=give_up_at)
        except GovernorError as error:
            await send_error(send, error)
            return
        try:
            if not await self._serve_ahead(scope, match, declared, send):
                body = await read_large_body(scope, receive, declared)
                if body is not None:
                    # A body of no declared length may be smaller than it had to be taken for.
                    reserved = self._bodies.shrink(reserved, len(body))
                await self._serve(scope, match, body, receive, send)
        finally:
            self._bodies.release(reserved)

    async def _serve_ahead(self, scope: HTTPScope, match: re.Match[str], declared: int, send: ASGISendCallable) -> bool:
        """Serves a request whose body can go straight through (ADR-0018); False if this one cannot."""
        read_into, when_gone = body_into_of(scope), departure_of(scope)
        size = text_bytes(scope["headers"], declared) if match[3] == CallKind.INFER.value else None
        served = self._governor.models.get(match[1])
        if read_into is None or when_gone is None or size is None or served is None:
            return False
        upload = served.identity.uploads.begin()
        if upload is None:
            return False
        with trio.CancelScope() as leaving:
            when_gone(leaving.cancel)
            call = None
            try:
                body = AheadBody(read_into, declared)
                key = _fairness_key(scope)
                text = await body.text(size)
                if text is not None:
                    served.identity.check_room(key)
                    head = head_before_tensors(self._version(match, served), text, declared)
                    wait_s = longest_wait_s(scope["headers"], head, self._governor.config.limits.max_credit_wait_ms)
                    await served.requests.check(head)
                    request = self._request(scope, served, head, b"")
                    await upload.send_head(request.wire, declared)
                    if await body.pass_to(upload):
                        call = served.identity.submit(request, key=key, upload=upload)
            except GovernorError as error:
                upload.over()  # the rest of the body may take its time
                if await body.drain():
                    await send_error(send, error)
            finally:
                if call is None:
                    upload.over()
            if call is not None:
                await self._relay(served, call, send, wait_s, call.submitted_at_s + wait_s)
        return True

    async def _serve(
        self,
        scope: HTTPScope,
        match: re.Match[str],
        body: Body | None,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> None:
        if body is None:
            return  # the client left before its end
        when_gone = departure_of(scope)
        if when_gone is not None:
            with trio.CancelScope() as leaving:
                when_gone(leaving.cancel)
                await self._answer(scope, match, body, send)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when_gone, receive, nursery.cancel_scope)
            await self._answer(scope, match, body, send)
            nursery.cancel_scope.cancel()

    async def _answer(self, scope: HTTPScope, match: re.Match[str], body: Body, send: ASGISendCallable) -> None:
        try:
            served = find(self._governor, match[1])
            key = _fairness_key(scope)
            served.identity.check_room(key)
            head = request_head(scope["headers"], CallKind(match[3]), self._version(match, served), body)
            wait_s = longest_wait_s(scope["headers"], head, self._governor.config.limits.max_credit_wait_ms)
            give_up_at = trio.current_time() + wait_s
            await served.requests.check(head)
            call = served.identity.submit(self._request(scope, served, head, body), key=key)
        except GovernorError as error:
            await send_error(send, error)
            return
        await self._relay(served, call, send, wait_s, give_up_at)

    @staticmethod
    async def _relay(served: ServedModel, call: Call, send: ASGISendCallable, wait_s: float, give_up_at: float) -> None:
        try:
            await _Relay(served, call, send, wait_s=wait_s, give_up_at=give_up_at).run()
        finally:
            call.abandon()

    @staticmethod
    def _version(match: re.Match[str], served: ServedModel) -> str | None:
        """The version that is asked for; None leaves it to Triton."""
        return match[2] or served.config.triton_version

    def _request(self, scope: HTTPScope, served: ServedModel, head: RequestHead, body: Body) -> CallRequest:
        config = served.config
        path = model_path(config.triton_model, head.version, head.kind.value)
        if scope["query_string"]:
            path += "?" + scope["query_string"].decode("latin-1")
        passed = self._passed[config.backend]
        headers = tuple(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"] if name in passed
        )
        return CallRequest(
            wire=WireRequest(method="POST", path=path, headers=headers, body=body),
            kind=head.kind,
            max_answer_bytes=self._governor.config.limits.max_answer_bytes,
            disconnect_on_abandon=config.on_abandon == "disconnect",
        )


class _Relay:
    """Hands one call's answer to its caller.

    Args:
        served: the model.
        call: the call.
        send: to the caller.
        wait_s: how long the call may wait for a credit in all, in seconds.
        give_up_at: when that is over.
    """

    def __init__(
        self, served: ServedModel, call: Call, send: ASGISendCallable, *, wait_s: float, give_up_at: float
    ) -> None:
        self._wait_ms = math.ceil(wait_s * 1000)
        self._give_up_at = give_up_at
        self._served = served
        self._model = served.config.name
        self._timeout_ms = served.config.timeout_ms
        self._call = call
        self._send = send
        self._deadline = math.inf
        self._sent: Head | None = None

    async def run(self) -> None:
        """Waits for a credit, then for the answer, and sends it or what went wrong."""
        try:
            await self._get_credit()
            if self._timeout_ms is not None:
                self._deadline = trio.current_time() + self._timeout_ms / 1000
            await self._pass_on(await self._in_time(self._call.head))
        except GovernorError as error:
            await self._fail(error)

    async def _get_credit(self) -> None:
        if self._call.state is CallState.STARTED:
            return  # the rule where there is no overload: not worth a timer
        with trio.move_on_at(self._give_up_at):
            await self._served.identity.uploads.stand_by(self._call)
            await self._call.started()
        if self._call.state is CallState.WAITING:
            raise CreditWaitTimeoutError(self._model, self._wait_ms)

    async def _in_time(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Bounds what the backend may take; the time in which a slow caller takes the answer is not counted."""
        if self._timeout_ms is None:
            return await wait()
        with trio.move_on_at(self._deadline):
            return await wait()
        raise BackendTimeoutError(self._model, self._timeout_ms)

    async def _pass_on(self, head: Head) -> None:
        if head.status in _DOUBTFUL:
            self._served.requests.doubt()
        length = _field(head, "content-length")
        if length is not None and int(length) <= WHOLE_BODY_BYTES:
            body = await self._in_time(self._call.body)
            await self._send_head(head)
            await self._send_body(body, more=False)
            return
        await self._send_head(head)
        if _is_event_stream(head):
            await self._send_body(b"", more=True)  # the caller sees that its stream is open, however late a first event
        while (chunk := await self._in_time(self._call.next_chunk)) is not None:
            await self._send_body(chunk, more=True)
        await self._send_body(b"", more=False)

    async def _send_head(self, head: Head) -> None:
        headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in head.headers
            if name.lower() in _TO_CALLER
        ]
        self._sent = head
        await self._send({"type": "http.response.start", "status": head.status, "headers": headers})

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _fail(self, error: GovernorError) -> None:
        if self._sent is None:
            await send_error(self._send, error)
        elif _is_event_stream(self._sent):
            # Triton reports an error in mid-stream as a last event. The line breaks end an event cut in two.
            frame = f"\n\ndata: {json.dumps(error.body())}\n\n".encode()
            await self._send_body(frame, more=False)
        # Else the answer stays without its end: the server closes the connection, and the caller sees the cut.


def _fairness_key(scope: HTTPScope) -> str:
    """Callers of one address share one turn in the queue for credits; each session has its own (A6).

    There is one API token for all, so it tells no callers apart, and what nobody checks would let a caller be many.
    """
    client = scope["client"]
    return f"address {client[0] if client is not None else 'unknown'}"


def _field(head: Head, name: str) -> str | None:
    return next((value for key, value in head.headers if key.lower() == name), None)


def _is_event_stream(head: Head) -> bool:
    return (_field(head, "content-type") or "").startswith("text/event-stream")
