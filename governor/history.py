"""What became of a session's prompts, for callers that ask instead of listening. Pure, bounded, in memory only.

Pending prompts are all known; of the settled ones the last 64. Texts are kept up to 32768 characters each, the bounds
of qwen serve.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from governor.core.prompts import Outcome

if TYPE_CHECKING:
    from governor.errors import GovernorError, JsonValue

SETTLED_MAX: Final = 64
"""Settled prompts that a session remembers."""
TEXT_CHARS_MAX: Final = 32_768
"""Characters kept of a prompt's text, and of its answer's."""


@dataclass(slots=True, eq=False)
class TurnRecord:
    """One prompt from its acceptance on. Times are Unix milliseconds.

    Attributes:
        prompt_id: its id.
        text: what was asked.
        queued_at_ms: when it was accepted.
        originator: the client id that it came with.
        started_at_ms: when its turn began; None if it never did.
        ended_at_ms: when it settled; None while it is pending.
        outcome: how it settled.
        error: why, if it failed.
        shortened: the end of the text was forgotten.
    """

    prompt_id: str
    text: str
    queued_at_ms: int
    originator: str | None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    outcome: Outcome | None = None
    error: GovernorError | None = None
    shortened: bool = False
    _said: list[str] = field(default_factory=list)
    _said_chars: int = 0

    @property
    def state(self) -> str:
        """`queued`, `running`, `completed`, `cancelled` or `error`."""
        if self.outcome is not None:
            return self.outcome.value
        return "running" if self.started_at_ms is not None else "queued"

    @property
    def stop_reason(self) -> str | None:
        """Why the turn stopped; None while it is pending and when it failed."""
        if self.outcome is Outcome.COMPLETED:
            return "end_turn"
        return "cancelled" if self.outcome is Outcome.CANCELLED else None

    def say(self, text: str) -> None:
        """A piece of the answer came."""
        room = TEXT_CHARS_MAX - self._said_chars
        if room > 0:
            self._said.append(text[:room])
        self._said_chars += len(text)

    def status(self, session_id: str) -> dict[str, JsonValue]:
        """What a caller is told of it, in wire spelling."""
        told: dict[str, JsonValue] = {
            "sessionId": session_id,
            "state": self.state,
            "promptId": self.prompt_id,
            "promptText": self.text[:TEXT_CHARS_MAX],
        }
        if self.shortened or len(self.text) > TEXT_CHARS_MAX:
            told["promptTextTruncated"] = True
        told["queuedAt"] = self.queued_at_ms
        optional: dict[str, JsonValue] = {
            "startedAt": self.started_at_ms,
            "endedAt": self.ended_at_ms,
            "stopReason": self.stop_reason,
            "error": error_fields(self.error) if self.error is not None else None,
            "originatorClientId": self.originator,
        }
        told |= {name: value for name, value in optional.items() if value is not None}
        if self._said:
            told["resultText"] = "".join(self._said)
        if self._said_chars > TEXT_CHARS_MAX:
            told |= {"resultTruncated": True, "resultCode": "RESULT_TEXT_TRUNCATED"}
        return told

    def pending(self) -> dict[str, JsonValue]:
        """Its line in the list of pending prompts, in wire spelling."""
        line: dict[str, JsonValue] = {
            "promptId": self.prompt_id,
            "text": self.text,
            "queuedAt": self.queued_at_ms,
            "state": self.state,
        }
        if self.originator is not None:
            line["originatorClientId"] = self.originator
        return line

    def terminal(self) -> dict[str, JsonValue]:
        """How it settled, for those who were not there, in wire spelling."""
        told: dict[str, JsonValue] = {"v": 1, "promptId": self.prompt_id, "terminal": self.state}
        if self.stop_reason is not None:
            told["stopReason"] = self.stop_reason
        if self.error is not None:
            told["code"] = self.error.code
        told["at"] = self.ended_at_ms
        return told


def error_fields(error: GovernorError) -> dict[str, JsonValue]:
    """An error inside of an event or a status, in wire spelling."""
    return {"message": error.message, "code": error.code}


class TurnHistory:
    """The prompts of one session, in the order of their acceptance.

    Attributes:
        last_ended_ms: when a turn that had begun last ended.
        last_error: why the last turn that had begun failed; None if it did not, or another has begun.
    """

    def __init__(self) -> None:
        self.last_ended_ms: int | None = None
        self.last_error: GovernorError | None = None
        self._pending: dict[str, TurnRecord] = {}
        self._settled: dict[str, TurnRecord] = {}

    def admit(self, prompt_id: str, text: str, now_ms: int, originator: str | None) -> TurnRecord:
        """A prompt was accepted."""
        record = self._pending[prompt_id] = TurnRecord(prompt_id, text, now_ms, originator)
        return record

    def start(self, record: TurnRecord, now_ms: int) -> None:
        """Its turn begins."""
        record.started_at_ms = now_ms
        self.last_error = None

    def settle(self, record: TurnRecord, outcome: Outcome, error: GovernorError | None, now_ms: int) -> None:
        """It has its outcome; the oldest settled one is forgotten where there are too many."""
        record.outcome, record.error, record.ended_at_ms = outcome, error, now_ms
        record.shortened = len(record.text) > TEXT_CHARS_MAX
        record.text = record.text[:TEXT_CHARS_MAX]
        del self._pending[record.prompt_id]
        self._settled[record.prompt_id] = record
        if len(self._settled) > SETTLED_MAX:
            del self._settled[next(iter(self._settled))]
        if record.started_at_ms is not None:
            self.last_ended_ms = now_ms
            self.last_error = error

    def get(self, prompt_id: str) -> TurnRecord | None:
        """The prompt of this id, if it is still known."""
        return self._pending.get(prompt_id) or self._settled.get(prompt_id)

    def current(self) -> TurnRecord | None:
        """The running prompt, else the one that is next, else the one that settled last."""
        if self._pending:
            return next(iter(self._pending.values()))
        return next(reversed(self._settled.values()), None)

    @property
    def pending(self) -> list[TurnRecord]:
        """Accepted and not settled, in order."""
        return list(self._pending.values())

    @property
    def settled(self) -> list[TurnRecord]:
        """Settled and still known, the oldest first."""
        return list(self._settled.values())
