"""The outermost ASGI layer: bounds what a request may use, and tells the application when its answer is out.

    app.asgi_app = Guard(app.asgi_app, max_body_bytes=..., max_in_flight=...)

It needs nothing of the server below it and bounds the same under any; `api.hardened` bounds the connections.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

import structlog
import trio
from quart.wrappers import base as quart_base

from api.hardened import ClientGoneError, departure_of
from governor.errors import BodyTooLargeError, GovernorError, InvalidRequestError, RefusedError

from .errors import ERROR_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveCallable,
        ASGIReceiveEvent,
        ASGISendCallable,
        ASGISendEvent,
        HTTPResponseStartEvent,
        HTTPScope,
        Scope,
    )

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

HEALTH_PATHS: Final = frozenset({"/health", "/healthz", "/readyz", "/metrics"})
OPERATORS_BELOW: Final = ("/admin/", "/ui")
"""Who has to find out why everything is full must not be refused because it is."""
FINAL_BODY_BYTES: Final = 2**16
"""The largest last body message that is sent as a whole under the shield; of a larger one only the end is."""

_KEY: Final = "governor.after_response"
# Quart 0.23 has this error for a client that left, Quart 0.22 does without.
_CLIENT_GONE: Final[tuple[type[Exception], ...]] = (
    ClientGoneError,
    *(kind for name, kind in vars(quart_base).items() if name == "ClientDisconnectedError"),
)


class TooManyRequestsInFlightError(RefusedError):
    """The configured number of requests is being served already; this one was not begun."""

    code = "too_many_requests_in_flight"
    retry_after_s = 1

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} requests are in flight, which is the limit; retry later", limit=limit)


class Guard:
    """ASGI middleware that answers for the application where the application must not be asked, or failed.

    - A body over `max_body_bytes` gets 413: at once when its length is declared, else as soon as it is exceeded; the
      application is cancelled then.
    - With `max_in_flight` requests running, a further one gets 503. Requests to `never_refused` paths and of operators
      are neither counted nor refused; what bounds those is the number of connections.
    - An exception that the application lets out before its response began becomes a 500, and is logged once with its
      traceback. A client that left is no error.
    - The last message of a response is sent under a shield of at most `final_send_timeout_s`: frameworks cancel the
      request as soon as they see its end, and the server must finish its bookkeeping of the connection first. (Not
      under `api.hardened`, whose sends need none.)
    - What was registered by `after_response` runs.
    - `on_error` is told of each error that is the answer to a request.

    Attributes:
        in_flight: requests being served now, those that are never refused not counted.
    """

    def __init__(
        self,
        app: ASGIFramework,
        *,
        max_body_bytes: int,
        max_in_flight: int,
        never_refused: Collection[str] = HEALTH_PATHS,
        final_send_timeout_s: float = 15.0,
        on_error: Callable[[GovernorError, HTTPScope], None] = lambda _error, _scope: None,
    ) -> None:
        if max_body_bytes < 0 or max_in_flight < 1 or final_send_timeout_s <= 0:
            raise ValueError("the guard's limits must be positive")
        self.app = app
        self.max_body_bytes = max_body_bytes
        self.max_in_flight = max_in_flight
        self.never_refused = frozenset(never_refused)
        self.final_send_timeout_s = final_send_timeout_s
        self.on_error = on_error
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serves one ASGI scope; anything but HTTP passes through untouched."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["path"] in self.never_refused or scope["path"].startswith(OPERATORS_BELOW):
            await _GuardedRequest(self, scope, receive, send).run()
        elif self.in_flight >= self.max_in_flight:
            await _GuardedRequest(self, scope, receive, send).answer(TooManyRequestsInFlightError(self.max_in_flight))
        else:
            self.in_flight += 1
            try:
                await _GuardedRequest(self, scope, receive, send).run()
            finally:
                self.in_flight -= 1


def after_response(scope: Scope, callback: Callable[[], None]) -> None:
    """Has `callback` run exactly once when the response is out or the request ended in any other way.

    It runs as soon as the last message of the response was handed to the operating system; else (the client left, the
    request was cancelled, the application failed) when the application has ended. The callbacks of one request run in
    the order of their registration, synchronously: nothing else of the service runs in between. One that raises is
    logged and keeps no other from running. Registered after the end, it runs at once.

    Args:
        scope: the request's ASGI scope, in Quart `request.scope`.
        callback: what to run; it must not block.

    Raises:
        LookupError: the application does not run under a `Guard`.
    """
    _after(scope).add(callback)


def if_lost(scope: Scope, undo: Callable[[], None]) -> None:
    """Has `undo` run, as `after_response` does, but only if the client cannot have got the response.

    Args:
        scope: the request's ASGI scope.
        undo: takes back what the client does not know of; it must not block.

    Raises:
        LookupError: the application does not run under a `Guard`.
    """
    after = _after(scope)
    after.add(lambda: None if after.sent else undo())


def _after(scope: Scope) -> _AfterResponse:
    after = cast("dict[str, object]", scope).get(_KEY)
    if not isinstance(after, _AfterResponse):
        reason = "what is to run after a response needs the application to be wrapped in a Guard"
        raise LookupError(reason)  # noqa: TRY004  # no argument has a wrong type
    return after


class _AfterResponse:
    """The callbacks of one request.

    Attributes:
        sent: the application's response was handed to the operating system as a whole.
    """

    def __init__(self) -> None:
        self.sent = False
        self._callbacks: list[Callable[[], None]] | None = []

    def add(self, callback: Callable[[], None]) -> None:
        if self._callbacks is None:
            self._run(callback)
        else:
            self._callbacks.append(callback)

    def finish(self, *, sent: bool) -> None:
        callbacks, self._callbacks = self._callbacks or [], None
        self.sent = self.sent or sent
        for callback in callbacks:
            self._run(callback)

    @staticmethod
    def _run(callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # noqa: BLE001  # a callback is foreign code and must not hurt its neighbours
            _log.exception("after_response_callback_failed", callback=repr(callback))


class _GuardedRequest:
    """One request on its way through the guard."""

    def __init__(self, guard: Guard, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        self._guard = guard
        self._scope = scope
        self._receive = receive
        self._send = send
        self._started = False
        self._answered_here = False
        self._body_bytes = 0
        self._too_large = trio.CancelScope()
        self._after = _AfterResponse()
        cast("dict[str, object]", scope)[_KEY] = self._after

    async def run(self) -> None:
        """Runs the application, unless the declared length of the body already forbids it."""
        refusal = self._declared_length_error()
        if refusal is not None:
            await self.answer(refusal)
            return
        try:
            if self._is_held_to_its_length():
                await self._guard.app(self._scope, self._receive, self.send)
                return
            with self._too_large:
                await self._guard.app(self._scope, self.receive, self.send)
            if self._too_large.cancelled_caught and not self._started:
                await self.answer(self._too_large_error())
        except* _CLIENT_GONE:
            pass
        except* Exception:  # noqa: BLE001  # the last stop before the server
            _log.exception("request_failed", method=self._scope["method"], path=self._scope["path"])
            if not self._started:
                await self.answer(GovernorError("Internal server error"))
        finally:
            self._after.finish(sent=False)

    async def receive(self) -> ASGIReceiveEvent:
        """The `receive` of a body of no declared length; counts its bytes as they come."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._body_bytes += len(message.get("body", b""))
            if self._body_bytes > self._guard.max_body_bytes:
                self._too_large.cancel()
                await trio.sleep_forever()  # ends with the cancellation: the application never sees the excess
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """The application's `send`."""
        if message["type"] == "http.response.start":
            self._note_error(message)
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await self._send(message)
            self._started = self._started or message["type"] == "http.response.start"
            return
        if departure_of(self._scope) is not None:
            # This server tells nobody of a departure while it sends: no framework cancels the request meanwhile.
            await self._send(message)
            self._after.finish(sent=not self._answered_here)
            return
        body = message.get("body", b"")
        if len(body) > FINAL_BODY_BYTES:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            body = b""
        # Shielded so that the server's bookkeeping is not cut short by a framework that is done; bounded.
        with trio.move_on_after(self._guard.final_send_timeout_s, shield=True):
            await self._send({"type": "http.response.body", "body": body, "more_body": False})
            self._after.finish(sent=not self._answered_here)

    def _note_error(self, message: HTTPResponseStartEvent) -> None:
        error = cast("dict[str, object]", message).pop(ERROR_KEY, None)
        if error is None:
            error = cast("dict[str, object]", self._scope).get(ERROR_KEY)
        if isinstance(error, GovernorError):
            self._guard.on_error(error, self._scope)

    async def answer(self, error: GovernorError) -> None:
        """Answers with `error`; closes the connection where a body may still be on its way."""
        self._answered_here = True
        self._guard.on_error(error, self._scope)
        headers = [(b"content-type", b"application/json")]
        body = json.dumps(error.body()).encode()
        headers.append((b"content-length", str(len(body)).encode()))
        if error.retry_after_s is not None:
            headers.append((b"retry-after", str(error.retry_after_s).encode()))
        if self._has_body():
            headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    def _has_body(self) -> bool:
        return any(name in {b"content-length", b"transfer-encoding"} for name, _ in self._scope["headers"])

    def _is_held_to_its_length(self) -> bool:
        """The body is no longer than it declares, which every server sees to, and that was looked at already.

        Beside chunks a length says nothing; there are servers that let it pass.
        """
        names = {name for name, _ in self._scope["headers"]}
        return b"content-length" in names and b"transfer-encoding" not in names

    def _declared_length_error(self) -> GovernorError | None:
        for name, value in self._scope["headers"]:
            if name == b"content-length":
                if not value.isdigit():
                    return InvalidRequestError("Content-Length must be a number", code="invalid_content_length")
                if len(value) > 18 or int(value) > self._guard.max_body_bytes:
                    return self._too_large_error()
        return None

    def _too_large_error(self) -> GovernorError:
        limit = self._guard.max_body_bytes
        return BodyTooLargeError(f"The request body exceeds {limit} bytes; send a smaller one", limit=limit)
