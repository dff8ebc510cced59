"""JSON-RPC 2.0 messages as bytes: decoded and checked on the way in, encoded as SSE frames on the way out. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from governor.core.events import Frame
from governor.errors import InvalidRequestError

from ..wire import parse_json
from .errors import BatchError, InvalidMessageError, WrongMediaTypeError, rpc_error

if TYPE_CHECKING:
    from governor.errors import GovernorError, JsonValue
    from governor.journal import Event

RequestId = int | str
Params = dict[str, "JsonValue"]

ID_CHARS_MAX: Final = 128
ID_MAX: Final = 2**53 - 1
"""The largest whole number that every client can tell from its neighbours."""


@dataclass(frozen=True, slots=True)
class Message:
    """A request or a notification.

    Attributes:
        method: what is to be done.
        params: with what; empty where none were sent.
        id: what the response is told by; None for a notification, which gets none.
    """

    method: str
    params: Params
    id: RequestId | None


def decode_json(content_type: str | None, body: bytes) -> JsonValue:
    """The body of a `POST`.

    Raises:
        WrongMediaTypeError: it is not sent as JSON.
        InvalidRequestError: `invalid_json`: it is none.
    """
    if (content_type or "").partition(";")[0].strip().lower() != "application/json":
        raise WrongMediaTypeError
    return parse_json(body)


def decode_message(value: JsonValue) -> Message | None:
    """A message; None for a response, as the governor sends no requests that could have one.

    Raises:
        BatchError, InvalidMessageError: it is no message.
        InvalidRequestError: `invalid_params`: its parameters are no object.
    """
    if isinstance(value, list):
        raise BatchError
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        raise InvalidMessageError('A message is an object with "jsonrpc": "2.0"')
    if "id" in value and id_of(value) is None:
        raise InvalidMessageError(
            f"The id of a request is a whole number up to 2^53 - 1 or a string of at most {ID_CHARS_MAX} characters"
        )
    method = value.get("method")
    if "method" not in value and "id" in value and ("result" in value) != ("error" in value):
        return None
    if not isinstance(method, str) or not method:
        raise InvalidMessageError("A request has a `method`, a response exactly one of `result` and `error`")
    params = value.get("params", {})
    if not isinstance(params, dict):
        raise InvalidRequestError("`params` must be an object; nothing is told by position", code="invalid_params")
    return Message(method, params, id_of(value))


def id_of(value: JsonValue) -> RequestId | None:
    """The id of what may be a message, so that even a refusal can be told apart; None if nothing in it can be one."""
    given = value.get("id") if isinstance(value, dict) else None
    if isinstance(given, str) and len(given) <= ID_CHARS_MAX:
        return given
    if isinstance(given, int) and not isinstance(given, bool) and abs(given) <= ID_MAX:
        return given
    return None


def result_body(request_id: RequestId, result: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """A response that tells a result."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def error_body(request_id: RequestId | None, error: GovernorError) -> dict[str, JsonValue]:
    """A response that tells an error."""
    return {"jsonrpc": "2.0", "id": request_id, "error": rpc_error(error)}


def encode(message: dict[str, JsonValue], event_id: int | None = None) -> bytes:
    """A message as one SSE frame: `id` (of an event of the session), one line of `data`, a blank line."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    return f"{head}data: {body}\n\n".encode("utf-8", "backslashreplace")


def notification_of(event: Event, event_id: int | None) -> Frame:
    """An event of a session as a notification: pieces of a turn as `session/update`, the rest as `_qwen/notify`."""
    meta = event.get("_meta")
    extra: dict[str, JsonValue] = {}
    if isinstance(meta, dict):
        prompt_id = event.get("promptId")
        extra["_meta"] = {**meta, **({"promptId": prompt_id} if prompt_id is not None else {})}
    if "originatorClientId" in event:
        extra["originatorClientId"] = event["originatorClientId"]
    data = event["data"]
    if event["type"] == "session_update" and isinstance(data, dict):
        method, params = "session/update", {**data, **extra}
    else:
        method, params = "_qwen/notify", {"kind": event["type"], "data": data, **extra}
    return Frame(event_id, encode({"jsonrpc": "2.0", "method": method, "params": params}, event_id))
