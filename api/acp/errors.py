"""What goes wrong with a message, and how every error of the governor looks in JSON-RPC (A4). Pure.

`data.errorKind` is the stable code of the error, the same as `code` in a REST answer; its details follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from governor.errors import CallerError, DrainingError, PromptQueueFullError, RefusedError

if TYPE_CHECKING:
    from governor.errors import GovernorError, JsonValue

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603


class InvalidMessageError(CallerError):
    """The body is JSON, but no message of JSON-RPC 2.0."""

    code = "invalid_message"


class BatchError(CallerError):
    """The body holds several messages at once."""

    code = "batch_not_supported"
    status = 501

    def __init__(self) -> None:
        super().__init__("Batch JSON-RPC requests are not supported; send one message per POST")


class WrongMediaTypeError(CallerError):
    """The body is not sent as JSON."""

    code = "unsupported_media_type"
    status = 415

    def __init__(self) -> None:
        super().__init__("Content-Type must be application/json")


class NotAcceptableError(CallerError):
    """A stream was asked for by a client that takes none."""

    code = "not_acceptable"
    status = 406

    def __init__(self) -> None:
        super().__init__("Accept header must include text/event-stream")


class NoConnectionIdError(CallerError):
    """The request names no connection."""

    code = "missing_connection_id"

    def __init__(self) -> None:
        super().__init__("Missing Acp-Connection-Id; `initialize` answers with one")


class UnknownConnectionError(CallerError):
    """There is no such connection, or no longer."""

    code = "connection_not_found"
    status = 404

    def __init__(self) -> None:
        super().__init__("Unknown Acp-Connection-Id; the connection has ended, open another one by `initialize`")


class ConnectionLimitError(RefusedError):
    """As many connections are open as may be."""

    code = "connection_limit_exceeded"

    def __init__(self, limit: int) -> None:
        super().__init__(f"Too many ACP connections ({limit}); retry later", limit=limit)


class UnreadResponsesError(RefusedError):
    """The connection has as many requests without a response that was read as it may have."""

    code = "unread_responses_exceeded"

    def __init__(self, requests: int, size: int) -> None:
        super().__init__(
            f"{requests} requests of this connection, {size} bytes of responses, wait to be read; read its streams",
            pendingCount=requests,
            pendingBytes=size,
        )


class DuplicateIdError(CallerError):
    """A request has the id of another one whose response was not read yet; that one goes on."""

    code = "duplicate_request_id"

    def __init__(self) -> None:
        super().__init__("A request with this id is pending on this connection; give each request an id of its own")


class UnknownMethodError(CallerError):
    """There is no such method."""

    code = "method_not_found"
    status = 404

    def __init__(self, method: str) -> None:
        super().__init__(f"Unknown method: {method[:100]}")


class SessionNotOwnedError(CallerError):
    """The session lives, but this connection has neither made nor loaded it."""

    code = "session_not_owned"
    status = 403

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"Session {session_id} is not owned by this connection; session/load or session/resume attach to it",
            sessionId=session_id,
        )


_RPC_CODES: Final = {
    "invalid_json": PARSE_ERROR,
    InvalidMessageError.code: INVALID_REQUEST,
    BatchError.code: INVALID_REQUEST,
    WrongMediaTypeError.code: INVALID_REQUEST,
    "unsupported_content_encoding": INVALID_REQUEST,
    NoConnectionIdError.code: INVALID_REQUEST,
    UnknownConnectionError.code: INVALID_REQUEST,
    DuplicateIdError.code: INVALID_REQUEST,
    UnknownMethodError.code: METHOD_NOT_FOUND,
}


def rpc_error(error: GovernorError) -> dict[str, JsonValue]:
    """The `error` member of a response.

    What the caller must change is -32602 unless it is a matter of JSON-RPC itself, and has in `data.httpStatus` the
    status that REST would answer. Everything else is -32603; `data.retryable` says that waiting may help. The data of
    a full queue and of a shutdown are the protocol's, to the letter.
    """
    data: dict[str, JsonValue] = {"errorKind": error.code, **error.details}
    code = INTERNAL_ERROR
    if isinstance(error, CallerError):
        code = _RPC_CODES.get(error.code, INVALID_PARAMS)
        data["httpStatus"] = error.status
    elif error.retry_after_s is not None and not isinstance(error, PromptQueueFullError | DrainingError):
        data["retryable"] = True
    return {"code": code, "message": error.message, "data": data}
