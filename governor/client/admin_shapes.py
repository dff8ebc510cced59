"""What the operator's routes answer, as objects. Pure. docs/admin.md tells what each field means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .fields import flag_of, object_of, objects_of, require_object, require_text, text_of, whole_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.errors import JsonValue

    from .shapes import Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimState:
    """One claim: an inference's hold on a slot.

    Attributes:
        serves: whom it serves, in one line; empty if nobody knows.
        broke: why its connection is gone; None while it lives.
        quarantined: why no counter can prove its end; None if one can.
    """

    id: int
    state: str
    releasable: bool
    age_ms: int
    epoch: int | None
    kind: str
    serves: str
    broke: str | None
    quarantined: str | None
    raw: Raw = field(repr=False)

    @classmethod
    def decode(cls, raw: Raw) -> ClaimState:
        """Reads an entry."""
        serves = object_of(raw, "serves")
        prompt = text_of(serves, "promptId")
        return cls(
            id=whole_of(raw, "id") or 0,
            state=text_of(raw, "state") or "",
            releasable=flag_of(raw, "releasable"),
            age_ms=whole_of(raw, "ageMs") or 0,
            epoch=whole_of(raw, "epoch"),
            kind=text_of(raw, "kind") or "",
            serves=f"prompt {prompt}" if prompt else text_of(serves, "caller") or "",
            broke=text_of(raw, "broke"),
            quarantined=text_of(raw, "quarantined"),
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityState:
    """One identity: a model on a backend.

    Attributes:
        slots, free, held: its slot credits.
        states: claims by state.
        claims: the oldest of them; `claims_total` says how many there are.
        waiting: calls that wait for a credit; `oldest_wait_ms` is for how long the first has.
        pending_prompts: of the sessions whose next prompt goes here.
    """

    id: str
    backend: str
    model: str
    names: tuple[str, ...]
    usable: bool
    problem: str | None
    slots: int
    free: int
    held: int
    hands_out_credits: bool
    states: Mapping[str, int]
    claims: tuple[ClaimState, ...] = field(repr=False)
    claims_total: int
    epoch: int
    contested: bool
    reading_error: str | None
    waiting: int
    oldest_wait_ms: int | None
    pending_prompts: int
    released_unproven: int
    raw: Raw = field(repr=False)

    @classmethod
    def decode(cls, raw: Raw, label: str) -> IdentityState:
        """Reads an entry.

        Raises:
            DaemonProtocolError: it has no id.
        """
        slots, queue = object_of(raw, "credits"), object_of(raw, "queue")
        states, names = object_of(raw, "states"), raw.get("names")
        return cls(
            id=require_text(raw, "id", label),
            backend=text_of(raw, "backend") or "",
            model=text_of(raw, "model") or "",
            names=tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else (),
            usable=flag_of(raw, "usable"),
            problem=text_of(raw, "problem"),
            slots=whole_of(slots, "slots") or 0,
            free=whole_of(slots, "free") or 0,
            held=whole_of(slots, "held") or 0,
            hands_out_credits=flag_of(raw, "handsOutCredits"),
            states={name: whole_of(states, name) or 0 for name in states},
            claims=tuple(ClaimState.decode(item) for item in objects_of(raw, "claims")),
            claims_total=whole_of(raw, "claimsTotal") or 0,
            epoch=whole_of(raw, "epoch") or 0,
            contested=flag_of(raw, "contested"),
            reading_error=text_of(raw, "readingError"),
            waiting=whole_of(queue, "waiting") or 0,
            oldest_wait_ms=whole_of(queue, "oldestAgeMs"),
            pending_prompts=whole_of(object_of(raw, "sessions"), "pendingPrompts") or 0,
            released_unproven=whole_of(object_of(raw, "totals"), "releasedUnproven") or 0,
            raw=raw,
        )

    @classmethod
    def decode_answer(cls, value: JsonValue, label: str) -> IdentityState:
        """Reads an answer, whether the identity is all of it or one of its fields.

        Raises:
            DaemonProtocolError: it tells of no identity.
        """
        raw = require_object(value, label)
        return cls.decode(object_of(raw, "identity") or raw, label)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminState:
    """The governor and its identities at a moment.

    Attributes:
        at_ms: the moment, in Unix milliseconds.
        draining: nothing new is accepted, because an operator wants it so or the governor is stopping.
        stopping: it is stopping.
        identities: a page of them; `next_after` is what to ask for to get the next one, None behind the last.
    """

    at_ms: int
    draining: bool
    stopping: bool
    live_sessions: int
    pending_prompts: int
    identities: tuple[IdentityState, ...]
    next_after: str | None
    raw: Raw = field(repr=False)

    @classmethod
    def decode(cls, value: JsonValue, label: str) -> AdminState:
        """Reads an answer.

        Raises:
            DaemonProtocolError: it is no state.
        """
        raw = require_object(value, label)
        sessions = object_of(raw, "sessions")
        return cls(
            at_ms=whole_of(raw, "atMs") or 0,
            draining=flag_of(raw, "draining"),
            stopping=flag_of(raw, "stopping"),
            live_sessions=whole_of(sessions, "live") or 0,
            pending_prompts=whole_of(sessions, "pendingPrompts") or 0,
            identities=tuple(IdentityState.decode(item, label) for item in objects_of(raw, "identities")),
            next_after=text_of(raw, "nextAfter"),
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartResult:
    """What became of one identity.

    Attributes:
        ok: it was restarted; otherwise `code` and `error` say why not.
        epoch: the one that has begun.
        forgotten: the claims whose slots are free without proof.
        proven: claims whose end the fresh reading has proven.
        open: claims that go on.
    """

    identity: str
    ok: bool
    epoch: int | None
    forgotten: tuple[ClaimState, ...]
    proven: int
    open: int
    code: str | None
    error: str | None

    @classmethod
    def decode(cls, raw: Raw, label: str) -> RestartResult:
        """Reads an entry.

        Raises:
            DaemonProtocolError: it names no identity.
        """
        return cls(
            identity=require_text(raw, "identity", label),
            ok=flag_of(raw, "ok"),
            epoch=whole_of(raw, "epoch"),
            forgotten=tuple(ClaimState.decode(item) for item in objects_of(raw, "forgottenClaims")),
            proven=whole_of(raw, "provenClaims") or 0,
            open=whole_of(raw, "openClaims") or 0,
            code=text_of(raw, "code"),
            error=text_of(raw, "error"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartReport:
    """What a forced restart did: `restarted` identities, and `refused` ones."""

    restarted: int
    refused: int
    results: tuple[RestartResult, ...]
    raw: Raw = field(repr=False)

    @classmethod
    def decode(cls, value: JsonValue, label: str) -> RestartReport:
        """Reads an answer.

        Raises:
            DaemonProtocolError: it is no report.
        """
        raw = require_object(value, label)
        return cls(
            restarted=whole_of(raw, "restarted") or 0,
            refused=whole_of(raw, "refused") or 0,
            results=tuple(RestartResult.decode(item, label) for item in objects_of(raw, "results")),
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReport:
    """What the release of a claim did: which one it was, and how many slots are free now."""

    identity: str
    released: ClaimState
    free_slots: int
    raw: Raw = field(repr=False)

    @classmethod
    def decode(cls, value: JsonValue, label: str) -> ReleaseReport:
        """Reads an answer.

        Raises:
            DaemonProtocolError: it is no report.
        """
        raw = require_object(value, label)
        return cls(
            identity=require_text(raw, "identity", label),
            released=ClaimState.decode(object_of(raw, "released")),
            free_slots=whole_of(raw, "freeSlots") or 0,
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Some of the acts, the newest first; `next_before` is what to ask for to get the next ones."""

    entries: tuple[Raw, ...]
    next_before: int | None

    @classmethod
    def decode(cls, value: JsonValue, label: str) -> AuditPage:
        """Reads an answer.

        Raises:
            DaemonProtocolError: it is no audit log.
        """
        raw = require_object(value, label)
        return cls(entries=objects_of(raw, "entries"), next_before=whole_of(raw, "nextBefore"))
