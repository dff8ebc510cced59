"""Coming back to a session, with what was told in it or without, and branching off."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from quart import Blueprint, Response, request

from governor.branch import branch_session, title_of
from governor.errors import SessionNotFoundError
from governor.journal import replay_of

from ..body import json_object
from ..context import caller_id, caller_of, this_app
from ..departure import forget
from ..errors import json_response
from ..guard import if_lost
from ..views import models_state, opened
from ..wire import check_restore, decode_branch_name

if TYPE_CHECKING:
    from governor.errors import JsonValue
    from governor.session import Session

    from ..views import View

blueprint = Blueprint("restore", __name__)


@blueprint.post("/session/<session_id>/load")
async def load(session_id: str) -> Response:
    """Attaches to a live session and tells what was told in it."""
    check_restore(await json_object())
    session = this_app().governor.session(session_id)
    return json_response(await _restored(session, caller_id(), attached=True, with_replay=True))


@blueprint.post("/session/<session_id>/resume")
async def resume(session_id: str) -> Response:
    """Attaches to a live session from its newest event on."""
    check_restore(await json_object())
    session = this_app().governor.session(session_id)
    return json_response(await _restored(session, caller_id(), attached=True, with_replay=False))


@blueprint.post("/session/<session_id>/branch")
async def branch(session_id: str) -> Response:
    """Makes a session with the texts of another one, once the prompts that were accepted before have settled (S5)."""
    body = await json_object()
    governor = this_app().governor
    source = governor.session(session_id)
    name = decode_branch_name(body)
    client_id = caller_of(source)
    branched = await branch_session(governor, source, name, client_id)
    told = await _restored(branched, None, attached=False, with_replay=True)
    forked_from: JsonValue = {"sessionId": source.id, "displayName": title_of(source)}
    return json_response({**told, "displayName": branched.display_name, "forkedFrom": forked_from}, 201)


async def _restored(session: Session, offered: str | None, *, attached: bool, with_replay: bool) -> View:
    """Registers the caller and describes the session as of this moment."""
    app = this_app()
    client_id = session.clients.register(offered)
    if_lost(request.scope, partial(forget, app.governor, session, client_id, made=not attached))
    session.touch()
    kept = session.log.keep()
    told = opened(session, client_id, attached=attached)
    told |= {
        "state": models_state(session, app.governor.models),
        "hasActivePrompt": session.has_active_prompt,
        "lastEventId": kept.last_id,
        "eventEpoch": kept.epoch,
    }
    terminals: list[JsonValue] = [record.terminal() for record in session.history.settled]
    if terminals:
        told["promptTerminals"] = terminals
    if with_replay:
        replay = await replay_of(kept)
        told["compactedReplay"] = cast("JsonValue", replay.compacted)
        told["liveJournal"] = cast("JsonValue", replay.live)
        if not kept.whole:
            told |= {"partial": True, "replayError": "The oldest events are not kept any more"}
    if session.closed:
        raise SessionNotFoundError(session.id, closing=True)
    return told
