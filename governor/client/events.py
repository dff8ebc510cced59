"""A session's events as objects, one class for each type that the server sends. Pure.

An event of a type that is not known here is an `UnknownEvent` with all its data: servers learn new types, and a client
must neither stop at one nor lose it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict

from .fields import decode_json, object_of, text_of, whole_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from governor.errors import JsonValue

_SAFE_INTEGER_MAX: Final = 2**53 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonEvent:
    """What every event has.

    Attributes:
        type: its name on the wire.
        id: its number in the session, from 1; None for a notice that only this reader gets.
        prompt_id: the prompt it tells of, if it tells of one.
        data: all its data as it came.
        originator_client_id: the client that caused it, if it is known.
        server_timestamp_ms: when it was published, in Unix milliseconds.
    """

    type: str
    id: int | None = None
    prompt_id: str | None = None
    data: Mapping[str, JsonValue]
    originator_client_id: str | None = None
    server_timestamp_ms: int | None = None


class UnknownEvent(DaemonEvent):
    """An event of a type that this version of the client does not know."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPromptAdded(DaemonEvent):
    """A prompt was accepted that must wait for its turn."""

    text: str
    queued_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPromptStarted(DaemonEvent):
    """The turn of a prompt that had to wait has come."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUpdate(DaemonEvent):
    """Something happened during a turn.

    Attributes:
        variant: what; `agent_message_chunk` is a piece of the answer.
        text: the text that belongs to it; empty if none does.
    """

    variant: str
    text: str


class UserMessageChunk(SessionUpdate):
    """The prompt, told to all who listen."""

    __slots__ = ()


class AgentMessageChunk(SessionUpdate):
    """A piece of the answer."""

    __slots__ = ()


class AgentThoughtChunk(SessionUpdate):
    """A piece of what a model thinks before it answers."""

    __slots__ = ()


class PromptCancelled(DaemonEvent):
    """A cancellation was asked for; the turn's end follows."""

    __slots__ = ()


class TerminalEvent(DaemonEvent):
    """The one event with which a prompt ends for its caller (S7)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnComplete(TerminalEvent):
    """The turn has ended as it should, or was cancelled.

    Attributes:
        stop_reason: `end_turn`, `cancelled`, or another that the server may know.
    """

    stop_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnError(TerminalEvent):
    """The turn has failed, or its deadline has passed, or its session has ended."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPromptCompleted(DaemonEvent):
    """A prompt that had to wait is over; `state` is `completed` or `removed`."""

    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSwitched(DaemonEvent):
    """The next turns go to another model."""

    model_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSwitchFailed(DaemonEvent):
    """There is no such model."""

    requested_model_id: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMetadataUpdated(DaemonEvent):
    """The session was named."""

    display_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBranched(DaemonEvent):
    """A new session begins with the texts of this one."""

    new_session_id: str
    display_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded(DaemonEvent):
    """The session is over, and nothing comes after this event."""

    reason: str


class SessionClosed(SessionEnded):
    """Somebody, or the server, closed the session."""

    __slots__ = ()


class SessionDied(SessionEnded):
    """The server ended together with the session."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayComplete(DaemonEvent):
    """Notice: what comes from here on happens now."""

    replayed_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateResyncRequired(DaemonEvent):
    """Notice: some events can no longer be had; what was built from events must be asked for anew.

    Attributes:
        reason: `ring_evicted` (too old), `epoch_reset` (the log is another one), or what else the server may say.
    """

    reason: str
    last_delivered_id: int | None
    earliest_available_id: int | None


class SlowClientWarning(DaemonEvent):
    """Notice: this reader takes its events too slowly and will be disconnected if it goes on."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEvicted(DaemonEvent):
    """Notice: this reader was too slow; the stream ends here and is continued on a new connection."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFailed(DaemonEvent):
    """Notice: the server cannot go on with this stream."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSnapshot(DaemonEvent):
    """Notice: how the session stands between what was replayed and what happens."""

    current_model_id: str | None


def decode_event(text: str) -> DaemonEvent | None:
    """The event that the data of one frame is; None if it is none, which is to be passed over."""
    try:
        envelope = decode_json(text)
    except ValueError:
        return None
    return event_of(envelope)


def event_of(envelope: JsonValue) -> DaemonEvent | None:
    """The event of an envelope: `v` is 1, `type` a string, `id` a positive whole number or absent."""
    if not isinstance(envelope, dict) or envelope.get("v") != 1 or isinstance(envelope["v"], bool):
        return None
    event_type, event_id = text_of(envelope, "type"), whole_of(envelope, "id")
    if event_type is None or ("id" in envelope and (event_id is None or not 0 < event_id <= _SAFE_INTEGER_MAX)):
        return None
    data = object_of(envelope, "data")
    common: _Common = {
        "type": event_type,
        "id": event_id,
        "prompt_id": text_of(data, "promptId") or text_of(envelope, "promptId"),
        "data": data,
        "originator_client_id": text_of(envelope, "originatorClientId"),
        "server_timestamp_ms": whole_of(object_of(envelope, "_meta"), "serverTimestamp"),
    }
    return _KINDS.get(event_type, _unknown)(common)


class _Common(TypedDict):
    type: str
    id: int | None
    prompt_id: str | None
    data: Mapping[str, JsonValue]
    originator_client_id: str | None
    server_timestamp_ms: int | None


def _unknown(common: _Common) -> DaemonEvent:
    return UnknownEvent(**common)


def _said(common: _Common, key: str, otherwise: str = "") -> str:
    return text_of(common["data"], key) or otherwise


def _update(common: _Common) -> DaemonEvent:
    update = object_of(common["data"], "update")
    variant = text_of(update, "sessionUpdate") or ""
    kind = _UPDATES.get(variant, SessionUpdate)
    return kind(**common, variant=variant, text=text_of(object_of(update, "content"), "text") or "")


def _completed(common: _Common) -> DaemonEvent:
    return TurnComplete(**common, stop_reason=_said(common, "stopReason", "end_turn"))


def _failed(common: _Common) -> DaemonEvent:
    code, message = _said(common, "code", "turn_error"), _said(common, "message", "Prompt failed")
    return TurnError(**common, code=code, message=message)


def _resync(common: _Common) -> DaemonEvent:
    data = common["data"]
    last, earliest = whole_of(data, "lastDeliveredId"), whole_of(data, "earliestAvailableId")
    reason = _said(common, "reason")
    return StateResyncRequired(**common, reason=reason, last_delivered_id=last, earliest_available_id=earliest)


def _switch_failed(common: _Common) -> DaemonEvent:
    return ModelSwitchFailed(
        **common, requested_model_id=_said(common, "requestedModelId"), error=_said(common, "error")
    )


def _branched(common: _Common) -> DaemonEvent:
    name = text_of(common["data"], "displayName")
    return SessionBranched(**common, new_session_id=_said(common, "newSessionId"), display_name=name)


_UPDATES: Final[dict[str, type[SessionUpdate]]] = {
    "user_message_chunk": UserMessageChunk,
    "agent_message_chunk": AgentMessageChunk,
    "agent_thought_chunk": AgentThoughtChunk,
}
_KINDS: Final[dict[str, Callable[[_Common], DaemonEvent]]] = {
    "pending_prompt_added": lambda common: PendingPromptAdded(
        **common, text=_said(common, "text"), queued_at_ms=whole_of(common["data"], "queuedAt")
    ),
    "pending_prompt_started": lambda common: PendingPromptStarted(**common, text=_said(common, "text")),
    "session_update": _update,
    "prompt_cancelled": lambda common: PromptCancelled(**common),
    "turn_complete": _completed,
    "turn_error": _failed,
    "pending_prompt_completed": lambda common: PendingPromptCompleted(**common, state=_said(common, "state")),
    "model_switched": lambda common: ModelSwitched(**common, model_id=_said(common, "modelId")),
    "model_switch_failed": _switch_failed,
    "session_metadata_updated": lambda common: SessionMetadataUpdated(
        **common, display_name=text_of(common["data"], "displayName")
    ),
    "session_branched": _branched,
    "session_closed": lambda common: SessionClosed(**common, reason=_said(common, "reason")),
    "session_died": lambda common: SessionDied(**common, reason=_said(common, "reason")),
    "replay_complete": lambda common: ReplayComplete(
        **common, replayed_count=whole_of(common["data"], "replayedCount") or 0
    ),
    "state_resync_required": _resync,
    "slow_client_warning": lambda common: SlowClientWarning(**common),
    "client_evicted": lambda common: ClientEvicted(**common, reason=_said(common, "reason")),
    "stream_error": lambda common: StreamFailed(**common, error=_said(common, "error")),
    "session_snapshot": lambda common: SessionSnapshot(
        **common, current_model_id=text_of(common["data"], "currentModelId")
    ),
}
