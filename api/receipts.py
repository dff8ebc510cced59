"""Waits until a client has read an answer (S7).

A 202 and the events of its prompt come on two connections, and a client may look at them in either order. The
TypeScript client of qwen serve forgets a terminal event that it sees before the 202, and then waits for it until its
stream ends. So a turn may start only when its 202 was read. HTTP has no receipt for an answer, but this comes close:
the answer says `Connection: close`, and a client that has read it to its end closes its side of the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from .hardened import departure_of

if TYPE_CHECKING:
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

_KEY: Final = "governor.receipt_timeout_s"


def ask_for_receipt(scope: Scope, timeout_s: float) -> None:
    """Has the answer of this request end only when the client has read it, or `timeout_s` after it was sent.

    What `after_response` was told to do is done then. The client has its whole answer at once all the same.
    """
    cast("dict[str, object]", scope)[_KEY] = timeout_s


class Receipts:
    """ASGI middleware, inside the guard, that does what `ask_for_receipt` asks for.

    Args:
        app: the application whose routes ask.
    """

    def __init__(self, app: ASGIFramework) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serves one ASGI scope; anything but HTTP passes."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope, receive, send)
        await self._app(scope, answer.receive, answer.send)


class _Answer:
    """One answer on its way."""

    def __init__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._over = False
        self._left_bytes: int | None = None
        self._receipt: trio.Event | None = None
        self._complete = trio.Event()

    async def receive(self) -> ASGIReceiveEvent:
        """The application's `receive`. Once the answer is out, the client's leaving is its receipt.

        It is passed on after the end of the answer: frameworks cancel a request whose client has left.
        """
        message = await self._receive()
        if message["type"] == "http.disconnect" and self._receipt is not None:
            self._receipt.set()
            await self._complete.wait()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """The application's `send`."""
        if message["type"] == "http.response.start":
            await self._send_head(message)
        elif message["type"] == "http.response.body" and not self._over:
            await self._send_body(message.get("body", b""), more=message.get("more_body", False))
        elif message["type"] != "http.response.body":
            await self._send(message)

    async def _send_head(self, message: HTTPResponseStartEvent) -> None:
        headers = [*message["headers"]]
        self._left_bytes = next((int(value) for name, value in headers if name.lower() == b"content-length"), None)
        if self._timeout_s is not None:
            headers.append((b"connection", b"close"))
        await self._send({**message, "headers": headers})

    async def _send_body(self, data: bytes, *, more: bool) -> None:
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
            # Quart sends the end of a body by itself. A client that has all the bytes need not wait for it: it may
            # leave at once, and must not be taken for one that left before it had its answer.
            more = more and self._left_bytes > 0
        if more:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            return
        self._over = True
        if self._timeout_s is not None:
            # From here on the client's leaving is its receipt; if it came too early, the sending says so.
            receipt = self._receipt = trio.Event()
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            when_gone = departure_of(self._scope)
            if when_gone is not None:
                when_gone(receipt.set)
            with trio.move_on_after(self._timeout_s):
                await receipt.wait()
            data = b""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})
        self._complete.set()

    @property
    def _timeout_s(self) -> float | None:
        timeout_s = cast("dict[str, object]", self._scope).get(_KEY)
        return timeout_s if isinstance(timeout_s, float) else None
