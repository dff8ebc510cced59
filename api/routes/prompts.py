"""Prompts: accept, cancel."""

from __future__ import annotations

from functools import partial

from quart import Blueprint, Response, request

from governor.errors import PromptQueueFullError

from ..body import json_object
from ..context import require_registered, this_app
from ..errors import empty_response, json_response
from ..guard import after_response
from ..receipts import ask_for_receipt
from ..wire import decode_client_id, decode_prompt

blueprint = Blueprint("prompts", __name__)


@blueprint.post("/session/<session_id>/prompt")
async def prompt(session_id: str) -> Response:
    """Accepts a prompt; its outcome comes as events. The turn starts once the 202 is out (S7)."""
    governor = this_app().governor
    body = await json_object()
    session = governor.session(session_id)
    wanted = decode_prompt(body, max_prompt_bytes=governor.config.limits.max_prompt_bytes)
    client_id = decode_client_id(request.headers.get("X-Qwen-Client-Id"))
    require_registered(session, client_id)
    # From here to the answer there is no checkpoint: what is admitted gets its 202 (S2).
    try:
        admission = session.admit(wanted.text, deadline_ms=wanted.deadline_ms, originator=client_id)
    except PromptQueueFullError:
        governor.prompts_refused += 1
        raise
    governor.prompts_admitted += 1
    if session.log.subscriber_count:
        ask_for_receipt(request.scope, governor.config.limits.read_receipt_timeout_ms / 1000)
    after_response(request.scope, partial(session.let_start, admission.prompt_id))
    return json_response(
        {
            "promptId": admission.prompt_id,
            "lastEventId": admission.last_event_id,
            "eventEpoch": admission.event_epoch,
        },
        202,
    )


@blueprint.post("/session/<session_id>/cancel")
async def cancel(session_id: str) -> Response:
    """Cancels the running prompt, if there is one; queued prompts remain."""
    session = this_app().governor.session(session_id)
    client_id = decode_client_id(request.headers.get("X-Qwen-Client-Id"))
    require_registered(session, client_id)
    session.cancel(client_id)
    return empty_response(204)
