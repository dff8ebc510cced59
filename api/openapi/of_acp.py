"""The routes of the Agent Client Protocol. What each method takes and gives is in docs/acp.md, not here."""

from __future__ import annotations

from typing import Final

from .operations import JSON, Answer, Operation, Parameter
from .shapes import Schema, const, record, text

_TAG: Final = "acp"
_ID: Final[Schema] = {"type": ["integer", "string"]}
_OBJECT: Final[Schema] = {"type": "object"}
_VERSION: Final = {"jsonrpc": const("2.0")}
_ERROR: Final = record(
    {
        "code": {"enum": [-32700, -32600, -32601, -32602, -32603]},
        "message": text("What was received, expected, and what to do."),
        "data": {"type": "object", "required": ["errorKind"], "description": "`errorKind` is a code of this API."},
    }
)
_FAILURE: Final = record(
    {**_VERSION, "id": {"type": ["integer", "string", "null"]}, "error": _ERROR}, description="A refusal in JSON-RPC."
)
_RESULT: Final = record({**_VERSION, "id": _ID, "result": _OBJECT})
_MESSAGE: Final = record(_VERSION, {"id": _ID, "method": text(), "params": _OBJECT, "result": _OBJECT, "error": _ERROR})
_CONNECTION: Final = Parameter(
    "Acp-Connection-Id", "header", text(), "Which connection; `initialize` answers with one and needs none."
)
_SESSION: Final = Parameter("Acp-Session-Id", "header", text(), "Which of the connection's sessions.")

OPERATIONS: Final = (
    Operation(
        "POST",
        "/acp",
        "acpMessage",
        _TAG,
        "One JSON-RPC message",
        (
            Answer(200, "Of `initialize`.", _RESULT, headers={"Acp-Connection-Id": "Of the new connection."}),
            Answer(202, "It was accepted; the response to a request comes on a stream."),
            Answer(400, "It is no proper message.", _FAILURE),
            Answer(403, "A notification for a session of somebody else.", _FAILURE),
            Answer(404, "There is no such connection, or no such session to be notified.", _FAILURE),
            Answer(415, "It is not sent as JSON, or compressed.", _FAILURE),
            Answer(429, "The caller has asked too often.", _FAILURE),
            Answer(501, "It is a batch.", _FAILURE),
            Answer(503, "There is no room, or no time any more.", _FAILURE),
        ),
        (_CONNECTION, _SESSION),
        raw_body=(JSON, _MESSAGE),
    ),
    Operation(
        "GET",
        "/acp",
        "acpStream",
        _TAG,
        "The stream of a connection, or of one of its sessions",
        (
            Answer(
                200,
                "Responses, and the session's events as notifications.",
                _MESSAGE,
                "text/event-stream",
                {"Cache-Control": "`no-cache, no-transform`.", "X-Accel-Buffering": "`no`."},
            ),
        ),
        (
            _CONNECTION,
            _SESSION,
            Parameter("Last-Event-ID", "header", text(), "Of a session: everything after this event."),
            Parameter("X-Qwen-Event-Epoch", "header", text(), "The life of the event log that it belongs to."),
        ),
        errors=(
            "not_acceptable",
            "missing_connection_id",
            "connection_not_found",
            "session_not_owned",
            "session_not_found",
            "subscriber_limit_exceeded",
            "daemon_draining",
        ),
    ),
    Operation(
        "DELETE",
        "/acp",
        "acpClose",
        _TAG,
        "End a connection",
        (Answer(202, "It has ended."),),
        (_CONNECTION,),
        errors=("missing_connection_id",),
    ),
)
