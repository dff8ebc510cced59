"""`POST /session/{session_id}/prompt`: a prompt is accepted and answered 202; its outcome comes as events.

A plain ASGI callable in front of the Quart application, as `api.inference` is, because it is the hot route of sessions
(ADR-0017). It is like any other route to a client: who may ask, how often, with what body, and how a refusal looks is
decided by the same functions that the Quart routes call.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from governor.errors import GovernorError

from .body import object_of
from .callers import known_caller
from .departure import cancel_when_gone
from .errors import WrongMethodError, send_error, send_json
from .guard import after_response, if_lost
from .hardened import departure_of
from .receipts import ask_for_receipt
from .v2.bodies import read_body
from .wire import decode_prompt

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

    from governor.errors import JsonValue

    from .context import GovernorApp

# Further slashes in front count for nothing, as in the Quart routes.
_TARGET = re.compile(r"/+session/([^/]+)/prompt")
RULE: Final = "/session/<session_id>/prompt"
"""The path as Quart's routes would name it."""
ROUTES: Final = frozenset({("POST", "/session/{session_id}/prompt")})
"""What this module answers in front of Quart, as the OpenAPI document has it."""
_METHODS: Final = ["OPTIONS", "POST"]


class PromptRoute:
    """ASGI middleware that answers its one route itself.

    Args:
        app: everything else.
        service: whose sessions are prompted, and who counts requests.
    """

    def __init__(self, app: ASGIFramework, service: GovernorApp) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serves one ASGI scope."""
        match = _TARGET.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if match is None or scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await _send_methods(send)
        else:
            await self._serve(scope, match[1], receive, send)

    async def _serve(
        self, scope: HTTPScope, session_id: str, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        try:
            self._service.count_request(scope)
            if scope["method"] != "POST":
                raise WrongMethodError("This method", _METHODS)
        except GovernorError as error:
            await send_error(send, error)
            return
        body = await read_body(receive)
        if body is None:
            return  # the client left before its end
        when_gone = departure_of(scope)
        if when_gone is None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_when_gone, receive, nursery.cancel_scope)
                await self._answer(scope, session_id, body, send)
                nursery.cancel_scope.cancel()
            return
        left = trio.Event()
        when_gone(left.set)
        # Whoever has closed right behind the request wants no answer; what the kernel knows of it is told meanwhile.
        await trio.lowlevel.checkpoint()
        if not left.is_set():
            await self._answer(scope, session_id, body, send)

    async def _answer(self, scope: HTTPScope, session_id: str, body: bytes, send: ASGISendCallable) -> None:
        # From the admission to the first send there is no checkpoint: what is admitted gets its 202 (S2).
        try:
            told = self._admit(scope, session_id, body)
        except GovernorError as error:
            await send_error(send, error)
            return
        await send_json(send, told, 202)

    def _admit(self, scope: HTTPScope, session_id: str, body: bytes) -> dict[str, JsonValue]:
        """Accepts the prompt of a request; its turn starts once the 202 is out (S7). Returns what the 202 says.

        Raises:
            GovernorError: it is not accepted, and why.
        """
        governor = self._service.governor
        limits = governor.config.limits
        fields = object_of(scope, body)
        session = governor.session(session_id)
        wanted = decode_prompt(fields, max_prompt_bytes=limits.max_prompt_bytes)
        client_id = known_caller(session, scope)
        admission = session.admit(wanted.text, deadline_ms=wanted.deadline_ms, originator=client_id, retry=wanted.retry)
        if session.log.subscriber_count:
            ask_for_receipt(scope, limits.read_receipt_timeout_ms / 1000)
        # Of a 202 that nobody gets, nobody knows the prompt; it ends before it has begun.
        if_lost(scope, partial(session.withdraw, admission.prompt_id))
        after_response(scope, partial(session.let_start, admission.prompt_id))
        return {
            "promptId": admission.prompt_id,
            "lastEventId": admission.last_event_id,
            "eventEpoch": admission.event_epoch,
        }


def rule_of(scope: HTTPScope) -> str | None:
    """The name of the route that a request goes to, if it is the one of this module; None if it is another's."""
    return RULE if scope["method"] == "POST" and _TARGET.fullmatch(scope["path"]) else None


async def _send_methods(send: ASGISendCallable) -> None:
    """What Quart answers by itself to `OPTIONS`."""
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"allow", ", ".join(_METHODS).encode()),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
