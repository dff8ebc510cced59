"""What goes wrong at the HTTP surface, and how every error looks to a client (A9).

An error body is JSON with a string `error` and a stable `code`, whoever answers: a route, the gate in front of the
routes, or the pass-through beside them. Nothing of an unexpected exception is shown to a client.
"""

from __future__ import annotations

import json
from math import ceil
from time import time
from typing import TYPE_CHECKING, Final, cast

from quart import Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from governor.errors import BodyTooLargeError, CallerError, GovernorError, RefusedError

from .rate import RateLimitError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hypercorn.typing import ASGISendCallable, HTTPResponseStartEvent
    from quart import Quart

    from governor.errors import JsonValue

JSON: Final = "application/json"
ERROR_KEY: Final = "governor.error"
"""Where the guard, the outermost layer, finds the error that an answer tells: in the start message or in the scope."""


class UnauthorizedError(CallerError):
    """The bearer token is missing, malformed or wrong; which of the three is not said."""

    code = "unauthorized"
    status = 401

    def __init__(self) -> None:
        super().__init__("Unauthorized")


class InvalidHostError(CallerError):
    """The `Host` is none under which a loopback bind is reached: a web page may have rebound a name to it."""

    code = "invalid_host"
    status = 403

    def __init__(self, received: Iterable[JsonValue], expected: Iterable[str]) -> None:
        # The sentence is the protocol's; what a proxy has to send is beside it.
        names: list[JsonValue] = [*sorted(expected)]
        super().__init__("Invalid Host header", received=[*received], expected=names)


class ForeignOriginError(CallerError):
    """A web page of another origin sent the request."""

    code = "origin_not_allowed"
    status = 403

    def __init__(self) -> None:
        super().__init__("Request denied by CORS policy")


class RouteNotFoundError(CallerError):
    """No route has this path."""

    code = "not_found"
    status = 404

    def __init__(self) -> None:
        super().__init__("There is no such route; docs/http-api.md lists them")


class WrongMethodError(CallerError):
    """The path exists, but not with this method.

    Attributes:
        allowed: the methods it exists with.
    """

    code = "method_not_allowed"
    status = 405

    def __init__(self, method: str, allowed: list[str]) -> None:
        super().__init__(f"{method} is not possible here; use {' or '.join(allowed) or 'another method'}")
        self.allowed = allowed


class UnsupportedEncodingError(CallerError):
    """The body of a JSON route is compressed."""

    code = "unsupported_content_encoding"
    status = 415

    def __init__(self) -> None:
        super().__init__("This route takes no compressed body; send it without Content-Encoding")


class PromptTooLargeError(BodyTooLargeError):
    """The text of a prompt is larger than `limits.max_prompt_bytes`."""

    code = "prompt_too_large"

    def __init__(self, limit: int, size: int) -> None:
        super().__init__(f"The prompt's text has {size} bytes; at most {limit} are allowed", limit=limit, size=size)


class SessionIdConflictError(CallerError):
    """A caller asked for a session id that a live session has already."""

    code = "session_id_conflict"
    status = 409

    def __init__(self, session_id: str, workspace_cwd: str) -> None:
        super().__init__(
            f'A live session has the id "{session_id}"; choose another one, or leave it out',
            sessionId=session_id,
            conflict="live",
            liveWorkspaceCwd=workspace_cwd,
        )


class PromptNotFoundError(CallerError):
    """The session knows no prompt of this id, or no longer."""

    code = "prompt_not_found"
    status = 404

    def __init__(self, session_id: str, prompt_id: str) -> None:
        super().__init__(
            f'Prompt "{prompt_id}" not found in session "{session_id}"; of the settled ones the last 64 are known',
            sessionId=session_id,
            promptId=prompt_id,
        )


class SubscriberLimitError(RefusedError):
    """The session has as many open event streams as it may have."""

    code = "subscriber_limit_exceeded"
    status = 429

    def __init__(self, limit: int) -> None:
        super().__init__(f"EventBus subscriber limit reached ({limit})", limit=limit)


def header_fields(error: GovernorError) -> list[tuple[str, str]]:
    """The header fields that belong to an error's answer."""
    fields = [("Content-Type", JSON)]
    if error.retry_after_s is not None:
        fields.append(("Retry-After", str(error.retry_after_s)))
    if isinstance(error, UnauthorizedError):
        fields.append(("WWW-Authenticate", "Bearer"))
    if isinstance(error, ForeignOriginError):
        fields.append(("Vary", "Origin"))
    if isinstance(error, RateLimitError):
        fields += [
            ("X-RateLimit-Limit", str(error.limit)),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", str(ceil(time() + error.wait_s))),
        ]
    if isinstance(error, WrongMethodError):
        fields.append(("Allow", ", ".join(error.allowed)))
    return fields


def json_response(body: dict[str, JsonValue], status: int = 200) -> Response:
    """A JSON answer, its keys in the order given."""
    return Response(json.dumps(body), status=status, content_type=JSON)


def empty_response(status: int) -> Response:
    """An answer without a body, and so without a type of one; a 204 must not even have a length."""
    response = Response(b"", status=status)
    del response.headers["Content-Type"]
    if status == 204:
        del response.headers["Content-Length"]
    return response


def error_response(error: GovernorError) -> Response:
    """The answer of a Quart route to an error."""
    response = json_response(error.body(), error.status)
    for name, value in header_fields(error):
        response.headers[name] = value
    return response


async def send_json(send: ASGISendCallable, body: dict[str, JsonValue], status: int = 200) -> None:
    """The JSON answer of an ASGI callable, as `json_response` is a Quart route's."""
    data = json.dumps(body).encode()
    headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data, "more_body": False})


async def send_error(send: ASGISendCallable, error: GovernorError) -> None:
    """The answer of an ASGI callable to an error; nothing may have been sent yet."""
    body = json.dumps(error.body()).encode()
    headers = [(name.lower().encode(), value.encode()) for name, value in header_fields(error)]
    headers.append((b"content-length", str(len(body)).encode()))
    start: HTTPResponseStartEvent = {"type": "http.response.start", "status": error.status, "headers": headers}
    cast("dict[str, object]", start)[ERROR_KEY] = error  # the guard takes it out again
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": False})


def note_error(error: GovernorError) -> None:
    """The answer of the current request, whatever it looks like, tells this error: the guard is to know of it."""
    cast("dict[str, object]", request.scope)[ERROR_KEY] = error


def install_error_handlers(app: Quart) -> None:
    """Makes every error of a route a JSON answer; what nobody expected comes as Quart's 500, logged by Quart."""

    async def governor_error(error: GovernorError) -> Response:
        note_error(error)
        return error_response(error)

    async def http_error(error: HTTPException) -> Response:
        return error_response(_from_http_exception(error))

    app.register_error_handler(GovernorError, governor_error)
    app.register_error_handler(HTTPException, http_error)


def _from_http_exception(error: HTTPException) -> GovernorError:
    if isinstance(error, NotFound):
        return RouteNotFoundError()
    if isinstance(error, MethodNotAllowed):
        return WrongMethodError("This method", sorted(error.valid_methods or ()))
    status = error.code if error.code is not None else 500
    if status >= 500:
        return GovernorError("Internal server error")
    refused = CallerError(error.description or error.name)
    refused.status = status  # type: ignore[misc]  # what the framework refuses by itself keeps its status
    return refused
