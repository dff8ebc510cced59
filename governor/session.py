"""A session: prompts in order, one at a time, and what its subscribers hear of them (S1 to S7, A5).

Everything that changes what a caller sees is synchronous. `_settle` is the only way a prompt ends: it publishes
the terminal event, gives the slot back and starts the next prompt, in that order and without a checkpoint.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import trio

from governor.core.events import EventLog, SubscriberLimits
from governor.core.prompts import Outcome, Prompt, PromptQueue, PromptState
from governor.errors import (
    GovernorError,
    PromptDeadlineError,
    SessionClosedError,
    SessionNotFoundError,
    ShutdownError,
)
from governor.turn import run_turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.config import LimitsConfig
    from governor.core.events import Frame, Subscription
    from governor.errors import JsonValue
    from governor.turn import ServedModel

_log = structlog.get_logger(__name__)
_GATE_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Admission:
    """What the caller of an accepted prompt is told.

    Attributes:
        prompt_id: a UUID.
        last_event_id: newest event before the prompt was queued; replaying from here misses nothing of its turn.
        event_epoch: the life of the event log that the id belongs to.
    """

    prompt_id: str
    last_event_id: int
    event_epoch: str


@dataclass(slots=True, eq=False)
class _Turn:
    """A pending prompt and what runs for it."""

    prompt: Prompt
    text: str
    originator: str | None
    gate: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    deadline_scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    cancel_announced: bool = False


class EventStream:
    """One subscriber's view of a session's events, to be closed when done."""

    def __init__(
        self,
        log: EventLog,
        limits: SubscriberLimits,
        *,
        after_id: int | None,
        epoch: str | None,
        on_close: Callable[[], None],
    ) -> None:
        self._log = log
        self._on_close = on_close
        self._woken = trio.Event()
        self._subscription: Subscription = log.subscribe(self._wake, limits=limits, after_id=after_id, epoch=epoch)

    @property
    def evicted(self) -> bool:
        """The reader was too slow; after the notice nothing more comes."""
        return self._subscription.evicted

    async def next_frame(self) -> Frame | None:
        """The next frame; None when the session is over or the reader was evicted. Cancelled, it takes none."""
        await trio.lowlevel.checkpoint()
        while True:
            frame = self._subscription.take()
            if frame is not None:
                return frame
            if self._subscription.closed:
                return None
            self._woken = trio.Event()
            await self._woken.wait()

    def close(self) -> None:
        """Ends the subscription. Synchronous, any number of times."""
        self._log.unsubscribe(self._subscription)
        self._on_close()

    def _wake(self) -> None:
        self._woken.set()


class Session:
    """One ordered conversation with one model.

    Args:
        session_id: a UUID.
        served: the model its prompts go to.
        limits: bounds on prompts, answers and subscribers.
        nursery: owns the session's turns; outlives the session.
        now_ms: wall-clock time in Unix milliseconds, for event timestamps.
    """

    def __init__(
        self,
        session_id: str,
        served: ServedModel,
        limits: LimitsConfig,
        nursery: trio.Nursery,
        now_ms: Callable[[], int],
    ) -> None:
        self.id = session_id
        self.served = served
        self.created_at_ms = now_ms()
        self.last_active_s = trio.current_time()
        self.closed = False
        self.clients: dict[str, int] = {}
        self._limits = limits
        self._nursery = nursery
        self._now_ms = now_ms
        self._queue = PromptQueue(session_id, limits.max_pending_prompts_per_session)
        self._turns: dict[str, _Turn] = {}
        self.log = EventLog(
            str(uuid.uuid4()),
            ring_size=limits.event_ring_size,
            ring_bytes=limits.event_ring_bytes,
            max_subscribers=limits.max_subscribers_per_session,
        )

    @property
    def pending_count(self) -> int:
        """Accepted and not yet settled prompts (S1)."""
        return len(self._queue)

    @property
    def has_active_prompt(self) -> bool:
        """A prompt's turn is running."""
        return self._queue.running is not None

    # Prompts

    def admit(
        self, text: str, *, deadline_ms: int | None = None, originator: str | None = None, cancelled: bool = False
    ) -> Admission:
        """Accepts a prompt in one synchronous step (S2). Its turn begins when `let_start` is called.

        Args:
            text: what the model gets.
            deadline_ms: the caller's own deadline, bounded by the operator's; without the operator's there is none.
            originator: client id, copied into the prompt's events.
            cancelled: the caller has already cancelled.

        Raises:
            SessionNotFoundError: the session is closing.
            PromptCancelledError: see `cancelled`.
            PromptQueueFullError: as many prompts are pending as may be.
        """
        if self.closed:
            raise SessionNotFoundError(self.id, closing=True)
        admission = Admission(str(uuid.uuid4()), self.log.last_id, self.log.epoch)
        prompt = self._queue.admit(admission.prompt_id, trio.current_time(), cancelled=cancelled)
        turn = _Turn(prompt, text, originator)
        self._turns[prompt.id] = turn
        self._touch()
        if prompt.queued_at_admission:
            queued: dict[str, JsonValue] = {"text": text, "queuedAt": self._now_ms()}
            self._publish(turn, "pending_prompt_added", queued)
        limit_ms = self._limits.prompt_deadline_ms
        if limit_ms is not None:
            effective_ms = min(limit_ms, deadline_ms) if deadline_ms is not None else limit_ms
            self._nursery.start_soon(self._watch_deadline, turn, effective_ms)
        self._start_next()
        return admission

    def let_start(self, prompt_id: str) -> None:
        """The caller knows that its prompt was accepted, so the turn's events may reach it (S7)."""
        turn = self._turns.get(prompt_id)
        if turn is not None:
            turn.gate.set()

    def cancel(self, originator: str | None = None) -> None:
        """Ends the running prompt for its caller; its claim goes on. Queued prompts remain."""
        running = self._queue.running
        if running is None:
            self.log.publish(
                "prompt_cancelled", {"sessionId": self.id}, timestamp_ms=self._now_ms(), originator=originator
            )
            return
        self._cancel_turn(self._turns[running.id])

    def remove(self, prompt_id: str) -> bool:
        """Takes one pending prompt out, queued or running. Returns False if it is not pending."""
        turn = self._turns.get(prompt_id)
        if turn is None:
            return False
        self._cancel_turn(turn, removed=turn.prompt.state is PromptState.QUEUED)
        return True

    def close(self) -> None:
        """The client closes the session: every pending prompt gets its terminal event, then the stream ends."""
        self._end(SessionClosedError(), "session_closed", {"sessionId": self.id, "reason": "client_close"})

    def die(self, reason: str) -> None:
        """The governor ends the session."""
        self._end(ShutdownError(), "session_died", {"sessionId": self.id, "reason": reason})

    def subscribe(self, *, after_id: int | None, epoch: str | None, max_frames: int | None = None) -> EventStream:
        """A new subscriber.

        Raises:
            SubscribersFullError: there are as many as may be.
        """
        limits = SubscriberLimits(
            frames=max_frames if max_frames is not None else self._limits.subscriber_queue_frames,
            bytes=self._limits.subscriber_queue_bytes,
        )
        self._touch()
        return EventStream(self.log, limits, after_id=after_id, epoch=epoch, on_close=self._touch)

    def _touch(self) -> None:
        self.last_active_s = trio.current_time()

    # One turn

    def _start_next(self) -> None:
        prompt = self._queue.start_next()
        if prompt is not None:
            self._nursery.start_soon(self._run, self._turns[prompt.id], name=f"turn {prompt.id}")

    async def _run(self, turn: _Turn) -> None:
        with turn.scope:
            await self._wait_until_told(turn)
            # Who was woken in the same moment as it was cancelled finds out only at its next checkpoint.
            await trio.lowlevel.checkpoint_if_cancelled()
            error = await self._answer(turn)
            self._settle(turn, Outcome.COMPLETED if error is None else Outcome.FAILED, error)

    async def _answer(self, turn: _Turn) -> GovernorError | None:
        """Everything of a turn but its terminal event; returns why there is no whole answer."""
        try:
            if turn.prompt.queued_at_admission:
                self._publish(turn, "pending_prompt_started", {"text": turn.text})
            self._publish_chunk(turn, "user_message_chunk", turn.text, echo=True)
            await run_turn(
                self.served,
                turn.text,
                key=self.id,
                request_id=turn.prompt.id,
                max_answer_bytes=self._limits.max_answer_bytes,
                emit=lambda text: self._publish_chunk(turn, "agent_message_chunk", text),
            )
        except GovernorError as error:
            return error
        except Exception:  # noqa: BLE001  # a fault in one turn costs neither its terminal event (S7) nor others
            _log.exception("turn_failed", session=self.id, prompt=turn.prompt.id)
            return GovernorError("internal error while running the turn")
        return None

    async def _watch_deadline(self, turn: _Turn, deadline_ms: int) -> None:
        with turn.deadline_scope:
            await trio.sleep_until(turn.prompt.admitted_at_s + deadline_ms / 1000)
            await self._wait_until_told(turn)
            self._settle(turn, Outcome.FAILED, PromptDeadlineError(deadline_ms))

    async def _wait_until_told(self, turn: _Turn) -> None:
        with trio.move_on_after(_GATE_S_MAX):
            await turn.gate.wait()

    def _cancel_turn(self, turn: _Turn, *, removed: bool = False) -> None:
        if not removed and not turn.cancel_announced:
            turn.cancel_announced = True
            self._publish(turn, "prompt_cancelled", {})
        self._settle(turn, Outcome.CANCELLED, removed=removed)

    def _settle(
        self, turn: _Turn, outcome: Outcome, error: GovernorError | None = None, *, removed: bool = False
    ) -> None:
        """Ends a prompt for its caller, once (S3, S7)."""
        if turn.prompt.state is PromptState.SETTLED:
            return
        if error is not None:
            failed: dict[str, JsonValue] = {"message": error.message, "code": error.code}
            self._publish(turn, "turn_error", failed)
        else:
            stop_reason = "cancelled" if outcome is Outcome.CANCELLED else "end_turn"
            self._publish(turn, "turn_complete", {"stopReason": stop_reason})
        if turn.prompt.queued_at_admission or removed:
            self._publish(turn, "pending_prompt_completed", {"state": "removed" if removed else "completed"})
        self._queue.settle(turn.prompt, outcome)
        del self._turns[turn.prompt.id]
        turn.scope.cancel()
        turn.deadline_scope.cancel()
        self._touch()
        if not self.closed:
            self._start_next()

    def _end(self, error: GovernorError, event_type: str, data: dict[str, JsonValue]) -> None:
        if self.closed:
            return
        self.closed = True
        for turn in list(self._turns.values()):
            self._settle(turn, Outcome.FAILED, error)
        self.log.publish(event_type, data, timestamp_ms=self._now_ms())
        self.log.close()

    # Events

    def _publish(self, turn: _Turn, event_type: str, data: dict[str, JsonValue]) -> None:
        self.log.publish(
            event_type,
            {"sessionId": self.id, "promptId": turn.prompt.id, **data},
            timestamp_ms=self._now_ms(),
            prompt_id=turn.prompt.id,
            originator=turn.originator,
        )

    def _publish_chunk(self, turn: _Turn, variant: str, text: str, *, echo: bool = False) -> None:
        if turn.prompt.state is PromptState.SETTLED:
            return  # nothing of a turn follows its terminal event, even if its task has not noticed yet
        update: dict[str, JsonValue] = {"sessionUpdate": variant, "content": {"type": "text", "text": text}}
        if echo:
            update["_meta"] = {"serverTimestamp": self._now_ms(), "source": "bridge-echo"}
        self.log.publish(
            "session_update",
            {"sessionId": self.id, "update": update},
            timestamp_ms=self._now_ms(),
            prompt_id=turn.prompt.id,
            originator=turn.originator,
        )
