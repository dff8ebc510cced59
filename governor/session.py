"""A session: prompts in order, one at a time, and what its subscribers hear of them (S1 to S7, A5).

Everything that changes what a caller sees is synchronous. `_settle` is the only way a prompt ends: it publishes
the terminal event, gives the slot back and starts the next prompt, in that order and without a checkpoint.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from governor.clients import Clients
from governor.core.events import SubscriberLimits
from governor.core.prompts import Outcome, PromptQueue, PromptState
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
from governor.history import TurnHistory
from governor.journal import SessionLog
from governor.pending import PendingPrompt
from governor.places import Places
from governor.stream import EventStream
from governor.totals import ServiceTotals
from governor.turn import run_turn
from governor.untold import Untold

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.config import LimitsConfig
    from governor.errors import JsonValue
    from governor.history import TurnRecord
    from governor.journal import Kept
    from governor.tracing import Tracer
    from governor.turn import ServedModel

__all__ = ["Admission", "EventStream", "Session"]

_log = structlog.get_logger(__name__)


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
        self._pending: dict[str, PendingPrompt] = {}
        self._untold = Untold()
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
        record = self.history.admit(prompt.id, text, now_ms, originator)
        pending = PendingPrompt(prompt, record, self.announce, retry, on_settled)
        if self._tracer is not None:
            pending.span = self._tracer.prompt(self.id, prompt.id)
        self._pending[prompt.id] = pending
        self._idle_cancel_told = False
        self.touch()
        if prompt.queued_at_admission:
            pending.tell_queued()
        limit_ms = self._limits.prompt_deadline_ms
        if limit_ms is not None:
            effective_ms = min(limit_ms, deadline_ms) if deadline_ms is not None else limit_ms
            self._nursery.start_soon(self._watch_deadline, pending, effective_ms)
        self._start_next()
        return admission

    def let_start(self, prompt_id: str) -> None:
        """The caller knows that its prompt was accepted, so the turn's events may reach it, and its end (S7)."""
        pending = self._pending.get(prompt_id)
        if pending is not None:
            pending.told.set()
        self._untold.told(prompt_id)

    def cancel(self, originator: str | None = None) -> None:
        """Ends the running prompt for its caller; its claim goes on. Queued prompts remain.

        Args:
            originator: client id of whoever cancels.
        """
        running = self._queue.running
        if running is not None:
            self._cancel_pending(self._pending[running.id], originator)
        elif not self._idle_cancel_told:
            self._idle_cancel_told = True
            self.announce("prompt_cancelled", {}, originator)

    def remove(self, prompt_id: str, originator: str | None = None) -> bool:
        """Takes one pending prompt out, queued or running. Returns False if it is not pending."""
        pending = self._pending.get(prompt_id)
        if pending is None:
            return False
        self._cancel_pending(pending, originator, removed=pending.prompt.state is PromptState.QUEUED)
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

    def die(self, reason: str, *, told_within_s: float) -> None:
        """The governor ends the session. Its subscribers are told at once, or within this time in seconds (S7)."""
        self._untold.hurry(told_within_s)
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
        return EventStream(self.log, limits, after_id=after_id, epoch=epoch, untold=self._untold, on_close=self.touch)

    async def after_pending(self) -> Kept:
        """What is told of the session once every prompt that is pending now has settled (S5).

        Raises:
            SessionNotFoundError: the session was closed before.
        """
        kept = await self._places.take(self._pending)
        if self.closed:
            raise SessionNotFoundError(self.id, closing=True)
        return kept

    # One turn

    def _start_next(self) -> None:
        prompt = self._queue.start_next()
        if prompt is not None:
            pending = self._pending[prompt.id]
            pending.silent = pending.retry and self.history.last_error is not None
            self.history.start(pending.record, self._now_ms())
            self._nursery.start_soon(self._run, pending, name=f"turn {prompt.id}")

    async def _run(self, pending: PendingPrompt) -> None:
        with pending.active():
            with pending.turn:
                await pending.wait_until_told()
                # Who was woken in the same moment as it was cancelled finds out only at its next checkpoint.
                await trio.lowlevel.checkpoint_if_cancelled()
                error = await self._answer(pending)
            # Outside, as it ends what runs for the prompt, and that is this task. One that was stopped has settled.
            if not pending.turn.cancelled_caught:
                self._settle(pending, Outcome.COMPLETED if error is None else Outcome.FAILED, error)

    async def _answer(self, pending: PendingPrompt) -> GovernorError | None:
        """Everything of a turn but its terminal event; returns why there is no whole answer."""
        try:
            pending.tell_started(self._now_ms())
            await run_turn(
                self.served,
                pending.record.text,
                key=self.id,
                request_id=pending.id,
                max_answer_bytes=self._limits.max_answer_bytes,
                emit=pending.tell_piece,
            )
        except GovernorError as error:
            return error
        except Exception:  # noqa: BLE001  # a fault in one turn costs neither its terminal event (S7) nor others
            _log.exception("turn_failed", session=self.id, prompt=pending.id)
            return GovernorError("internal error while running the turn")
        return None

    async def _watch_deadline(self, pending: PendingPrompt, deadline_ms: int) -> None:
        with pending.deadline:
            await trio.sleep_until(pending.prompt.admitted_at_s + deadline_ms / 1000)
            await pending.wait_until_told()
            self._settle(pending, Outcome.FAILED, PromptDeadlineError(deadline_ms))

    def _cancel_pending(self, pending: PendingPrompt, originator: str | None, *, removed: bool = False) -> None:
        self._ends(pending)
        if not removed:
            pending.tell_cancelled(originator)
        self._settle(pending, Outcome.CANCELLED, removed=removed)

    def _settle(
        self, pending: PendingPrompt, outcome: Outcome, error: GovernorError | None = None, *, removed: bool = False
    ) -> None:
        """Ends a prompt for its caller, once (S3, S7)."""
        if pending.settled:
            return
        self.history.settle(pending.record, outcome, error, self._now_ms())
        self._ends(pending)
        pending.tell_end(error, removed=removed)
        self._queue.settle(pending.prompt, outcome)
        self._account(pending, outcome, error)
        del self._pending[pending.id]
        pending.stop()
        self.touch()
        self._places.settled(pending.id)
        if not self.closed:
            self._start_next()

    def _ends(self, pending: PendingPrompt) -> None:
        if not pending.told.is_set():
            self._untold.ends(pending.id, self.log.last_id + 1)

    def _account(self, pending: PendingPrompt, outcome: Outcome, error: GovernorError | None) -> None:
        if pending.span is not None:
            pending.span.settled(outcome.value, error)
        took_s = trio.current_time() - pending.prompt.admitted_at_s
        self._totals.prompts_s[outcome].observe(took_s)
        _log.info(
            "prompt_settled",
            session=self.id,
            prompt=pending.id,
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
        for pending in list(self._pending.values()):
            self._settle(pending, Outcome.FAILED, error)
        for generation in list(self._generations):
            generation.stop(error)
        self.announce(event_type, data)
        self.log.close()
        for callback in list(self.when_ended):
            callback()
        _log.info("session_closed", session=self.id, reason=data["reason"])
