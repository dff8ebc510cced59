"""What an event stream tells: the envelope of each type of event, as a schema of the document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .shapes import array, const, count, flag, nullable, one_of, record, ref, text, unix_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .shapes import Schema

_SESSION: Final = {"sessionId": text()}
_TURN: Final = {**_SESSION, "promptId": text()}
_LOAD: Final = {
    "queueSize": count("Events that wait."),
    "maxQueued": count("The most that may."),
    "queuedBytes": count("Their bytes."),
    "maxQueuedBytes": count("The most that may wait."),
    "lastEventId": count("Id of the newest event in the queue."),
}
_META: Final = {"_meta": record({"serverTimestamp": unix_ms()})}


def _event(kind: str, data: Schema, *, of_a_prompt: bool = False) -> Schema:
    prompt = {"promptId": text("The prompt that the event belongs to.")}
    return record(
        {"id": count("One more than the event before.", minimum=1), "v": const(1), "type": const(kind)}
        | (prompt if of_a_prompt else {})
        | {"data": data, **_META},
        {"originatorClientId": text("Client id of whoever caused it.")},
    )


def _notice(kind: str, data: Schema) -> Schema:
    """For one reader; it has no id and moves no cursor."""
    return record({"v": const(1), "type": const(kind), "data": data})


def _chunk(kind: str, meta: Schema | None = None) -> Schema:
    content = record({"type": const("text"), "text": text()})
    return record({"sessionUpdate": const(kind), "content": content} | ({"_meta": meta} if meta is not None else {}))


_ECHO: Final = record({"serverTimestamp": unix_ms(), "source": const("bridge-echo")})
_UPDATE: Final[Schema] = {
    "oneOf": [_chunk("user_message_chunk", _ECHO), _chunk("agent_message_chunk")],
    "description": "The prompt, or a piece of the answer.",
}
_CANCELLED: Final = record({"cancelledAt": unix_ms(), "elapsedMs": count("Since the turn began.")})

_EVENTS: Final[Mapping[str, Schema]] = {
    "pending_prompt_added": _event(
        "pending_prompt_added", record({**_TURN, "text": text(), "queuedAt": unix_ms()}), of_a_prompt=True
    ),
    "pending_prompt_started": _event("pending_prompt_started", record({**_TURN, "text": text()}), of_a_prompt=True),
    "session_update": _event("session_update", record({**_SESSION, "update": _UPDATE}), of_a_prompt=True),
    "prompt_cancelled": record(
        {"id": count(minimum=1), "v": const(1), "type": const("prompt_cancelled"), **_META}
        | {"data": record(_SESSION, {"promptId": text("Missing where nothing ran.")})},
        {"promptId": text(), "originatorClientId": text()},
    ),
    "turn_complete": _event(
        "turn_complete",
        record({**_TURN, "stopReason": one_of("end_turn", "cancelled")}, {"promptCancelled": _CANCELLED}),
        of_a_prompt=True,
    ),
    "turn_error": _event("turn_error", record({**_TURN, "message": text(), "code": text("Stable.")}), of_a_prompt=True),
    "pending_prompt_completed": _event(
        "pending_prompt_completed", record({**_TURN, "state": one_of("completed", "removed")}), of_a_prompt=True
    ),
    "model_switched": _event("model_switched", record({**_SESSION, "modelId": text()})),
    "model_switch_failed": _event(
        "model_switch_failed", record({**_SESSION, "requestedModelId": text(), "error": text()})
    ),
    "session_metadata_updated": _event(
        "session_metadata_updated", record({**_SESSION, "displayName": text(), "titleSource": const("manual")})
    ),
    "session_branched": _event(
        "session_branched",
        record({**_SESSION, "sourceSessionId": text(), "newSessionId": text(), "displayName": text()}),
    ),
    "session_closed": _event("session_closed", record({**_SESSION, "reason": text()}, {"closedBy": text()})),
    "session_died": _event("session_died", record({**_SESSION, "reason": text()})),
}
_NOTICES: Final[Mapping[str, Schema]] = {
    "replay_complete": _notice(
        "replay_complete", record({"replayedCount": count()}, {"lastReplayedEventId": count(), "lastEventId": count()})
    ),
    "state_resync_required": _notice(
        "state_resync_required",
        record(
            {
                "reason": one_of("epoch_reset", "ring_evicted", "replay_budget_exceeded"),
                "lastDeliveredId": count(),
                "earliestAvailableId": count(),
            },
            {"detail": one_of("epoch_mismatch", "cursor_ahead")},
        ),
    ),
    "slow_client_warning": _notice(
        "slow_client_warning", record({**_LOAD, "threshold": one_of("frames", "bytes", "frames_and_bytes")})
    ),
    "client_evicted": _notice(
        "client_evicted",
        record(
            {
                **_LOAD,
                "reason": one_of("queue_overflow", "queue_bytes_overflow"),
                "droppedAfter": count("Id of the last event that was sent."),
                "eventBytes": count("Size of the event that found no room."),
            }
        ),
    ),
    "session_snapshot": _notice(
        "session_snapshot",
        record(
            {
                **_SESSION,
                "currentModelId": text(),
                "currentApprovalMode": nullable(text("Always null.")),
                "recordingDegraded": flag("Always false."),
            }
        ),
    ),
}


def _generated(kind: str, more: Mapping[str, Schema]) -> Schema:
    return record({"v": const(1), "type": const(kind), "requestId": text(), **more})


_SOURCE: Final = {"model": text("Public name."), "modelSource": const("main")}
_GENERATION: Final[Schema] = {
    "description": "One event of a generation.",
    "oneOf": [
        _generated("started", _SOURCE),
        _generated("delta", {"seq": count("From 0."), "text": text("A piece of the answer.")}),
        _generated("done", _SOURCE),
        _generated("error", {"code": text("As of `turn_error`."), "message": text()}),
    ],
}


def component(kind: str) -> str:
    """Name of the schema of an event's type."""
    return "Event_" + kind


EVENT_SCHEMAS: Final[dict[str, Schema]] = {
    **{component(kind): schema for kind, schema in {**_EVENTS, **_NOTICES}.items()},
    "Event": {
        "description": "The `data` of one frame of the stream. Clients ignore types that they do not know.",
        "oneOf": [ref(component(kind)) for kind in (*_EVENTS, *_NOTICES)],
        "discriminator": {
            "propertyName": "type",
            "mapping": {kind: f"#/components/schemas/{component(kind)}" for kind in (*_EVENTS, *_NOTICES)},
        },
    },
    "GenerationEvent": _GENERATION,
    "RecordedEvent": {
        "description": "An event that a session keeps.",
        "oneOf": [ref(component(kind)) for kind in _EVENTS],
    },
}

EVENTS: Final = array(ref("RecordedEvent"))
