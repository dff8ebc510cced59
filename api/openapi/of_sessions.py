"""The routes of sessions: create, attach, come back, branch, name, leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from api.wire import BRANCH_NAME_CHARS_MAX, DISPLAY_NAME_CHARS_MAX, HISTORY_PAGE_MAX, PAGE_SIZE, PAGE_SIZE_MAX

from .operations import SESSION_ID, Answer, Operation, Parameter
from .shapes import array, const, count, one_of, record, ref, text, unix_ms

if TYPE_CHECKING:
    from .shapes import Schema

_TAG: Final = "sessions"
_CWD: Final = text("An absolute path; it is not used.", pattern="^/")
_MODES: Final = {
    "liveReplayMode": one_of("full", "summary", description="Both are the same here."),
    "compactedReplayMode": one_of("full", "summary", description="Both are the same here."),
    "historyPageSize": count(
        "Not used: what is told is the whole history that is kept.", minimum=1, maximum=HISTORY_PAGE_MAX
    ),
}
_RESTORE_ERRORS: Final = (
    "session_closing",
    "invalid_cwd",
    "invalid_live_replay_mode",
    "invalid_compacted_replay_mode",
    "invalid_transcript_limit",
)
_NAME: Final = text(
    minLength=1, maxLength=DISPLAY_NAME_CHARS_MAX, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\S[^\x00-\x1f\x7f-\x9f]*$"
)


def _optional(**properties: Schema) -> Schema:
    return record(optional=properties)


OPERATIONS: Final = (
    Operation(
        "POST",
        "/session",
        "createSession",
        _TAG,
        "Create a session, or attach to the one that the callers of a model share",
        (Answer(200, "The session.", ref("Created")),),
        body=_optional(
            modelServiceId=text("Public name of the model; the first configured one without it."),
            sessionScope=one_of(
                "single", "thread", description="`single` (default): the shared session; `thread`: a new one."
            ),
            sessionId=text("Id of the new session, which is then nobody else's.", format="uuid"),
            cwd=_CWD,
        ),
        client_id=True,
        errors=(
            "invalid_session_scope",
            "invalid_session_id",
            "invalid_cwd",
            "invalid_model_service_id",
            "unknown_model",
            "session_id_conflict",
            "session_limit_exceeded",
            "daemon_draining",
        ),
    ),
    Operation(
        "DELETE",
        "/session/{session_id}",
        "closeSession",
        _TAG,
        "Close a session; its pending prompts and its event streams end",
        (Answer(204, "It is closed."),),
        (SESSION_ID,),
        client_id=True,
    ),
    Operation(
        "POST",
        "/session/{session_id}/load",
        "loadSession",
        _TAG,
        "Attach to a live session, and what was told in it",
        (Answer(200, "The session, and its events so far.", ref("Loaded")),),
        (SESSION_ID,),
        body=_optional(cwd=_CWD, **_MODES),
        client_id=True,
        errors=_RESTORE_ERRORS,
    ),
    Operation(
        "POST",
        "/session/{session_id}/resume",
        "resumeSession",
        _TAG,
        "Attach to a live session from now on",
        (Answer(200, "The session.", ref("Resumed")),),
        (SESSION_ID,),
        body=_optional(cwd=_CWD, **_MODES),
        client_id=True,
        errors=_RESTORE_ERRORS,
    ),
    Operation(
        "POST",
        "/session/{session_id}/branch",
        "branchSession",
        _TAG,
        "Begin a new session with the texts of this one, behind its pending prompts",
        (Answer(201, "The new session.", ref("Branched")),),
        (SESSION_ID,),
        body=_optional(
            name=text(f"Name of the new session; cut at {BRANCH_NAME_CHARS_MAX} characters."),
            atRecordId=const(None, "One cannot branch in the past."),
        ),
        client_id=True,
        errors=(
            "session_closing",
            "branch_point_invalid",
            "branch_while_prompt_active",
            "session_limit_exceeded",
        ),
    ),
    Operation(
        "POST",
        "/session/{session_id}/detach",
        "detachSession",
        _TAG,
        "Take one registration of the caller back",
        (Answer(204, "It is; nothing happens for an unknown caller."),),
        (SESSION_ID,),
        body=record(description="Nothing in it matters."),
        client_id=True,
    ),
    Operation(
        "POST",
        "/session/{session_id}/heartbeat",
        "heartbeat",
        _TAG,
        "Say that the caller is there, so that the session is kept",
        (
            Answer(
                200,
                "It is known.",
                record({"sessionId": text(), "lastSeenAt": unix_ms()}, {"clientId": text()}),
            ),
        ),
        (SESSION_ID,),
        body=record(description="Nothing in it matters."),
        client_id=True,
    ),
    Operation(
        "GET",
        "/workspace/{cwd}/sessions",
        "listSessions",
        _TAG,
        "List the live sessions, the newest first",
        (
            Answer(
                200,
                "One page.",
                record({"sessions": array(ref("Session"))}, {"nextCursor": text("There are more.")}),
            ),
        ),
        (
            Parameter("cwd", "path", text(), "The `workspaceCwd` of the sessions, percent-encoded."),
            Parameter(
                "size",
                "query",
                count(minimum=1, maximum=PAGE_SIZE_MAX, default=PAGE_SIZE),
                f"How many; what is no such number counts as {PAGE_SIZE}.",
            ),
            Parameter("cursor", "query", text(pattern="^[0-9]{1,16}$"), "The `nextCursor` of the page before."),
        ),
        errors=("invalid_cwd", "invalid_cursor"),
    ),
    Operation(
        "GET",
        "/session/{session_id}/status",
        "sessionStatus",
        _TAG,
        "What a session is doing",
        (Answer(200, "As in the list.", ref("Session")),),
        (SESSION_ID,),
    ),
    Operation(
        "PATCH",
        "/session/{session_id}/metadata",
        "updateSession",
        _TAG,
        "Give a session a name",
        (Answer(200, "What it is called now.", record({"sessionId": text()}, {"displayName": text()})),),
        (SESSION_ID,),
        body=_optional(displayName=_NAME),
        client_id=True,
        errors=("invalid_metadata",),
    ),
    Operation(
        "POST",
        "/session/{session_id}/model",
        "setModel",
        _TAG,
        "Send the turns that begin from now on to another model",
        (Answer(200, "They go there.", record({"modelId": text()})),),
        (SESSION_ID,),
        body=record({"modelId": text("Public name of the model.", minLength=1)}),
        client_id=True,
        errors=("invalid_model_id", "unknown_model"),
    ),
)
