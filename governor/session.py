"""A session: prompts in order, one at a time, and what its subscribers hear of them (S1 to S7, A5).

Everything that changes what a caller sees is synchronous. `_settle` is the only way a prompt ends: it publishes
the terminal event, gives the slot back and starts the next prompt, in that order and without a checkpoint.
"""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import trio

from governor.clients import Clients
from governor.core.events import SubscriberLimits
from governor.core.prompts import Outcome, Prompt, PromptQueue, PromptState
from governor.entrance import Entrance
from governor.errors import (
    GovernorError,
    PromptDeadlineError,
    PromptQueueFullError,
    SessionClosedError,
    SessionNotFoundError,
    ShutdownError,
)
from governor.generation import GENERATION_MS_MAX, Generation
from governor.history import TurnHistory, TurnRecord, error_fields
from governor.journal import SessionLog
from governor.places import Places
from governor.stream import EventStream
from governor.totals import ServiceTotals
from governor.turn import run_turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from governor.config import LimitsConfig
    from governor.errors import JsonValue
    from governor.journal import Kept
    from governor.tracing import PromptSpan, Tracer
    from governor.turn import ServedModel

__all__ = ["Admission", "EventStream", "Session"]

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
    record: TurnRecord
    retry: bool
    on_settled: Callable[[TurnRecord], None] | None = None
    silent: bool = False
    gate: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    deadline_scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    cancel_announced: bool = False
    span: PromptSpan | None = None

    def active(self) -> AbstractContextManager[object]:
        """What is done inside belongs to the prompt's trace, if it has one."""
        return self.span.active() if self.span is not None else nullcontext()


class Session:
    """One ordered conversation with one model.

    Args:
        session_id: a UUID.
        served: the model its prompts go to.
        limits: bounds on prompts, answers and subscribers.
        nursery: owns the session's turns; outlives the session.
        now_ms: wall-clock time in Unix milliseconds, for event timestamps.
        totals: what is counted over all sessions.
        entrance: whether prompts are let in.
        tracer: is told of its prompts; None where nothing is traced.

    Attributes:
        number: tells the order in which a governor's sessions were made.
        display_name: what its callers call it.
        clients: who uses it.
        history: what became of its prompts.
        log: what was told of them.
        when_ended: called once, when the session has ended. They must neither block nor raise.
    """

    def __init__(
        self,
        session_id: str,
        served: ServedModel,
        limits: LimitsConfig,
        nursery: trio.Nursery,
        now_ms: Callable[[], int],
        *,
        number: int = 0,
        totals: ServiceTotals | None = None,
        entrance: Entrance | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.id = session_id
        self.number = number
        self.display_name: str | None = None
        self.served = served
        self.created_at_ms = now_ms()
        self.last_active_s = trio.current_time()
        self.closed = False
        self.when_ended: list[Callable[[], None]] = []
        self.clients = Clients(session_id)
        self.history = TurnHistory()
        self._limits = limits
        self._nursery = nursery
        self._now_ms = now_ms
        self._queue = PromptQueue(session_id, limits.max_pending_prompts_per_session)
        self._turns: dict[str, _Turn] = {}
        self._generations: set[Generation] = set()
        self._idle_cancel_told = False
        self._entrance = entrance if entrance is not None else Entrance()
        self._tracer = tracer
        self._totals = totals if totals is not None else ServiceTotals()
        self.log = SessionLog(
            str(uuid.uuid4()),
            ring_size=limits.event_ring_size,
            ring_bytes=limits.event_ring_bytes,
            max_subscribers=limits.max_subscribers_per_session,
            on_evict=self._evicted,
        )
        self._totals.sessions_opened += 1
        _log.info("session_opened", session=self.id, model=served.config.name)
        self._places = Places(self.log.keep)

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
        self,
        text: str,
        *,
        deadline_ms: int | None = None,
        originator: str | None = None,
        retry: bool = False,
        cancelled: bool = False,
        on_settled: Callable[[TurnRecord], None] | None = None,
    ) -> Admission:
        """Accepts a prompt in one synchronous step (S2). Its turn begins when `let_start` is called.

        Args:
            text: what the model gets.
            deadline_ms: the caller's own deadline, bounded by the operator's; without the operator's there is none.
            originator: client id, copied into the prompt's events.
            retry: if the turn before this one failed, the text was told by that one and is not told again.
            cancelled: the caller has already cancelled.
            on_settled: called once, with how the prompt ended, right after its terminal event was published. It must
                neither block nor raise.

        Raises:
            SessionNotFoundError: the session is closing.
            DrainingError: an operator lets nothing new in.
            UnknownModelError: a reload has taken the session's model away.
            PromptCancelledError: see `cancelled`.
            PromptQueueFullError: as many prompts are pending as may be.
        """
        if self.closed:
            raise SessionNotFoundError(self.id, closing=True)
        self._entrance.check_prompt(self.served.config.name, self.served)
        admission = Admission(str(uuid.uuid4()), self.log.last_id, self.log.epoch)
        try:
            prompt = self._queue.admit(admission.prompt_id, trio.current_time(), cancelled=cancelled)
        except PromptQueueFullError as full:
            self._totals.prompts_refused += 1
            _log.warning("prompt_refused", session=self.id, code=full.code, pending=full.pending_count)
            raise
        self._totals.prompts_admitted += 1
        _log.info("prompt_admitted", session=self.id, prompt=prompt.id, pending=self.pending_count)
        now_ms = self._now_ms()
        turn = _Turn(prompt, self.history.admit(prompt.id, text, now_ms, originator), retry, on_settled)
        if self._tracer is not None:
            turn.span = self._tracer.prompt(self.id, prompt.id)
        self._turns[prompt.id] = turn
        self._idle_cancel_told = False
        self.touch()
        if prompt.queued_at_admission:
            self._publish(turn, "pending_prompt_added", {"text": text, "queuedAt": now_ms})
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
        """Ends the running prompt for its caller; its claim goes on. Queued prompts remain.

        Args:
            originator: client id of whoever cancels.
        """
        running = self._queue.running
        if running is not None:
            self._cancel_turn(self._turns[running.id], originator)
        elif not self._idle_cancel_told:
            self._idle_cancel_told = True
            self.announce("prompt_cancelled", {}, originator)

    def remove(self, prompt_id: str, originator: str | None = None) -> bool:
        """Takes one pending prompt out, queued or running. Returns False if it is not pending."""
        turn = self._turns.get(prompt_id)
        if turn is None:
            return False
        self._cancel_turn(turn, originator, removed=turn.prompt.state is PromptState.QUEUED)
        return True

    def withdraw(self, prompt_id: str) -> None:
        """Nobody will ever know that this prompt was accepted. It ends, if it has not yet."""
        self.remove(prompt_id)

    def generate(self, text: str) -> Generation:
        """An answer of the session's model to a text, beside the prompts. It ends with the session at the latest.

        Raises:
            SessionNotFoundError: the session is closing.
            DrainingError: an operator lets nothing new in.
        """
        if self.closed:
            raise SessionNotFoundError(self.id, closing=True)
        self._entrance.check()
        limit_ms = self._limits.prompt_deadline_ms
        generation = Generation(
            self._nursery,
            self.served,
            text,
            key=self.id,
            request_id=str(uuid.uuid4()),
            deadline_ms=min(GENERATION_MS_MAX, limit_ms) if limit_ms is not None else GENERATION_MS_MAX,
            max_answer_bytes=self._limits.max_answer_bytes,
            on_end=self._generation_ended,
        )
        self._generations.add(generation)
        return generation

    @property
    def in_use(self) -> bool:
        """Something of it goes on, or somebody listens."""
        return bool(self.pending_count or self._generations or self.log.subscriber_count)

    def _generation_ended(self, generation: Generation) -> None:
        self._generations.discard(generation)
        self.touch()

    # The session itself

    def announce(
        self,
        event_type: str,
        data: dict[str, JsonValue],
        originator: str | None = None,
        prompt_id: str | None = None,
    ) -> None:
        """Publishes an event, with this session's id in its data."""
        self.log.publish(
            event_type,
            {"sessionId": self.id, **data},
            timestamp_ms=self._now_ms(),
            prompt_id=prompt_id,
            originator=originator,
        )

    def rename(self, display_name: str, originator: str | None = None) -> None:
        """Callers see this name from now on."""
        if display_name != self.display_name:
            self.display_name = display_name
            self.announce(
                "session_metadata_updated", {"displayName": display_name, "titleSource": "manual"}, originator
            )

    def switch_model(self, served: ServedModel, originator: str | None = None) -> None:
        """Turns that begin from now on go to this model; one that runs stays where it is."""
        self.served = served
        self.announce("model_switched", {"modelId": served.config.name}, originator)

    def reconfigure(self, limits: LimitsConfig, served: ServedModel | None) -> None:
        """Another configuration is in force: for prompts from now on, and for turns that begin from now on.

        Args:
            limits: bounds; of the event log they remain as they were.
            served: its model; None if that is not served any more. Then accepted prompts still run.
        """
        self._limits = limits
        self._queue.limit = limits.max_pending_prompts_per_session
        self.served = served if served is not None else self.served

    def heartbeat(self) -> int:
        """A caller is there, so the session is in use. Returns the moment in Unix milliseconds."""
        self.touch()
        now_ms = self._now_ms()
        self.clients.seen(now_ms)
        return now_ms

    def touch(self) -> None:
        """Somebody has used the session just now."""
        self.last_active_s = trio.current_time()

    def close(self, *, reason: str = "client_close", closed_by: str | None = None) -> None:
        """Ends the session: every pending prompt gets its terminal event, then the streams end."""
        data: dict[str, JsonValue] = {"reason": reason}
        if closed_by is not None:
            data["closedBy"] = closed_by
        self._end(SessionClosedError(), "session_closed", data)

    def die(self, reason: str) -> None:
        """The governor ends the session."""
        self._end(ShutdownError(), "session_died", {"reason": reason})

    def subscribe(self, *, after_id: int | None, epoch: str | None, max_frames: int | None = None) -> EventStream:
        """A new subscriber.

        Raises:
            SubscribersFullError: there are as many as may be.
        """
        limits = SubscriberLimits(
            frames=max_frames if max_frames is not None else self._limits.subscriber_queue_frames,
            bytes=self._limits.subscriber_queue_bytes,
        )
        self.touch()
        return EventStream(self.log, limits, after_id=after_id, epoch=epoch, on_close=self.touch)

    async def after_pending(self) -> Kept:
        """What is told of the session once every prompt that is pending now has settled (S5).

        Raises:
            SessionNotFoundError: the session was closed before.
        """
        kept = await self._places.take(self._turns)
        if self.closed:
            raise SessionNotFoundError(self.id, closing=True)
        return kept

    # One turn

    def _start_next(self) -> None:
        prompt = self._queue.start_next()
        if prompt is not None:
            turn = self._turns[prompt.id]
            turn.silent = turn.retry and self.history.last_error is not None
            self.history.start(turn.record, self._now_ms())
            self._nursery.start_soon(self._run, turn, name=f"turn {prompt.id}")

    async def _run(self, turn: _Turn) -> None:
        with turn.scope, turn.active():
            await self._wait_until_told(turn)
            # Who was woken in the same moment as it was cancelled finds out only at its next checkpoint.
            await trio.lowlevel.checkpoint_if_cancelled()
            error = await self._answer(turn)
            self._settle(turn, Outcome.COMPLETED if error is None else Outcome.FAILED, error)

    async def _answer(self, turn: _Turn) -> GovernorError | None:
        """Everything of a turn but its terminal event; returns why there is no whole answer."""
        text = turn.record.text
        try:
            if turn.prompt.queued_at_admission:
                self._publish(turn, "pending_prompt_started", {"text": text})
            if not turn.silent:
                self._publish_chunk(turn, "user_message_chunk", text)
            await run_turn(
                self.served,
                text,
                key=self.id,
                request_id=turn.prompt.id,
                max_answer_bytes=self._limits.max_answer_bytes,
                emit=lambda piece: self._publish_chunk(turn, "agent_message_chunk", piece),
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

    def _cancel_turn(self, turn: _Turn, originator: str | None, *, removed: bool = False) -> None:
        if not removed:
            self.announce("prompt_cancelled", {"promptId": turn.prompt.id}, originator, turn.prompt.id)
        self._settle(turn, Outcome.CANCELLED, removed=removed)

    def _settle(
        self, turn: _Turn, outcome: Outcome, error: GovernorError | None = None, *, removed: bool = False
    ) -> None:
        """Ends a prompt for its caller, once (S3, S7)."""
        if turn.prompt.state is PromptState.SETTLED:
            return
        self.history.settle(turn.record, outcome, error, self._now_ms())
        if error is not None:
            self._publish(turn, "turn_error", error_fields(error))
        else:
            self._publish(turn, "turn_complete", _completion(turn.record))
        if turn.on_settled is not None:
            turn.on_settled(turn.record)
        if turn.prompt.queued_at_admission or removed:
            self._publish(turn, "pending_prompt_completed", {"state": "removed" if removed else "completed"})
        self._queue.settle(turn.prompt, outcome)
        self._account(turn, outcome, error)
        del self._turns[turn.prompt.id]
        turn.scope.cancel()
        turn.deadline_scope.cancel()
        self.touch()
        self._places.settled(turn.prompt.id)
        if not self.closed:
            self._start_next()

    def _account(self, turn: _Turn, outcome: Outcome, error: GovernorError | None) -> None:
        prompt = turn.prompt
        if turn.span is not None:
            turn.span.settled(outcome.value, error)
        took_s = trio.current_time() - prompt.admitted_at_s
        self._totals.prompts_s[outcome].observe(took_s)
        _log.info(
            "prompt_settled",
            session=self.id,
            prompt=prompt.id,
            outcome=outcome.value,
            code=error.code if error is not None else None,
            took_s=round(took_s, 3),
        )

    def _evicted(self) -> None:
        self._totals.subscribers_evicted += 1
        _log.warning("subscriber_evicted", session=self.id, last_event=self.log.last_id)

    def _end(self, error: GovernorError, event_type: str, data: dict[str, JsonValue]) -> None:
        if self.closed:
            return
        self.closed = True
        for turn in list(self._turns.values()):
            self._settle(turn, Outcome.FAILED, error)
        for generation in list(self._generations):
            generation.stop(error)
        self.announce(event_type, data)
        self.log.close()
        for callback in list(self.when_ended):
            callback()
        _log.info("session_closed", session=self.id, reason=data["reason"])

    # Events

    def _publish(self, turn: _Turn, event_type: str, data: dict[str, JsonValue]) -> None:
        self.announce(event_type, {"promptId": turn.prompt.id, **data}, turn.record.originator, turn.prompt.id)

    def _publish_chunk(self, turn: _Turn, variant: str, text: str) -> None:
        if turn.prompt.state is PromptState.SETTLED:
            return  # nothing of a turn follows its terminal event, even if its task has not noticed yet
        update: dict[str, JsonValue] = {"sessionUpdate": variant, "content": {"type": "text", "text": text}}
        if variant == "user_message_chunk":
            update["_meta"] = {"serverTimestamp": self._now_ms(), "source": "bridge-echo"}
        else:
            turn.record.say(text)
        self.announce("session_update", {"update": update}, turn.record.originator, turn.prompt.id)


def _completion(record: TurnRecord) -> dict[str, JsonValue]:
    """What `turn_complete` tells."""
    told: dict[str, JsonValue] = {"stopReason": record.stop_reason}
    if record.outcome is Outcome.CANCELLED and record.started_at_ms is not None and record.ended_at_ms is not None:
        elapsed_ms = record.ended_at_ms - record.started_at_ms
        told["promptCancelled"] = {"cancelledAt": record.ended_at_ms, "elapsedMs": elapsed_ms}
    return told
