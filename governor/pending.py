"""A pending prompt: accepted and not settled yet. What runs for it, and what its session's subscribers hear of it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import trio

from governor.core.prompts import Outcome, Prompt, PromptState
from governor.history import TurnRecord, error_fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from governor.errors import GovernorError, JsonValue
    from governor.tracing import PromptSpan

_TOLD_S_MAX: Final = 5.0


class Announce(Protocol):
    """Publishes an event of the session."""

    def __call__(
        self,
        event_type: str,
        data: dict[str, JsonValue],
        originator: str | None = None,
        prompt_id: str | None = None,
    ) -> None:
        """See `Session.announce`."""


@dataclass(slots=True, eq=False)
class PendingPrompt:
    """A prompt from its admission until it settles.

    Attributes:
        prompt: its place in the queue.
        record: what callers that ask are told of it.
        announce: publishes its events.
        retry: its text was told by the turn before it, if that one failed.
        on_settled: called once, right after its terminal event was published.
        silent: its text is not told again.
        told: its caller knows that it was accepted, or has had its time to.
        turn: the scope of its turn.
        deadline: the scope of whoever watches its deadline.
        span: its part of a trace, if it has one.
    """

    prompt: Prompt
    record: TurnRecord
    announce: Announce
    retry: bool = False
    on_settled: Callable[[TurnRecord], None] | None = None
    silent: bool = False
    told: trio.Event = field(default_factory=trio.Event)
    turn: trio.CancelScope = field(default_factory=trio.CancelScope)
    deadline: trio.CancelScope = field(default_factory=trio.CancelScope)
    span: PromptSpan | None = None

    @property
    def id(self) -> str:
        """Its id, a UUID."""
        return self.prompt.id

    @property
    def settled(self) -> bool:
        """It has ended for its caller; nothing more is told of it."""
        return self.prompt.state is PromptState.SETTLED

    def active(self) -> AbstractContextManager[object]:
        """What is done inside belongs to the prompt's trace, if it has one."""
        return self.span.active() if self.span is not None else nullcontext()

    async def wait_until_told(self) -> None:
        """Waits until its caller knows that it was accepted, but not for ever: it may never take the answer (S7)."""
        if self.told.is_set():
            return  # the rule: the 202 is out before the turn's task has run at all
        with trio.move_on_after(_TOLD_S_MAX):
            await self.told.wait()
        self.told.set()

    def stop(self) -> None:
        """Nothing runs for it any more."""
        self.turn.cancel()
        self.deadline.cancel()

    # Its events

    def tell_queued(self) -> None:
        """It waits behind others."""
        self._publish("pending_prompt_added", {"text": self.record.text, "queuedAt": self.record.queued_at_ms})

    def tell_started(self, now_ms: int) -> None:
        """Its turn has begun.

        Args:
            now_ms: wall-clock time in Unix milliseconds.
        """
        if self.prompt.queued_at_admission:
            self._publish("pending_prompt_started", {"text": self.record.text})
        if not self.silent:
            self._tell_text("user_message_chunk", self.record.text, serverTimestamp=now_ms, source="bridge-echo")

    def tell_piece(self, text: str) -> None:
        """A piece of the answer came."""
        if not self.settled:  # nothing of a turn follows its terminal event, even if its task has not noticed yet
            self.record.say(text)
            self._tell_text("agent_message_chunk", text)

    def tell_cancelled(self, originator: str | None) -> None:
        """Somebody cancels it."""
        self.announce("prompt_cancelled", {"promptId": self.id}, originator, self.id)

    def tell_end(self, error: GovernorError | None, *, removed: bool) -> None:
        """Its terminal event, and then whatever goes with that. Its record says how it ended."""
        if error is not None:
            self._publish("turn_error", error_fields(error))
        else:
            self._publish("turn_complete", _completion(self.record))
        if self.on_settled is not None:
            self.on_settled(self.record)
        if self.prompt.queued_at_admission or removed:
            self._publish("pending_prompt_completed", {"state": "removed" if removed else "completed"})

    def _tell_text(self, variant: str, text: str, **meta: JsonValue) -> None:
        update: dict[str, JsonValue] = {"sessionUpdate": variant, "content": {"type": "text", "text": text}}
        if meta:
            update["_meta"] = meta
        self.announce("session_update", {"update": update}, self.record.originator, self.id)

    def _publish(self, event_type: str, data: dict[str, JsonValue]) -> None:
        self.announce(event_type, {"promptId": self.id, **data}, self.record.originator, self.id)


def _completion(record: TurnRecord) -> dict[str, JsonValue]:
    """What `turn_complete` tells."""
    told: dict[str, JsonValue] = {"stopReason": record.stop_reason}
    if record.outcome is Outcome.CANCELLED and record.started_at_ms is not None and record.ended_at_ms is not None:
        elapsed_ms = record.ended_at_ms - record.started_at_ms
        told["promptCancelled"] = {"cancelledAt": record.ended_at_ms, "elapsedMs": elapsed_ms}
    return told
