"""One identity: a model on a backend, its slot credits, and the nursery that owns every call to it (D1, E2, T1).

Everything that decides is in the ledger and the credit queue; this module drives them. After each change of the
ledger it calls `settle`, the one synchronous place where credits are handed to waiting calls and where the
poller is told whether it is wanted.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import structlog
import trio
from trio_util import AsyncBool

from governor.core.claims import ClaimState
from governor.core.counting import ENSEMBLE, PLAIN
from governor.core.credits import CreditQueue, WaitersFullError
from governor.core.evidence import Life
from governor.core.ledger import Ledger
from governor.entrance import Entrance
from governor.errors import (
    BackendUnavailableError,
    ConnectionLostError,
    CreditQueueFullError,
    DrainingError,
    GovernorError,
    ShutdownError,
)
from governor.identity.call import Call, CallRequest, Head
from governor.identity.chronicle import NEW_LIVES, Chronicle
from governor.identity.evidence import watch_evidence
from governor.identity.firstlook import FirstLook
from governor.identity.lanes import LanePool
from governor.identity.notes import ClaimNotes
from governor.identity.operator import OperatorExits
from governor.identity.readings import ReadingWatch
from governor.identity.runners import CallRunners
from governor.identity.uploads import Uploads
from governor.identity.values import IdentityStatistics, IdentityTotals, oldest_ages_s
from governor.recent import VerdictTeller, unobserved
from governor.triton.lane import CallEnd
from governor.triton.outcomes import ERROR_BODY_MAX, CallKind, counted, speaks_for_triton
from governor.triton.text import error_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from governor.core.claims import Claim
    from governor.core.counting import Reading
    from governor.core.evidence import Ticket, Verdict
    from governor.identity.port import LanePort, ModelPort
    from governor.identity.uploads import Upload, Way
    from governor.identity.values import IdentityKey, IdentitySettings
    from governor.recent import Observer
    from governor.tracing import Tracer
    from governor.triton.metadata import ModelFacts

_log = structlog.get_logger(__name__)


class Identity:
    """A model on a backend. `run` must be running for calls to start.

    Args:
        key: its name.
        settings: its bounds.
        port: what it reaches the model through.
        observe: is told what an operator would want to hear of.
        entrance: whether calls of no prompt are taken; what was accepted as a prompt is always called for.
        tracer: is told of calls; None where nothing is traced.
    """

    def __init__(
        self,
        key: IdentityKey,
        settings: IdentitySettings,
        port: ModelPort,
        observe: Observer = unobserved,
        entrance: Entrance | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.key = key
        self.settings = settings
        self.totals = IdentityTotals()
        self.facts: ModelFacts | None = None
        self._port = port
        self._tracer = tracer
        self._ledger = Ledger(
            slots=settings.slots,
            rule=PLAIN,
            provable=True,
            settle_s=settings.settle_s,
            on_fall=settings.on_fall,
        )
        self._queue: CreditQueue[Call] = CreditQueue(settings.max_waiting)
        self._runners = CallRunners(self._run_call, self.settle, name=f"calls {key}")
        self._lanes = LanePool(port.make_lane, idle_s=settings.lane_idle_s)
        self._calls: dict[int, Call] = {}
        self.reading_turn = trio.Lock()
        self._evidence_wanted = AsyncBool(value=False)
        self._lives_begun = 0
        self._ensemble = False
        self._first_look = FirstLook(self, self._ledger)
        self.uploads = Uploads(self._lanes, self._first_look, self._places)
        self.operator = OperatorExits(str(key), self, self._ledger)
        self.notes = ClaimNotes()
        self.watch = ReadingWatch()
        self.observe = observe
        self._entrance = entrance if entrance is not None else Entrance()
        self._teller = VerdictTeller(observe, str(key))
        self.held = False
        self._unclaimed: trio.Event | None = None
        self._nursery: trio.Nursery | None = None
        self._draining = False
        self._chronicle = Chronicle(str(key))

    # The caller's side: synchronous

    def submit(self, request: CallRequest, *, key: str, upload: Upload | None = None) -> Call:
        """Queues a call for a slot credit and returns it at once; it starts as soon as it gets one.

        Args:
            request: what to send.
            key: who asks; waiting keys get credits in turn (A6).
            upload: has sent the request already but for its end; the call's own from now on, unless this raises.

        A call of a caller with many that wait may give way to it and ends with CreditQueueFullError.

        Raises:
            CreditQueueFullError: as many calls wait already as may; nothing was queued.
            DrainingError: the identity takes no more calls.
        """
        if self._draining:
            raise DrainingError
        if request.prompt_id is None:
            self._entrance.check()
        spans = self._tracer.call(str(self.key)) if self._tracer is not None else None
        call = Call(request, key=key, on_abandon=self._abandoned, spans=spans, upload=upload)
        try:
            gave_way = self._queue.push(key, call)
        except WaitersFullError:
            raise self._refuse(call) from None
        if gave_way is not None:
            self._refuse(gave_way)
        self.settle()
        return call

    def check_room(self, key: str) -> None:
        """Raises CreditQueueFullError where `submit` would: what is refused anyway need not be looked at."""
        if self._queue.is_full_for(key):
            raise self._refusal()

    def _places(self) -> int:
        """How many requests may go ahead of their credits (ADR-0018).

        Traced calls send what they know only with their credit; and where nobody sees that the peer has left, the last
        byte could be sent to nobody.
        """
        if self._tracer is not None or not self._port.tells_departures:
            return 0
        takes_calls = self._nursery is not None and not (self._draining or self.held)
        return self._ledger.slots if takes_calls else 0

    def _refuse(self, call: Call) -> CreditQueueFullError:
        full = self._refusal()
        call.end(full)
        return full

    def _refusal(self) -> CreditQueueFullError:
        self.totals.refused += 1
        self.observe("call_refused", str(self.key), code=CreditQueueFullError.code)
        return CreditQueueFullError(self.key.model, self.settings.max_waiting)

    def reconfigure(self, settings: IdentitySettings) -> None:
        """Other bounds are in force. Of slots taken away, those that are held come back as their claims end (E1).

        How evidence is taken (the interval, what a fall means) does not change while the identity lives.
        """
        self.settings = settings
        self._ledger.slots = settings.slots
        self._queue.limit = settings.max_waiting
        self._lanes.idle_s = settings.lane_idle_s
        self.settle()

    def drain(self) -> None:
        """Takes no more calls and lets those without a credit end; started ones go on."""
        self._draining = True
        self.end_waiting(DrainingError)

    def backend_away(self, reason: Callable[[], GovernorError]) -> None:
        """Nobody answers there: whoever waits is told so, and no call is sent on a connection left from before."""
        self.end_waiting(reason)
        self._lanes.close()

    def end_waiting(self, reason: Callable[[], GovernorError]) -> None:
        """Ends every call that has no credit yet; they have sent nothing."""
        while (call := self._queue.pop()) is not None:
            call.end(reason())

    @property
    def lives_begun(self) -> int:
        """How many new lives of the model's counters were seen: what was known of the model before may be wrong."""
        return self._lives_begun

    def expect_another_load(self) -> None:
        """An operator has the model loaded or unloaded: what it is must be asked again (E7, E12)."""
        self._lives_begun += 1
        self.facts = None

    @property
    def is_busy(self) -> bool:
        """A slot is held, a call waits for one, or a request goes ahead of its own."""
        return bool(self._ledger.claims) or len(self._queue) > 0 or self.uploads.under_way > 0

    @property
    def queue(self) -> CreditQueue[Call]:
        """Who waits for a credit. To look at."""
        return self._queue

    @property
    def claims(self) -> Mapping[int, Claim]:
        """The claims that exist, the oldest first. To look at."""
        return self._ledger.claims

    @asynccontextmanager
    async def handing_out_nothing(self, at_most_s: float) -> AsyncIterator[None]:
        """Hands out no credit inside, and first waits so long at the most until none is held.

        Who waits for a credit goes on waiting; afterwards, however it ends, credits are handed out again.
        """
        self.held = True
        self._unclaimed = trio.Event()
        try:
            with trio.move_on_after(at_most_s):
                if self._ledger.claims:
                    await self._unclaimed.wait()
            yield
        finally:
            self.held = False
            self._unclaimed = None
            self.settle()

    def statistics(self) -> IdentityStatistics:
        """A snapshot."""
        now_s = trio.current_time()
        return IdentityStatistics(
            key=self.key,
            ledger=self._ledger.snapshot(),
            ledger_totals=self._ledger.totals,
            totals=self.totals,
            waiting=len(self._queue),
            polling=bool(self._evidence_wanted.value),
            last_reading_error=self._chronicle.reading_error,
            facts=self.facts,
            chronicle=self._chronicle,
            oldest_waiting_s=max((now_s - call.submitted_at_s for call in self._queue.heads()), default=None),
            oldest_claims_s=oldest_ages_s(self._ledger.claims.values(), now_s),
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
                if self.settings.max_unprovable_age_s is not None:
                    self._nursery.start_soon(self.operator.release_aged, self.settings.max_unprovable_age_s)
                self.settle()
                task_status.started()
        finally:
            self._nursery = None
            self._runners.forget()
            self.drain()
            self._lanes.end()
            self._port.close_idle()

    def settle(self) -> None:
        """Hands free credits to waiting calls and tells the poller whether it is wanted."""
        self.notes.keep(self._ledger.claims)
        if self._unclaimed is not None and not self._ledger.claims:
            self._unclaimed.set()
        while self._nursery is not None and not self.held and self._ledger.free > 0:
            call = self._queue.pop()
            if call is None:
                break
            now_s = trio.current_time()
            claim_id = self._ledger.open(now_s)
            self._chronicle.wait_s.observe(now_s - call.submitted_at_s)
            self.totals.calls += 1
            self._calls[claim_id] = call
            self.notes.open(claim_id, call)
            call.start(claim_id)
            self._runners.start(self._nursery, call, claim_id)
        self._evidence_wanted.value = self._ledger.wants_evidence
        self.uploads.wake()

    def _abandoned(self, call: Call) -> None:
        self.totals.abandoned += 1
        if call.claim_id is None:
            self._queue.discard(call.key, call)
            call.end(GovernorError("abandoned by its caller"))
        else:
            self._ledger.caller_left(call.claim_id)
            unwanted = call.request.disconnect_on_abandon or not self._ledger.claims[call.claim_id].delivered
            if unwanted and call.scope is not None:
                call.scope.cancel()  # what was not delivered never executes (E3)

    # One call

    async def _run_call(self, call: Call, claim_id: int, scope: trio.CancelScope) -> None:
        way = self.uploads.way_of(call)
        error: GovernorError | None = None
        scope.deadline = inf  # connecting has bounds of its own
        try:
            if await way.connect(self._first_look) and way is call.upload:
                way = self.uploads.way_of(call)  # what was learned just now may have closed what stood (E6)
                if way is not call.upload:
                    await way.connect(self._first_look)
            scope.deadline = trio.current_time() + self.settings.call_limit_s
            if call.abandoned:
                # Nobody wants the answer and nothing was sent: the backend need not work for it.
                raise BackendUnavailableError("abandoned before it was sent")
            call.scope = scope
            error = await self._exchange(call, claim_id, way)
        except GovernorError as failed:
            error = failed
            self._lost(claim_id, failed)
        except Exception:  # noqa: BLE001  # a fault in one call costs neither the others nor the knowledge of them
            _log.exception("call_failed", identity=str(self.key), claim=claim_id)
            error = GovernorError("internal error while calling the backend")
            self._lost(claim_id, error)
        except BaseException:  # Cancelled, or a group of them where a connection was being opened
            error = self._no_answer() if scope.cancel_called else ShutdownError()
            self._lost(claim_id, error)
            raise
        finally:
            # The lane is free and the caller hears of it in any case; the credit is the ledger's affair alone.
            call.scope = None
            way.over()
            del self._calls[claim_id]
            call.end(error)

    async def _exchange(self, call: Call, claim_id: int, way: Way) -> GovernorError | None:
        """Sends the request and takes the whole answer, however long its caller stays.

        Returns:
            Why the caller gets no complete answer, or None.
        """
        self._ledger.dispatch(claim_id, way.lane.boot)
        self.notes.dispatched(claim_id, self._ledger.epoch)
        exchange = way.exchange(call.wire(), partial(self._delivered, claim_id, way.lane))
        error: GovernorError | None = None
        head, error_body = Head(0, ()), bytearray()
        try:
            async with exchange as answer:
                head = Head(answer.status, answer.headers)
                call.feed_head(head)
                async for chunk in answer.chunks():
                    call.feed(chunk)
                    if head.status != 200 and len(error_body) < ERROR_BODY_MAX:
                        error_body += chunk
        except GovernorError as failed:
            error = failed
        if exchange.end is CallEnd.ANSWERED and speaks_for_triton(head.status, bytes(error_body)):
            self._answered(call, claim_id, head, bytes(error_body))
            return error
        if exchange.end is CallEnd.ANSWERED:
            # The caller gets what came; the claim waits for evidence.
            self._lost(claim_id, ConnectionLostError(f"Somebody before the backend answered with {head.status}"))
            return error
        if error is None and exchange.end is CallEnd.NEVER_DELIVERED:
            # Whoever answers before the end of a request has refused it: the caller gets what was said.
            self._lost(claim_id, BackendUnavailableError(f"Answered with {head.status} before all of it was sent"))
            return None
        assert error is not None, "an exchange that is over has an answer or an error"
        self._lost(claim_id, error)
        return error

    def _no_answer(self) -> ConnectionLostError:
        return ConnectionLostError(
            f"No complete answer within {self.settings.call_limit_s:g} s, or nobody wanted it; connection given up"
        )

    def _delivered(self, claim_id: int, lane: LanePort) -> None:
        # A connection that died in the last moment was replaced inside the exchange: this is the one that took it.
        self._ledger.claims[claim_id].boot = lane.boot
        self._ledger.delivered(claim_id, trio.current_time())
        self.uploads.wake()  # only now: the backend waited for this call

    def _answered(self, call: Call, claim_id: int, head: Head, error_body: bytes) -> None:
        self.totals.answered += 1
        message = "" if head.status == 200 else error_message(error_body)
        if head.status == 200 and self._ensemble and call.request.kind is CallKind.GENERATE:
            message = "it may hold an error"  # then it adds less than a success does
        counts = counted(
            head.status,
            message,
            kind=call.request.kind,
            ensemble=self._ensemble,
            server_version=self._port.server_version,
            headers=head.headers,
        )
        now_s = trio.current_time()
        self._chronicle.service_s.observe(now_s - self._ledger.claims[claim_id].opened_at_s)
        self._ledger.answered(claim_id, now_s, least=counts.least, most=counts.most)
        self.notes.close(claim_id)

    def _lost(self, claim_id: int, error: GovernorError) -> None:
        claim = self._ledger.claims.get(claim_id)
        if claim is None or not claim.state.is_open:
            return  # its end was told before the fault
        if self._ledger.lost(claim_id):
            self.totals.undelivered += 1
            return
        self.totals.broken += 1
        call = self._calls[claim_id]
        self._chronicle.broke(claim, call, error, trio.current_time(), self._ledger.claims)
        self.notes.broke(claim_id, error)
        self.observe("call_broken", str(self.key), code=error.code)

    # Evidence: what the poller and the epoch actor use

    async def know_facts(self) -> ModelFacts:
        """What the model is; asks the backend if that is not known yet.

        Raises:
            BackendUnavailableError: the backend does not tell. No call was sent.
        """
        while self.facts is None:
            begun = self._lives_begun
            try:
                facts = await self._port.fetch_facts()
            except GovernorError as error:
                raise BackendUnavailableError(f"The model could not be asked what it is: {error.message}") from error
            # What was asked before another load was seen may tell of the load before.
            if begun == self._lives_begun:
                self.take_facts(facts)
        return self.facts

    def take_facts(self, facts: ModelFacts) -> None:
        """What the model's configuration says its counter means (E12)."""
        self.facts = facts
        # As in the ledger, once an ensemble, always counted like one: calls made under the old rule may still end.
        self._ensemble |= facts.ensemble
        self._ledger.count_by(
            ENSEMBLE if facts.ensemble else PLAIN, provable=not facts.decoupled, warms_up=facts.warms_up
        )

    def begin_reading(self) -> Ticket:
        """See `Ledger.begin_reading`."""
        return self._ledger.begin_reading(trio.current_time())

    async def read(self) -> Reading:
        """Asks the backend for a reading."""
        with self.watch.asking() as came:
            await self.know_facts()
            self.totals.readings += 1
            reading = await self._port.read()
            came(reading)
            return reading

    def reading_failed(self, error: GovernorError) -> None:
        """E9: the claims stay as they are."""
        self.totals.readings_failed += 1
        self._chronicle.failed(error)
        self.watch.failed()

    def apply(self, ticket: Ticket, reading: Reading) -> None:
        """Hands a reading to the ledger and tells everybody what it proved."""
        self.report(self._ledger.apply(ticket, reading, trio.current_time()))

    def report(self, verdict: Verdict) -> None:
        """Does and says what follows from a verdict of the ledger."""
        self._chronicle.judged(verdict, self._ledger, trio.current_time())
        if verdict.life in NEW_LIVES:
            self._lives_begun += 1
            self.facts = None  # another load may have another configuration
            if verdict.life is not Life.RELOAD:
                # A model process can outlive its server and keep connections open on which nobody answers.
                self._lanes.close(but=self._ledger.boot)
        self.notes.quarantined(verdict, self._ledger.claims)
        self._teller.tell(verdict, self._ledger.epoch, self._ledger.boot)
        self.settle()

    def evidence_done(self) -> None:
        """No claim waits any more: the readings' connection need not stay open."""
        self._port.close_idle()

    async def look_again(self) -> None:
        """One reading for the sake of quarantined claims, which only another process can end (E6, E8).

        The poller does not run for them, and where they hold every credit no call comes to notice a restart.
        """
        quarantined = any(claim.state is ClaimState.QUARANTINED for claim in self._ledger.claims.values())
        if quarantined and not self._ledger.wants_evidence:
            await self.take_reading()

    async def take_reading(self) -> None:
        """One reading, applied or reported as failed."""
        async with self.reading_turn:
            ticket = self.begin_reading()
            try:
                self.apply(ticket, await self.read())
            except GovernorError as error:
                self.reading_failed(error)
            if not self._ledger.wants_evidence:
                self.evidence_done()
