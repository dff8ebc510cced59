"""One identity: a model on a backend, its slot credits, and the nursery that owns every call to it (D1, E2, T1).

Everything that decides is in the ledger and the credit queue; this module drives them. After each change of the
ledger it calls `_settle`, the one synchronous place where credits are handed to waiting calls and where the
poller is told whether it is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio
from trio_util import AsyncBool

from governor.core.counting import ENSEMBLE, PLAIN
from governor.core.credits import CreditQueue, WaitersFullError
from governor.core.evidence import Life, OnFall
from governor.core.ledger import Ledger
from governor.errors import (
    BackendError,
    BackendUnavailableError,
    ConnectionLostError,
    CreditQueueFullError,
    DrainingError,
    GovernorError,
)
from governor.identity.call import Call, CallRequest, Head
from governor.identity.evidence import watch_evidence
from governor.identity.lanes import LanePool
from governor.triton.lane import CallEnd
from governor.triton.outcomes import counted
from governor.triton.text import error_message

if TYPE_CHECKING:
    from governor.core.counting import Reading
    from governor.core.evidence import LedgerSnapshot, LedgerTotals, Ticket
    from governor.identity.port import LanePort, ModelPort
    from governor.triton.metadata import ModelFacts

_log = structlog.get_logger(__name__)
_ERROR_BODY_MAX = 64 * 1024


@dataclass(frozen=True, slots=True, order=True)
class IdentityKey:
    """Names an identity: two servers with a model of the same name are two identities."""

    backend: str
    model: str

    def __str__(self) -> str:
        return f"{self.backend}/{self.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySettings:
    """The bounds of one identity. Times in seconds."""

    slots: int
    max_waiting: int
    lane_idle_s: float
    call_limit_s: float
    poll_interval_s: float
    settle_s: float
    on_fall: OnFall


@dataclass(slots=True, eq=False)
class _Preparation:
    """One attempt to get facts and a baseline, shared by all calls that came while it was under way."""

    done: trio.Event
    error: BackendError | None = None


@dataclass(slots=True)
class IdentityTotals:
    """Counts since the identity was made; they only grow."""

    calls: int = 0
    refused: int = 0
    undelivered: int = 0
    broken: int = 0
    answered: int = 0
    abandoned: int = 0
    readings: int = 0
    readings_failed: int = 0


@dataclass(frozen=True, slots=True)
class IdentityStatistics:
    """A copy of what an identity shows to metrics, readiness and the operator."""

    key: IdentityKey
    ledger: LedgerSnapshot
    ledger_totals: LedgerTotals
    totals: IdentityTotals
    waiting: int
    polling: bool
    last_reading_error: str | None
    facts: ModelFacts | None


class Identity:
    """A model on a backend. `run` must be running for calls to start."""

    def __init__(self, key: IdentityKey, settings: IdentitySettings, port: ModelPort) -> None:
        self.key = key
        self.settings = settings
        self.totals = IdentityTotals()
        self.facts: ModelFacts | None = None
        self._port = port
        self._ledger = Ledger(
            slots=settings.slots,
            rule=PLAIN,
            provable=True,
            settle_s=settings.settle_s,
            on_fall=settings.on_fall,
        )
        self._queue: CreditQueue[Call] = CreditQueue(settings.max_waiting)
        self._lanes = LanePool(port.make_lane, idle_s=settings.lane_idle_s)
        self._calls: dict[int, Call] = {}
        self._evidence_wanted = AsyncBool(value=False)
        self._preparing: _Preparation | None = None
        self._nursery: trio.Nursery | None = None
        self._draining = False
        self._reading_error: str | None = None

    # The caller's side: synchronous

    def submit(self, request: CallRequest, *, key: str) -> Call:
        """Queues a call for a slot credit and returns it at once; it starts as soon as it gets one.

        Args:
            request: what to send.
            key: who asks; waiting keys get credits in turn (A6).

        Raises:
            CreditQueueFullError: as many calls wait already as may; nothing was queued.
            DrainingError: the identity takes no more calls.
        """
        if self._draining:
            raise DrainingError
        call = Call(request, key=key, on_abandon=self._abandoned)
        try:
            self._queue.push(key, call)
        except WaitersFullError:
            self.totals.refused += 1
            raise CreditQueueFullError(self.key.model, self.settings.max_waiting) from None
        self._settle()
        return call

    def drain(self) -> None:
        """Takes no more calls and lets those without a credit end; started ones go on."""
        self._draining = True
        while (call := self._queue.pop()) is not None:
            call.end(DrainingError())

    def statistics(self) -> IdentityStatistics:
        """A snapshot."""
        return IdentityStatistics(
            key=self.key,
            ledger=self._ledger.snapshot(),
            ledger_totals=self._ledger.totals,
            totals=self.totals,
            waiting=len(self._queue),
            polling=bool(self._evidence_wanted.value),
            last_reading_error=self._reading_error,
            facts=self.facts,
        )

    # The nursery

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Owns every task of the identity until it is cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                interval_s = self.settings.poll_interval_s
                self._nursery.start_soon(
                    lambda: watch_evidence(self, self._evidence_wanted, interval_s=interval_s), name="evidence"
                )
                self._nursery.start_soon(self._lanes.close_idle_lanes)
                self._settle()
                task_status.started()
        finally:
            self._nursery = None
            self._lanes.close()
            self._port.close_idle()
            for call in list(self._calls.values()):
                call.end(DrainingError())

    def _settle(self) -> None:
        """Hands free credits to waiting calls and tells the poller whether it is wanted."""
        while self._nursery is not None and self._ledger.free > 0:
            call = self._queue.pop()
            if call is None:
                break
            claim_id = self._ledger.open(trio.current_time())
            self.totals.calls += 1
            self._calls[claim_id] = call
            call.start(claim_id)
            self._nursery.start_soon(self._run_call, call, claim_id, name=f"call {self.key} {claim_id}")
        self._evidence_wanted.value = self._ledger.wants_evidence

    def _abandoned(self, call: Call) -> None:
        self.totals.abandoned += 1
        if call.claim_id is None:
            self._queue.discard(call.key, call)
            call.end(GovernorError("abandoned by its caller"))
        else:
            self._ledger.caller_left(call.claim_id)
            if call.request.disconnect_on_abandon:
                call.scope.cancel()

    # One call

    async def _run_call(self, call: Call, claim_id: int) -> None:
        lane = self._lanes.take()
        error: GovernorError | None = None
        try:
            used_before = lane.generation
            await lane.connect()
            await self._before_delivery(fresh_connection=lane.generation != used_before, boot=lane.boot)
            if call.abandoned:
                # Nobody wants the answer and nothing was sent: the backend need not work for it.
                self._lost(claim_id, BackendUnavailableError("abandoned before it was sent"))
            else:
                error = await self._exchange(call, claim_id, lane)
        except BackendError as failed:
            error = failed
            self._lost(claim_id, failed)
        finally:
            # The lane is free and the caller hears of it in any case; the credit is the ledger's affair alone.
            self._lanes.give_back(lane)
            del self._calls[claim_id]
            call.end(error)
        self._settle()

    async def _exchange(self, call: Call, claim_id: int, lane: LanePort) -> GovernorError | None:
        """Sends the request and takes the whole answer, however long its caller stays.

        Returns:
            Why the caller gets no complete answer, or None.
        """
        self._ledger.dispatch(claim_id, lane.boot)
        exchange = lane.exchange(
            call.request.wire, on_delivered=lambda: self._ledger.delivered(claim_id, trio.current_time())
        )
        error: GovernorError | None = None
        status, error_body = 0, bytearray()
        try:
            with trio.move_on_after(self.settings.call_limit_s) as call.scope:
                async with exchange as answer:
                    status = answer.status
                    call.feed_head(Head(answer.status, answer.headers))
                    async for chunk in answer.chunks():
                        call.feed(chunk)
                        if status != 200 and len(error_body) < _ERROR_BODY_MAX:
                            error_body += chunk
        except BackendError as failed:
            error = failed
        if exchange.end is CallEnd.ANSWERED:
            self._answered(call, claim_id, status, bytes(error_body))
            return error
        if error is None:
            error = ConnectionLostError(
                f"No complete answer within {self.settings.call_limit_s:g} s, or nobody wanted it; connection given up"
            )
        self._lost(claim_id, error)
        return error

    def _answered(self, call: Call, claim_id: int, status: int, error_body: bytes) -> None:
        self.totals.answered += 1
        now_s = trio.current_time()
        ensemble = self.facts is not None and self.facts.ensemble
        if status == 200:
            most = ENSEMBLE.most if ensemble else PLAIN.most
            self._ledger.answered(claim_id, now_s, least=most, most=most)
            return
        counts = counted(
            status,
            error_message(error_body),
            kind=call.request.kind,
            ensemble=ensemble,
            server_version=self._port.server_version,
        )
        self._ledger.answered(claim_id, now_s, least=counts.least, most=counts.most)

    def _lost(self, claim_id: int, error: GovernorError) -> None:
        if self._ledger.lost(claim_id):
            self.totals.undelivered += 1
            return
        self.totals.broken += 1
        state = self._ledger.claims[claim_id].state.value
        _log.warning("call_broken", identity=str(self.key), claim=claim_id, state=state, error=error.message)

    async def _before_delivery(self, *, fresh_connection: bool, boot: str | None) -> None:
        """E4: a baseline stands before the first delivery of an epoch, tried once for all calls that wait for it.

        A fresh connection may lead to another process than the last reading: unless its stamp says that it does
        not, a reading is taken first, so that a restart is noticed before anything is delivered into it. A
        backend that gives no reading does not stop the call: its claim will await a baseline if it breaks.

        Raises:
            BackendError: what the model is cannot be read, so neither can be what its counter means (E12).
        """
        new_process = fresh_connection and (boot is None or boot != self._ledger.boot)
        if self.facts is not None and not new_process and not self._ledger.wants_baseline(trio.current_time()):
            return
        preparing = self._preparing
        if preparing is None:
            await self._prepare()
            return
        await preparing.done.wait()
        if preparing.error is not None:
            raise preparing.error

    async def _prepare(self) -> None:
        self._preparing = preparing = _Preparation(trio.Event())
        try:
            await self.know_facts()
            ticket = self.begin_reading()
            try:
                self.apply(ticket, await self.read())
            except BackendError as error:
                self.reading_failed(error)
        except BackendError as error:
            preparing.error = error
            raise
        finally:
            self._preparing = None
            preparing.done.set()

    # Evidence: what the poller and the epoch actor use

    async def know_facts(self) -> ModelFacts:
        """What the model is; asks the backend if that is not known yet.

        Raises:
            BackendError: the backend does not tell.
        """
        if self.facts is None:
            self.take_facts(await self._port.fetch_facts())
        assert self.facts is not None
        return self.facts

    def take_facts(self, facts: ModelFacts) -> None:
        """What the model's configuration says its counter means (E12)."""
        self.facts = facts
        self._ledger.count_by(ENSEMBLE if facts.ensemble else PLAIN, provable=not facts.decoupled)

    def begin_reading(self) -> Ticket:
        """See `Ledger.begin_reading`."""
        return self._ledger.begin_reading(trio.current_time())

    async def read(self) -> Reading:
        """Asks the backend for a reading."""
        await self.know_facts()
        self.totals.readings += 1
        return await self._port.read()

    def reading_failed(self, error: BackendError) -> None:
        """E9: the claims stay as they are; said once, until something else is wrong."""
        self.totals.readings_failed += 1
        if self._reading_error != error.message:
            self._reading_error = error.message
            _log.warning("reading_failed", identity=str(self.key), error=error.message, code=error.code)

    def apply(self, ticket: Ticket, reading: Reading) -> None:
        """Hands a reading to the ledger and tells everybody what it proved."""
        self._reading_error = None
        was_contested = self._ledger.contested
        verdict = self._ledger.apply(ticket, reading)
        identity = str(self.key)
        for claim_id, proof in verdict.ended:
            _log.info("claim_ended", identity=identity, claim=claim_id, proof=proof.value)
        for claim_id in verdict.quarantined:
            _log.warning("claim_quarantined", identity=identity, claim=claim_id, life=verdict.life.value)
        if verdict.life in {Life.RESTART, Life.RELOAD, Life.UNKNOWN_FALL}:
            _log.warning("epoch_began", identity=identity, cause=verdict.life.value)
            self.facts = None  # another load may have another configuration
        if verdict.contested and not was_contested:
            _log.error("identity_contested", identity=identity)
        self._settle()

    def evidence_done(self) -> None:
        """No claim waits any more: the readings' connection need not stay open."""
        self._port.close_idle()

    async def look_again(self) -> None:
        """One reading for the sake of quarantined claims, when the backend may have been restarted (E6, E8)."""
        if not any(claim.state.is_broken for claim in self._ledger.claims.values()):
            return
        ticket = self.begin_reading()
        try:
            self.apply(ticket, await self.read())
        except BackendError as error:
            self.reading_failed(error)
        self.evidence_done()
