"""Sessions: create or attach, close."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from quart import Blueprint, Response, request

from ..body import json_object
from ..context import register_client, this_app
from ..errors import empty_response, json_response
from ..wire import WORKSPACE_CWD, decode_client_id, decode_create

if TYPE_CHECKING:
    from governor.errors import JsonValue

blueprint = Blueprint("sessions", __name__)


@blueprint.post("/session")
async def create_session() -> Response:
    """Makes a session for a model, or attaches to the one that its callers share."""
    wanted = decode_create(await json_object())
    offered = decode_client_id(request.headers.get("X-Qwen-Client-Id"))
    session, attached = this_app().shared_sessions.open(wanted)
    created_at = datetime.fromtimestamp(session.created_at_ms / 1000, UTC)
    body: dict[str, JsonValue] = {
        "sessionId": session.id,
        "workspaceCwd": WORKSPACE_CWD,
        "attached": attached,
        "clientId": register_client(session, offered),
        "createdAt": created_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "modelServiceId": session.served.config.name,
    }
    if attached:
        body |= {"hasActivePrompt": session.has_active_prompt, "hasRunningBackgroundTasks": False}
    elif wanted.model is not None:
        body["modelApplied"] = True
    return json_response(body)


@blueprint.delete("/session/<session_id>")
async def close_session(session_id: str) -> Response:
    """Closes a session; its pending prompts get their terminal event, its readers their end."""
    this_app().governor.close_session(session_id)
    return empty_response(204)
