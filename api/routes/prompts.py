"""Prompts that were accepted (`api.prompt_route`): cancel, look at the queue, take one out, and what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quart import Blueprint, Response, request

from ..body import json_object
from ..context import caller_of, this_app
from ..errors import PromptNotFoundError, empty_response, json_response
from ..guard import after_response
from ..sse import STREAM_HEAD, GenerationBody
from ..wire import decode_generation

if TYPE_CHECKING:
    from governor.errors import JsonValue

blueprint = Blueprint("prompts", __name__)


@blueprint.post("/session/<session_id>/generate")
async def generate(session_id: str) -> Response:
    """Has the session's model answer one text, beside the prompts; the answer is a stream for this caller alone."""
    governor = this_app().governor
    body = await json_object()
    session = governor.session(session_id)
    text = decode_generation(body)
    caller_of(session)
    generation = session.generate(text)
    # The body stops it as well, but is not even begun for a client that is gone by now.
    after_response(request.scope, generation.stop)
    heartbeat_s = governor.config.limits.heartbeat_interval_ms / 1000
    response = Response(GenerationBody(generation, heartbeat_s=heartbeat_s), headers=STREAM_HEAD)
    response.timeout = None
    return response


@blueprint.post("/session/<session_id>/cancel")
async def cancel(session_id: str) -> Response:
    """Cancels the running prompt, if there is one; queued prompts remain."""
    await json_object()  # nothing in it matters, but half a request is none
    session = this_app().governor.session(session_id)
    session.cancel(caller_of(session))
    return empty_response(204)


@blueprint.get("/session/<session_id>/pending-prompts")
async def pending_prompts(session_id: str) -> Response:
    """Accepted and not yet settled prompts, in order."""
    session = this_app().governor.session(session_id)
    caller_of(session)
    pending: list[JsonValue] = [record.pending() for record in session.history.pending]
    return json_response({"pendingPrompts": pending})


@blueprint.delete("/session/<session_id>/pending-prompts/<prompt_id>")
async def remove_pending_prompt(session_id: str, prompt_id: str) -> Response:
    """Takes one prompt out of the queue, or cancels it if it runs."""
    session = this_app().governor.session(session_id)
    client_id = caller_of(session)
    return json_response({"removed": session.remove(prompt_id, client_id)})


@blueprint.get("/session/<session_id>/turns/current")
async def current_turn(session_id: str) -> Response:
    """The running prompt, else the next one, else the last one that settled."""
    session = this_app().governor.session(session_id)
    caller_of(session)
    record = session.history.current()
    if record is None:
        return json_response({"sessionId": session.id, "state": "idle"})
    return json_response(record.status(session.id))


@blueprint.get("/session/<session_id>/turns/<prompt_id>")
async def turn(session_id: str, prompt_id: str) -> Response:
    """One prompt, pending or among the last that settled."""
    session = this_app().governor.session(session_id)
    caller_of(session)
    record = session.history.get(prompt_id)
    if record is None:
        raise PromptNotFoundError(session.id, prompt_id)
    return json_response(record.status(session.id))
