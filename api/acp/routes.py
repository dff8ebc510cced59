"""`/acp`: a message in and 202 out, streams, and the end of a connection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio
from quart import Blueprint, Response, request

from governor.errors import DrainingError, GovernorError

from ..body import plain_body
from ..context import this_app
from ..errors import empty_response, header_fields, json_response, note_error
from ..guard import after_response, if_lost
from ..rate import caller_name
from ..receipts import ask_for_receipt
from ..sse import STREAM_HEAD, EventBody
from ..wire import decode_cursor, decode_epoch
from .errors import NoConnectionIdError, NotAcceptableError, UnknownConnectionError
from .messages import decode_json, decode_message, error_body, id_of, result_body
from .methods import INITIALIZE, Request, initialize_result, tier_of_method

if TYPE_CHECKING:
    from governor.errors import JsonValue

    from ..sse import FrameSource
    from .connection import Connection
    from .messages import Message, RequestId

blueprint = Blueprint("acp", __name__)

_CONNECTION = "Acp-Connection-Id"
_SESSION = "Acp-Session-Id"


@blueprint.post("/acp")
async def post() -> Response:
    """One message. A request is answered on a stream, `initialize` and what is no proper message at once."""
    value: JsonValue = None
    try:
        value = decode_json(request.headers.get("Content-Type"), await plain_body())
        message = decode_message(value)
        # From here to the answer there is no checkpoint: what is accepted gets its 202.
        if message is not None and message.method == INITIALIZE and message.id is not None:
            return _initialize(message.id)
        connection = _connection()
        if message is not None:
            _take_rate(message.method)
            _carry_out(connection, message)
    except GovernorError as error:
        return _refused(id_of(value), error)
    return empty_response(202)


@blueprint.get("/acp")
async def get() -> Response:
    """The connection's own stream; with `Acp-Session-Id`, the stream of a session that it owns."""
    if "text/event-stream" not in request.headers.get("Accept", ""):
        raise NotAcceptableError
    connection = _connection()
    session_id = request.headers.get(_SESSION)
    if session_id is None:
        return _head(STREAM_HEAD) if request.method == "HEAD" else _stream(STREAM_HEAD, connection.open_stream())
    binding = connection.owned(session_id)
    head = {**STREAM_HEAD, "X-Qwen-Event-Epoch": binding.session.log.epoch}
    if request.method == "HEAD":
        return _head(head)
    limits = this_app().governor.config.limits
    cursor = decode_cursor(request.headers.get("Last-Event-ID"))
    epoch = decode_epoch(request.headers.get("X-Qwen-Event-Epoch")) if cursor is not None else None
    return _stream(head, binding.open_stream(limits, after_id=cursor, epoch=epoch))


@blueprint.delete("/acp")
async def delete() -> Response:
    """Ends a connection; one that has ended already is fine."""
    connection = this_app().acp.get(_connection_id())
    if connection is not None:
        connection.close()
    return empty_response(202)


def _initialize(request_id: RequestId) -> Response:
    _take_rate(INITIALIZE)
    connection = this_app().acp.open()
    if_lost(request.scope, connection.close)
    response = json_response(result_body(request_id, initialize_result(connection)))
    response.headers[_CONNECTION] = connection.id
    return response


def _carry_out(connection: Connection, message: Message) -> None:
    app = this_app()
    asked = Request(app, connection, request.headers.get(_SESSION))
    connection.touch()
    if message.id is None:
        asked.notify(message)
        return
    call = connection.accept(message.id)
    if connection.streaming or connection.session_streams:
        ask_for_receipt(request.scope, app.governor.config.limits.read_receipt_timeout_ms / 1000)
    asked.carry_out(message, call)
    if asked.error is not None:
        note_error(asked.error)
    if asked.prompt is not None:
        session, prompt_id = asked.prompt
        # Whoever does not get the 202 waits for no response: the prompt ends before it has begun.
        if_lost(request.scope, partial(session.withdraw, prompt_id))
        after_response(request.scope, partial(session.let_start, prompt_id))
    after_response(request.scope, call.release)


def _take_rate(method: str) -> None:
    app, tier = this_app(), tier_of_method(method)
    if app.rate_limiter is not None and tier is not None:
        caller = caller_name(loopback=app.loopback, address=request.remote_addr or "unknown", client_id=None)
        app.rate_limiter.take(caller, tier, trio.current_time())


def _connection_id() -> str:
    connection_id = request.headers.get(_CONNECTION)
    if not connection_id:
        raise NoConnectionIdError
    return connection_id


def _connection() -> Connection:
    app = this_app()
    connection = app.acp.get(_connection_id())
    if connection is not None:
        return connection
    if app.governor.draining:
        raise DrainingError
    raise UnknownConnectionError


def _refused(request_id: RequestId | None, error: GovernorError) -> Response:
    note_error(error)
    response = json_response(error_body(request_id, error), error.status)
    for name, value in header_fields(error):
        response.headers[name] = value
    return response


def _head(head: dict[str, str]) -> Response:
    shown = Response(b"", headers=head)
    del shown.headers["Content-Length"]
    return shown


def _stream(head: dict[str, str], source: FrameSource) -> Response:
    after_response(request.scope, source.close)  # the body closes it as well, but may never be begun
    heartbeat_s = this_app().governor.config.limits.heartbeat_interval_ms / 1000
    response = Response(EventBody(source, heartbeat_s=heartbeat_s), headers=head)
    response.timeout = None
    return response
