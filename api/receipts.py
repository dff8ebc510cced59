"""Waits until a client has read an answer (S7).

A 202 and the events of its prompt come on two connections, and a client may look at them in either order. The
TypeScript client of qwen serve forgets a terminal event that it sees before the 202, and then waits for it until its
stream ends. So a turn may start only when its 202 was read. HTTP has no receipt for an answer, but this comes close:
the answer says `Connection: close`, and a client that has read it to its end closes its side of the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

if TYPE_CHECKING:
    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveCallable,
        ASGIReceiveEvent,
        ASGISendCallable,
        ASGISendEvent,
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

    def __init__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        self._scope = cast("dict[str, object]", scope)
        self._receive = receive
        self._send = send
        self._waiting = False
        self._left = trio.Event()
        self._complete = trio.Event()

    async def receive(self) -> ASGIReceiveEvent:
        """The application's `receive`. Once the answer is out, the client's leaving is its receipt.

        It is passed on after the end of the answer: frameworks cancel a request whose client has left.
        """
        message = await self._receive()
        if message["type"] == "http.disconnect" and self._waiting:
            self._left.set()
            await self._complete.wait()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """The application's `send`."""
        timeout_s = self._scope.get(_KEY)
        if not isinstance(timeout_s, float):
            await self._send(message)
        elif message["type"] == "http.response.start":
            await self._send({**message, "headers": [*message["headers"], (b"connection", b"close")]})
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self._waiting = True
            await self._send({"type": "http.response.body", "body": message.get("body", b""), "more_body": True})
            with trio.move_on_after(timeout_s):
                await self._left.wait()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            self._complete.set()
        else:
            await self._send(message)
