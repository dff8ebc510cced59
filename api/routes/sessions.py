"""Sessions: create or attach, detach, close, and what they say about themselves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from quart import Blueprint, Response, request

from ..body import json_object
from ..context import caller_id, caller_of, this_app
from ..departure import forget
from ..errors import empty_response, json_response
from ..guard import if_lost
from ..views import opened, page_of, summary
from ..wire import check_cwd, decode_create, decode_display_name, decode_model_id, decode_page

if TYPE_CHECKING:
    from governor.errors import JsonValue

blueprint = Blueprint("sessions", __name__)


@blueprint.post("/session")
async def create_session() -> Response:
    """Makes a session for a model, or attaches to the one that its callers share."""
    wanted = decode_create(await json_object())
    offered = caller_id()
    app = this_app()
    session, attached = app.shared_sessions.open(wanted)
    client_id = session.clients.register(offered)
    session.touch()
    if_lost(request.scope, partial(forget, app.governor, session, client_id, made=not attached))
    body = opened(session, client_id, attached=attached)
    if wanted.model is not None and not attached:
        body["modelApplied"] = True
    return json_response(body)


@blueprint.delete("/session/<session_id>")
async def close_session(session_id: str) -> Response:
    """Closes a session; its pending prompts get their terminal event, its readers their end."""
    governor = this_app().governor
    client_id = caller_of(governor.session(session_id))
    governor.close_session(session_id, closed_by=client_id)
    return empty_response(204)


@blueprint.post("/session/<session_id>/detach")
async def detach(session_id: str) -> Response:
    """Takes one registration of the caller back; nothing happens to prompts, and none for an unknown caller."""
    await json_object()  # nothing in it matters, but half a request is none
    session = this_app().governor.session(session_id)
    session.clients.unregister(caller_id())
    session.touch()
    return empty_response(204)


@blueprint.post("/session/<session_id>/heartbeat")
async def heartbeat(session_id: str) -> Response:
    """The caller is there, so the session is in use."""
    await json_object()  # as above
    session = this_app().governor.session(session_id)
    client_id = caller_of(session)
    body: dict[str, JsonValue] = {"sessionId": session.id}
    if client_id is not None:
        body["clientId"] = client_id
    return json_response({**body, "lastSeenAt": session.heartbeat()})


@blueprint.get("/workspace/<anything:cwd>/sessions")
async def list_sessions(cwd: str) -> Response:
    """Live sessions, the newest first. There are no folders, so the path only has to look like one."""
    check_cwd(cwd)
    size, before = decode_page(request.args.get("size"), request.args.get("cursor"))
    page, cursor = page_of(this_app().governor.sessions.values(), size, before)
    told: dict[str, JsonValue] = {"sessions": [summary(session) for session in page]}
    if cursor is not None:
        told["nextCursor"] = cursor
    return json_response(told)


@blueprint.get("/session/<session_id>/status")
async def status(session_id: str) -> Response:
    """See `summary`."""
    return json_response(summary(this_app().governor.session(session_id)))


@blueprint.patch("/session/<session_id>/metadata")
async def metadata(session_id: str) -> Response:
    """Gives the session another name."""
    body = await json_object()
    session = this_app().governor.session(session_id)
    name = decode_display_name(body)
    client_id = caller_of(session)
    if name is not None:
        session.rename(name, client_id)
    told: dict[str, JsonValue] = {"sessionId": session.id}
    if session.display_name is not None:
        told["displayName"] = session.display_name
    return json_response(told)


@blueprint.post("/session/<session_id>/model")
async def model(session_id: str) -> Response:
    """Sends the turns that begin from now on to another model."""
    body = await json_object()
    governor = this_app().governor
    session = governor.session(session_id)
    wanted = decode_model_id(body)
    client_id = caller_of(session)
    served = governor.switch_model(session, wanted, client_id)
    return json_response({"modelId": served.config.name})
