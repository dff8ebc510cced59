"""The routes of prompts and of what is told of them."""

from __future__ import annotations

from typing import Final

from api.wire import GENERATION_BYTES_MAX

from .operations import PROMPT_ID, SESSION_ID, Answer, Operation, Parameter
from .shapes import SAFE_INTEGER_MAX, array, const, count, flag, one_of, record, ref, text

_TAG: Final = "prompts"
_TEXT_BLOCK: Final = record(
    {"type": const("text"), "text": text("UTF-8 text without NUL characters.", pattern="^[^\\x00]*$")}
)
_PROMPT: Final = record(
    {"prompt": array(_TEXT_BLOCK, "Their texts, joined by line breaks, go to the model.", minItems=1)},
    {
        "deadlineMs": count(
            "Milliseconds from now to the prompt's end; shortens the operator's limit and is not used without one.",
            minimum=1,
        ),
        "retry": flag("The text is that of the turn that failed just before, and is not told again."),
        "eventDetailMode": one_of("full", "summary", description="Both are the same here."),
    },
)
_STREAM_HEADERS: Final = {"Cache-Control": "`no-cache, no-transform`.", "X-Accel-Buffering": "`no`."}
_EVENT_HEADERS: Final = {
    **_STREAM_HEADERS,
    "X-Qwen-Event-Epoch": "The life of the event log; a cursor is valid in its own epoch only.",
    "X-Qwen-SSE-Stream-Id": "Of this connection.",
}

OPERATIONS: Final = (
    Operation(
        "POST",
        "/session/{session_id}/prompt",
        "prompt",
        _TAG,
        "Hand in a prompt; its outcome comes as events",
        (Answer(202, "It is accepted, and exactly one terminal event with its id will come.", ref("Accepted")),),
        (SESSION_ID,),
        body=_PROMPT,
        client_id=True,
        errors=(
            "unknown_model",
            "session_closing",
            "invalid_event_detail_mode",
            "invalid_prompt",
            "unsupported_content_block",
            "invalid_prompt_text",
            "prompt_too_large",
            "invalid_deadline_ms",
            "prompt_queue_full",
        ),
        description=(
            "The checks are made in this order: JSON, session, `eventDetailMode`, `prompt`, its size, `deadlineMs`,"
            " client id, shutdown, queue. While the session has an event stream, the answer closes its connection, so"
            " that the turn starts when the answer was read."
        ),
    ),
    Operation(
        "POST",
        "/session/{session_id}/generate",
        "generateBeside",
        _TAG,
        "One answer of the session's model to one text, beside the prompts",
        (
            Answer(
                200,
                "Frames `event`, `data`: `started`, a `delta` for each piece, `done` or `error`.",
                ref("GenerationEvent"),
                "text/event-stream",
                _STREAM_HEADERS,
            ),
        ),
        (SESSION_ID,),
        body=record(
            {"prompt": text(f"At most {GENERATION_BYTES_MAX} bytes of UTF-8.", minLength=1, pattern=r"^[^\x00]*\S")}
        ),
        client_id=True,
        errors=("session_closing", "invalid_prompt", "invalid_prompt_text", "prompt_too_large"),
        description=(
            "It is not queued, takes no prompt slot, and is told to this caller alone. Its call takes a slot credit. It"
            " ends after 60 s, or the operator's deadline if that is shorter, and when its reader leaves; what the"
            " backend has begun goes on."
        ),
    ),
    Operation(
        "POST",
        "/session/{session_id}/cancel",
        "cancel",
        _TAG,
        "Cancel the running prompt; those that wait remain",
        (Answer(204, "It is, if there was one."),),
        (SESSION_ID,),
        body=record(description="Nothing in it matters."),
        client_id=True,
    ),
    Operation(
        "GET",
        "/session/{session_id}/pending-prompts",
        "pendingPrompts",
        _TAG,
        "Accepted prompts that have not ended, in order",
        (
            Answer(
                200, "The running one, and those that wait.", record({"pendingPrompts": array(ref("PendingPrompt"))})
            ),
        ),
        (SESSION_ID,),
        client_id=True,
    ),
    Operation(
        "DELETE",
        "/session/{session_id}/pending-prompts/{prompt_id}",
        "removePendingPrompt",
        _TAG,
        "Take one prompt out of the queue, or cancel it if it runs",
        (Answer(200, "Whether it was pending.", record({"removed": flag()})),),
        (SESSION_ID, PROMPT_ID),
        client_id=True,
    ),
    Operation(
        "GET",
        "/session/{session_id}/turns/current",
        "currentTurn",
        _TAG,
        "What became of the running prompt, else of the next one, else of the last one",
        (Answer(200, "As far as it has come.", ref("Turn")),),
        (SESSION_ID,),
        client_id=True,
    ),
    Operation(
        "GET",
        "/session/{session_id}/turns/{prompt_id}",
        "turn",
        _TAG,
        "What became of one prompt; of those that have ended, the last 64 are known",
        (Answer(200, "As far as it has come.", ref("Turn")),),
        (SESSION_ID, PROMPT_ID),
        client_id=True,
        errors=("prompt_not_found",),
    ),
    Operation(
        "GET",
        "/session/{session_id}/events",
        "events",
        _TAG,
        "The event stream of a session",
        (
            Answer(
                200,
                "Frames `id`, `event`, `data`, until the session ends. `retry: 3000` comes first; an idle stream gets a"
                " comment now and then.",
                ref("Event"),
                "text/event-stream",
                _EVENT_HEADERS,
            ),
        ),
        (
            SESSION_ID,
            Parameter("maxQueued", "query", count(minimum=16, maximum=2048), "Events that may wait for this reader."),
            Parameter(
                "snapshot", "query", text(), "`1`: a `session_snapshot` between what is replayed and what happens."
            ),
            Parameter("connectReason", "query", text(), "Why the client connects; not used."),
            Parameter("previousStreamId", "query", text(), "The stream that this one continues; not used."),
            Parameter(
                "Last-Event-ID",
                "header",
                count(maximum=SAFE_INTEGER_MAX),
                "Everything kept after this event comes first, then `replay_complete`. Without it, only what happens"
                " from now on.",
            ),
            Parameter(
                "X-Qwen-Event-Epoch",
                "header",
                text(pattern="^[A-Za-z0-9_-]{1,64}$"),
                "The epoch of `Last-Event-ID`; with another one than the session's everything kept is replayed.",
            ),
        ),
        errors=("invalid_max_queued", "subscriber_limit_exceeded"),
    ),
)
