"""What is asked and what is answered, as objects. Pure.

Every answer keeps what it was made of in `raw`: a server may say more than this version of the client knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from .events import event_of
from .fields import flag_of, object_of, objects_of, require_object, require_text, text_of, whole_of
from .reservations import DEFAULT_MAX_PENDING_PROMPTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.errors import JsonValue

    from .events import DaemonEvent

Raw: TypeAlias = "Mapping[str, JsonValue]"
Body: TypeAlias = "dict[str, JsonValue]"
PromptInput: TypeAlias = "str | PromptRequest"
"""A prompt: its text, or more than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSessionRequest:
    """What a session is to be; see `POST /session`.

    Attributes:
        model_service_id: public name of the model; the server's first one if it is left out.
        session_scope: `single` attaches to the session that all callers of the model share, or creates it; `thread`
            always makes a new one. The server's default is `single`.
        session_id: the id of a new session, a UUID.
        workspace_cwd: an absolute path.
        extra: further fields, in wire spelling.
    """

    model_service_id: str | None = None
    session_scope: Literal["single", "thread"] | None = None
    session_id: str | None = None
    workspace_cwd: str | None = None
    extra: Raw = field(default_factory=dict)

    def body(self) -> Body:
        """As it goes over the wire."""
        return {
            **self.extra,
            **_given(
                cwd=self.workspace_cwd,
                sessionId=self.session_id,
                modelServiceId=self.model_service_id,
                sessionScope=self.session_scope,
            ),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSessionRequest:
    """How to come back to a session; see `POST /session/:id/load`.

    Attributes:
        workspace_cwd: an absolute path.
        live_replay_mode: how the events of the turn that runs are told again; the server's default is `full`.
        compacted_replay_mode: the same for the turns that are over.
        extra: further fields, in wire spelling.
    """

    workspace_cwd: str | None = None
    live_replay_mode: Literal["full", "summary"] | None = None
    compacted_replay_mode: Literal["full", "summary"] | None = None
    extra: Raw = field(default_factory=dict)

    def body(self) -> Body:
        """As it goes over the wire."""
        return {
            **self.extra,
            **_given(
                cwd=self.workspace_cwd,
                liveReplayMode=self.live_replay_mode,
                compactedReplayMode=self.compacted_replay_mode,
            ),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """A prompt; see `POST /session/:id/prompt`.

    Attributes:
        prompt: its text, or its content blocks.
        deadline_ms: the caller's deadline in milliseconds from now; it only shortens the operator's.
        retry: the text is that of the turn that failed just before, and is not told again.
        extra: further fields, in wire spelling.
    """

    prompt: str | Sequence[Raw]
    deadline_ms: int | None = None
    retry: bool = False
    extra: Raw = field(default_factory=dict)

    def body(self) -> Body:
        """As it goes over the wire."""
        blocks: list[JsonValue] = (
            [{"type": "text", "text": self.prompt}]
            if isinstance(self.prompt, str)
            else [dict(block) for block in self.prompt]
        )
        return {
            **self.extra,
            "prompt": blocks,
            **_given(deadlineMs=self.deadline_ms, retry=True if self.retry else None),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSession:
    """A session that the caller made or attached to.

    Attributes:
        session_id: its id.
        attached: it was there before.
        client_id: who the caller is in this session, for `X-Qwen-Client-Id`.
        workspace_cwd: the path it belongs to.
        model_service_id: the model that its prompts go to, if the server says so.
        has_active_prompt: a prompt is running.
    """

    session_id: str
    attached: bool
    client_id: str | None
    workspace_cwd: str
    model_service_id: str | None
    has_active_prompt: bool
    raw: Raw = field(repr=False)

    @classmethod
    def decode(cls, value: JsonValue, label: str) -> DaemonSession:
        """Reads an answer.

        Raises:
            DaemonProtocolError: it names no session.
        """
        raw = require_object(value, label)
        return cls(**_session(raw, label), raw=raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredSession(DaemonSession):
    """A session that the caller came back to, by load, resume or branch.

    Attributes:
        last_event_id: the event from which a stream continues what this answer tells.
        event_epoch: the life of the event log that it belongs to.
        compacted_replay: the events up to the end of the last turn that is over (`load` only).
        live_journal: the events since (`load` only).
        partial: the oldest events are missing.
        display_name: the session's name, if it has one.
    """

    last_event_id: int | None
    event_epoch: str | None
    compacted_replay: tuple[DaemonEvent, ...] = field(repr=False)
    live_journal: tuple[DaemonEvent, ...] = field(repr=False)
    partial: bool
    display_name: str | None

    @classmethod
    def decode(cls, value: JsonValue, label: str) -> RestoredSession:
        """Reads an answer.

        Raises:
            DaemonProtocolError: it names no session.
        """
        raw = require_object(value, label)
        return cls(
            **_session(raw, label),
            raw=raw,
            last_event_id=whole_of(raw, "lastEventId"),
            event_epoch=text_of(raw, "eventEpoch"),
            compacted_replay=_events(raw, "compactedReplay"),
            live_journal=_events(raw, "liveJournal"),
            partial=flag_of(raw, "partial"),
            display_name=text_of(raw, "displayName"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """What a session says about itself.

    Attributes:
        session_id: its id.
        display_name: its name, if it has one.
        model_service_id: the model that its prompts go to.
        client_count: registered clients.
        has_active_prompt: a prompt is running.
        created_at: when it was made, as an ISO 8601 timestamp.
        turn_error: `message` and `code` if the last turn failed.
    """

    session_id: str
    display_name: str | None
    model_service_id: str | None
    client_count: int
    has_active_prompt: bool
    created_at: str | None
    turn_error: Raw | None
    raw: Raw = field(repr=False)

    @classmethod
    def decode(cls, value: JsonValue, label: str) -> SessionSummary:
        """Reads an answer.

        Raises:
            DaemonProtocolError: it names no session.
        """
        raw = require_object(value, label)
        return cls(
            session_id=require_text(raw, "sessionId", label),
            display_name=text_of(raw, "displayName"),
            model_service_id=text_of(raw, "modelServiceId"),
            client_count=whole_of(raw, "clientCount") or 0,
            has_active_prompt=flag_of(raw, "hasActivePrompt"),
            created_at=text_of(raw, "createdAt"),
            turn_error=object_of(raw, "turnError") or None,
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """Some of the live sessions, the newest first.

    Attributes:
        sessions: these.
        next_cursor: what to ask for to get the next ones; None behind the last.
    """

    sessions: tuple[SessionSummary, ...]
    next_cursor: str | None

    @classmethod
    def decode(cls, value: JsonValue, label: str) -> SessionPage:
        """Reads an answer.

        Raises:
            DaemonProtocolError: it is no page of sessions.
        """
        raw = require_object(value, label)
        sessions = tuple(SessionSummary.decode(dict(item), label) for item in objects_of(raw, "sessions"))
        return cls(sessions=sessions, next_cursor=text_of(raw, "nextCursor"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAccepted:
    """The 202 of a prompt.

    Attributes:
        prompt_id: its id.
        last_event_id: a stream from here misses nothing of its turn; None from servers that do not say.
        event_epoch: the life of the event log that it belongs to.
    """

    prompt_id: str
    last_event_id: int | None
    event_epoch: str | None

    @classmethod
    def decode(cls, value: JsonValue, label: str) -> PromptAccepted:
        """Reads an answer.

        Raises:
            DaemonProtocolError: it names no prompt.
        """
        raw = require_object(value, label)
        return cls(
            prompt_id=require_text(raw, "promptId", label),
            last_event_id=whole_of(raw, "lastEventId"),
            event_epoch=text_of(raw, "eventEpoch"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResult:
    """How a prompt ended, if it did not fail.

    Attributes:
        stop_reason: `end_turn`, `cancelled`, or another that the server may know.
        text: the answer.
        complete: False if parts of the answer could not be had any more (the server keeps only so many events).
        prompt_id: its id; None from a server that answers prompts in one piece.
        raw: the data of its terminal event.
    """

    stop_reason: str
    text: str
    complete: bool
    prompt_id: str | None
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPrompt:
    """An accepted prompt that has not ended; `state` is `running` or `queued`, `queued_at_ms` in Unix milliseconds."""

    prompt_id: str
    text: str
    state: str
    queued_at_ms: int | None
    originator_client_id: str | None

    @classmethod
    def decode(cls, raw: Raw, label: str) -> PendingPrompt:
        """Reads an entry.

        Raises:
            DaemonProtocolError: it names no prompt.
        """
        return cls(
            prompt_id=require_text(raw, "promptId", label),
            text=text_of(raw, "text") or "",
            state=text_of(raw, "state") or "",
            queued_at_ms=whole_of(raw, "queuedAt"),
            originator_client_id=text_of(raw, "originatorClientId"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStatus:
    """What became of a prompt.

    Attributes:
        state: `idle`, `queued`, `running`, `completed`, `cancelled` or `error`.
        stop_reason: of a turn that ended.
        error_code, error_message: of a turn that failed.
        result_text: what the model has said so far, or its beginning.
        result_truncated: `result_text` is only the beginning.
    """

    session_id: str
    state: str
    prompt_id: str | None
    stop_reason: str | None
    error_code: str | None
    error_message: str | None
    result_text: str
    result_truncated: bool
    raw: Raw = field(repr=False)

    @classmethod
    def decode(cls, value: JsonValue, label: str) -> TurnStatus:
        """Reads an answer.

        Raises:
            DaemonProtocolError: it tells of no turn.
        """
        raw = require_object(value, label)
        error = object_of(raw, "error")
        return cls(
            session_id=require_text(raw, "sessionId", label),
            state=require_text(raw, "state", label),
            prompt_id=text_of(raw, "promptId"),
            stop_reason=text_of(raw, "stopReason"),
            error_code=text_of(error, "code"),
            error_message=text_of(error, "message"),
            result_text=text_of(raw, "resultText") or "",
            result_truncated=flag_of(raw, "resultTruncated"),
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a server can do.

    Attributes:
        features: what works, by the protocol's names; test for these, not for versions.
        models: public names of the models.
        max_pending_prompts_per_session: the server's limit as it is told; None where there is none. Servers that tell
            nothing have the protocol's default.
        limits: all the limits, by their names on the wire.
        governor_version: the server's version, if it is a governor.
    """

    features: frozenset[str]
    models: tuple[str, ...]
    max_pending_prompts_per_session: int | None
    limits: Raw
    governor_version: str | None
    raw: Raw = field(repr=False)

    @classmethod
    def decode(cls, value: JsonValue, label: str) -> Capabilities:
        """Reads an answer.

        Raises:
            DaemonProtocolError: it is no object.
        """
        raw = require_object(value, label)
        limits, features = object_of(raw, "limits"), raw.get("features")
        told = "maxPendingPromptsPerSession" in limits
        models = (text_of(model, "id") for model in objects_of(raw, "modelServices"))
        return cls(
            features=frozenset(item for item in features if isinstance(item, str))
            if isinstance(features, list)
            else frozenset(),
            models=tuple(name for name in models if name is not None),
            max_pending_prompts_per_session=whole_of(limits, "maxPendingPromptsPerSession")
            if told
            else DEFAULT_MAX_PENDING_PROMPTS,
            limits=limits,
            governor_version=text_of(raw, "governorVersion"),
            raw=raw,
        )


def _given(**fields: JsonValue) -> Body:
    return {name: value for name, value in fields.items() if value is not None}


def _events(raw: Raw, key: str) -> tuple[DaemonEvent, ...]:
    found = (event_of(dict(item)) for item in objects_of(raw, key))
    return tuple(event for event in found if event is not None)


class _Session(TypedDict):
    session_id: str
    attached: bool
    client_id: str | None
    workspace_cwd: str
    model_service_id: str | None
    has_active_prompt: bool


def _session(raw: Raw, label: str) -> _Session:
    return {
        "session_id": require_text(raw, "sessionId", label),
        "attached": flag_of(raw, "attached"),
        "client_id": text_of(raw, "clientId"),
        "workspace_cwd": text_of(raw, "workspaceCwd") or "/",
        "model_service_id": text_of(raw, "modelServiceId"),
        "has_active_prompt": flag_of(raw, "hasActivePrompt"),
    }
