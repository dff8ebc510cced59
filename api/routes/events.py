"""The event stream of a session."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

from quart import Blueprint, Response, request

from governor.core.events import SubscribersFullError, notice_frame

from ..context import this_app
from ..errors import SubscriberLimitError
from ..guard import after_response
from ..sse import STREAM_HEAD, EventBody
from ..wire import decode_cursor, decode_epoch, decode_max_queued

if TYPE_CHECKING:
    from governor.errors import JsonValue
    from governor.session import Session

blueprint = Blueprint("events", __name__)


@blueprint.get("/session/<session_id>/events")
async def events(session_id: str) -> Response:
    """Everything after `Last-Event-ID` that is kept, then everything that happens (A5)."""
    governor = this_app().governor
    limits = governor.config.limits
    session = governor.session(session_id)
    max_frames = decode_max_queued(request.args.getlist("maxQueued"))
    head = {
        **STREAM_HEAD,
        "X-Qwen-Event-Epoch": session.log.epoch,
        "X-Qwen-SSE-Stream-Id": str(uuid.uuid4()),
    }
    if request.method == "HEAD":
        shown = Response(b"", headers=head)
        del shown.headers["Content-Length"]
        return shown
    cursor = decode_cursor(request.headers.get("Last-Event-ID"))
    try:
        stream = session.subscribe(
            after_id=cursor,
            epoch=decode_epoch(request.headers.get("X-Qwen-Event-Epoch")),
            max_frames=max_frames,
        )
    except SubscribersFullError:
        raise SubscriberLimitError(limits.max_subscribers_per_session) from None
    # The body closes the stream as well, but is not even begun for a client that is gone by now.
    after_response(request.scope, stream.close)
    body = EventBody(
        stream,
        heartbeat_s=limits.heartbeat_interval_ms / 1000,
        snapshot=partial(_snapshot, session) if request.args.get("snapshot") == "1" else None,
        replays=cursor is not None,
    )
    response = Response(body, headers=head)
    response.timeout = None
    return response


def _snapshot(session: Session) -> bytes:
    told: dict[str, JsonValue] = {
        "sessionId": session.id,
        "currentModelId": session.served.config.name,
        "currentApprovalMode": None,
        "recordingDegraded": False,
    }
    return notice_frame("session_snapshot", told).data
