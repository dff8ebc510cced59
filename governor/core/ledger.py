"""An identity's claims and epochs, and what a reading proves about them. Pure.

The rules, in the order in which they apply to a reading (`Ledger.apply`):

 1. A reading asked for before another was taken may show an earlier moment than that one: ignored.
 2. The first reading is the baseline (E4).
 3. Another boot identity, a counter that fell, or other versions: the counter has a new life, and a new epoch
    begins (E6, E7). Open claims move into it and never end by it.
      - the process is another one: broken claims that ran in an old one end, and what else it held or answered
        last is in no later bound (E6);
      - the process is the same: nothing ends (E7);
      - nobody can say: the operator's choice decides (E8, `OnFall`).
    Claims resident in the old life lose the model's counter. An open claim whose process is known to be gone ends
    at the first reading after it broke.
 4. A counter above its bound: somebody else calls the model; no quiet proof until a clean baseline (E10).
 5. A counter at its bound: nothing of ours is left; all broken claims it counts end together (E5). The process's
    counter is asked only for those that a reload may have hidden from the model's (E7).
 6. In any case the reading may lower the bound (`witness.py`).
 7. A broken claim that no counter can prove is quarantined, once a reading has seen it (E7, E12).

Everything else is bookkeeping: a claim adds its most to the bounds when it is dispatched and takes it back when
it turns out never to count.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from governor.core.claims import Claim, ClaimEvent, ClaimState
from governor.core.epoch import Epoch, Unsettled
from governor.core.evidence import LedgerSnapshot, LedgerTotals, Life, OnFall, Ticket, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.core.counting import CountRule, Reading
    from governor.core.witness import Witness


class Ledger:
    """The claims of one identity and the evidence about them.

    Args:
        slots: how many claims may exist at once, at least 1.
        rule: how the model's ends are counted.
        provable: False for a model whose counter proves nothing (E12).
        settle_s: a call answered this many seconds ago is in the counter (the counter lags its answer).
        on_fall: what a fall means without boot identity (E8).
    """

    def __init__(self, *, slots: int, rule: CountRule, provable: bool, settle_s: float, on_fall: OnFall) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        self.slots = slots
        self.on_fall = on_fall
        self.claims: dict[int, Claim] = {}
        self.contested = False
        self.totals = LedgerTotals()
        self._rule = rule
        self._provable = provable
        self._warms_up = False
        self._unsettled = Unsettled(settle_s)
        self._epoch = Epoch()
        self._readings = 0
        self._ids = count(1)

    @property
    def free(self) -> int:
        """Slot credits no claim holds; negative while slots were taken away under their holders (E1)."""
        return self.slots - len(self.claims)

    @property
    def boot(self) -> str | None:
        """Boot identity of the process that the current epoch belongs to, where known (E8)."""
        return self._epoch.boot

    @property
    def epoch(self) -> int:
        """Number of the current epoch; 0 before the first baseline."""
        return self._epoch.number

    # The life of a call

    def open(self, now_s: float) -> int:
        """Takes a free credit and returns the id of the claim on it.

        Raises:
            ValueError: no credit is free.
        """
        if self.free < 1:
            raise ValueError(f"no free credit: {len(self.claims)} claims on {self.slots} slots")
        claim = Claim(id=next(self._ids), opened_at_s=now_s)
        self.claims[claim.id] = claim
        return claim.id

    def dispatch(self, claim_id: int, boot: str | None = None) -> None:
        """The first byte of the call is about to leave on a connection to the process `boot` (E8)."""
        claim = self.claims[claim_id]
        assert not claim.may_count, "a claim is dispatched once"
        claim.may_count = True
        claim.countable = self._provable
        claim.boot = boot
        for witness in (self._epoch.model, self._epoch.process):
            if witness is not None:
                witness.may_count(self._rule.most)

    def delivered(self, claim_id: int, now_s: float) -> None:
        """The last byte of the call's request was written (E3)."""
        claim = self.claims[claim_id]
        assert claim.may_count, "a claim is dispatched before it is delivered"
        claim.delivered_at_s = now_s

    def caller_left(self, claim_id: int) -> None:
        """The caller has another outcome; the call goes on (E2). Says nothing to a claim that is over."""
        claim = self.claims.get(claim_id)
        if claim is not None and claim.state is ClaimState.RUNNING:
            claim.move(ClaimEvent.CALLER_LEFT)

    def answered(self, claim_id: int, now_s: float, *, least: int, most: int) -> None:
        """A complete answer arrived: the claim ends (E1).

        Args:
            claim_id: the claim.
            now_s: now.
            least: what the call adds to the counter at the least, by its answer.
            most: the same at the most; 0 for an answer that is known not to be counted (E5).
        """
        claim = self.claims[claim_id]
        claim.move(ClaimEvent.ANSWERED)
        most = min(most, self._rule.most)
        if claim.may_count:
            self._take_back(claim, self._rule.most - most)
            if most:
                self._unsettled.add(now_s, most, claim.boot)
            self._unsettled.doubtful |= least < most
        self._remove(claim)

    def lost(self, claim_id: int) -> bool:
        """The call's connection is gone without a complete answer.

        Returns:
            True if the claim ended by it, because the request never left completely (E3).
        """
        claim = self.claims[claim_id]
        if not claim.delivered:
            claim.move(ClaimEvent.UNDELIVERED)
            if claim.may_count:
                self._take_back(claim, self._rule.most)
            self._remove(claim)
            return True
        if self._epoch.model is None:
            claim.move(ClaimEvent.BROKE_WITHOUT_BASELINE)
            self.totals.baseline_missing += 1
        else:
            claim.move(ClaimEvent.BROKE)
        return False

    def release(self, claim_id: int, now_s: float) -> None:
        """An operator takes responsibility for one broken claim: its work is over (E11).

        It is then treated as if it had just been answered. If its work is not over after all, its end can pass for
        the end of another claim.

        Raises:
            KeyError: no such claim.
            IllegalTransitionError: the claim is open; its own answer or break decides.
        """
        claim = self.claims[claim_id]
        claim.move(ClaimEvent.RELEASED)
        self.totals.released_unproven += 1
        self._unsettled.add(now_s, self._rule.most, claim.boot)
        self._unsettled.doubtful = True
        self._remove(claim)

    def restart(self, ticket: Ticket, reading: Reading, now_s: float) -> tuple[Verdict, tuple[int, ...]]:
        """An operator says that the work of every broken claim is over (E11): they are released, all at once.

        The reading is evidence first, so that what it proves is not called unproven; then it is the baseline of a
        new epoch. Open claims stay: their own answer or break decides.

        Returns:
            What the reading proved, and the claims that were released without proof. Neither for a stale reading.
        """
        verdict = self.apply(ticket, reading, now_s)
        if verdict.life is Life.STALE:
            return verdict, ()
        forgotten = tuple(claim.id for claim in self._broken())
        for claim_id in forgotten:
            self.release(claim_id, now_s)
        self.contested = False
        self._begin_epoch(Life.BASELINE, ticket, reading)
        self._mark_seen(ticket, reading)
        return verdict, forgotten

    # Evidence

    @property
    def wants_evidence(self) -> bool:
        """E9: some claim is reconciling or awaits a baseline."""
        for claim in self.claims.values():
            # Nearly all of them run, nearly always, and this is asked at each change.
            if claim.state is not ClaimState.RUNNING and claim.state.waits_on_evidence:
                return True
        return False

    def wants_baseline(self, now_s: float) -> bool:
        """True when a reading before the next delivery is worth its time.

        It is when no baseline exists (E4), when a bound is in doubt and the counter has settled (E5), and when
        a foreign caller was seen and nothing of ours runs (E10).
        """
        if self._epoch.model is None:
            return True
        if self.contested:
            return not self._outstanding()
        return self._unsettled.doubtful and self._unsettled.all_settled(now_s)

    def begin_reading(self, now_s: float) -> Ticket:
        """To be called when a reading is asked for; the ticket comes back with `apply`."""
        return Ticket(after=self._readings, begun_at_s=now_s, settled=self._unsettled.settled(now_s))

    def apply(self, ticket: Ticket, reading: Reading, now_s: float) -> Verdict:
        """Takes a reading that has arrived now as evidence. The rules are at the top of this module."""
        if ticket.after != self._readings:
            self.totals.stale_readings += 1
            return Verdict(Life.STALE, contested=self.contested)
        self._readings += 1
        life = self._epoch.life_of(reading, self._rule)
        ended = self._end_with_process(life, ticket, reading)
        quarantined: list[int] = []
        if life is Life.SAME:
            ended += self._prove_quiet(ticket, reading, now_s)
        else:
            quarantined += self._begin_epoch(life, ticket, reading)
        self._mark_seen(ticket, reading)
        quarantined += self._quarantine_unprovable()
        return Verdict(life, tuple(ended), tuple(quarantined), self.contested)

    def count_by(self, rule: CountRule, *, provable: bool, warms_up: bool = False) -> None:
        """What the model's configuration says of its counters now (E12).

        A rule never becomes less cautious, because calls made under the old one may still end. A changed one
        makes the bounds meaningless: the next reading is a baseline.

        Args:
            rule: how its ends are counted.
            provable: False for a model whose counter proves nothing.
            warms_up: its loads warm up. The process counts every load's warm-up, which would pass for the end of a
                call in an older load, so its counter proves nothing.
        """
        self._provable = provable
        if not provable:
            # A call delivered just before this was known may run in the load that this is known of.
            for claim in self.claims.values():
                claim.countable = False
        if self._warms_up and not warms_up:
            self._epoch.process = None
        self._warms_up = warms_up
        if rule.most > self._rule.most:
            # What was let go of under the old rule is not in the counter yet, and will be measured by the new one.
            self._unsettled.reweigh(-(-rule.most // self._rule.most))
            self._rule = rule
            self._readings += 1
            self._epoch = Epoch(number=self._epoch.number + 1, boot=self._epoch.boot)

    def snapshot(self) -> LedgerSnapshot:
        """A copy of what can be seen from outside."""
        states: dict[ClaimState, int] = {state: 0 for state in ClaimState if state is not ClaimState.ENDED}
        for claim in self.claims.values():
            states[claim.state] += 1
        model, process = self._epoch.model, self._epoch.process
        return LedgerSnapshot(
            slots=self.slots,
            free=self.free,
            epoch=self._epoch.number,
            boot=self._epoch.boot,
            contested=self.contested,
            has_baseline=model is not None,
            states=states,
            model_bound=model.bound if model else None,
            model_high=model.high if model else None,
            process_bound=process.bound if process else None,
            process_high=process.high if process else None,
        )

    # How a reading is taken apart

    def _prove_quiet(self, ticket: Ticket, reading: Reading, now_s: float) -> list[tuple[int, ClaimEvent]]:
        """Rules 4 to 6."""
        values = self._values(reading)
        if any(witness.contested(value) for witness, value in values):
            self.totals.contested += not self.contested
            self.contested = True
        if self.contested and (self._outstanding() or self._unsettled.since(ticket)):
            self._epoch.keep_highest(reading, self._rule)
            return []
        if self.contested:
            self.contested = False
            self._epoch = Epoch(number=self._epoch.number + 1, boot=self._epoch.boot)
        # Before anything ends: the two witnesses may have been read at different moments, so what the one shows may
        # still come to the other.
        self._observe(ticket, reading)
        ended: list[tuple[int, ClaimEvent]] = []
        for witness, value in values:
            if witness.quiet(value, self._rule.most):
                proven = self._counted_by(witness)
                # For the same reason, and because the last call may be counted in two steps.
                for claim in proven:
                    self._unsettled.add(now_s, self._rule.most, claim.boot)
                self._unsettled.doubtful |= bool(proven) and value < witness.bound
                ended += self._end(proven, ClaimEvent.QUIET)
        return ended

    def _end_with_process(self, life: Life, ticket: Ticket, reading: Reading) -> list[tuple[int, ClaimEvent]]:
        """Rule 3: ends the broken claims whose process is gone. Open claims are never ended (E6)."""
        for claim in self.claims.values():
            if self._is_known_dead(claim, life, ticket, reading):
                claim.gone = True
                if claim.may_count:
                    self._take_back(claim, self._rule.most)  # no later process counts it
                    claim.may_count = False
            elif self._is_given_up(claim, life, ticket, reading):
                claim.gone = True
        return self._end([claim for claim in self._broken() if claim.gone], ClaimEvent.PROCESS_ENDED)

    def _is_known_dead(self, claim: Claim, life: Life, ticket: Ticket, reading: Reading) -> bool:
        """E8: it was delivered to another process than the one that answers now, and not to a later one."""
        if not claim.delivered or claim.boot is None or reading.boot is None:
            return False
        after = claim.boot != reading.boot and claim.delivered_before(ticket.begun_at_s)
        return after or (life is Life.RESTART and claim.boot == self._epoch.boot)

    def _is_given_up(self, claim: Claim, life: Life, ticket: Ticket, reading: Reading) -> bool:
        """E8: nobody knows which process it went to, and the operator chose to think that it is dead."""
        if life is not Life.UNKNOWN_FALL or not claim.delivered_before(ticket.begun_at_s):
            return False
        if self.on_fall is OnFall.HOLD or (claim.boot is not None and reading.boot is not None):
            return False
        return claim.seen or (self.on_fall is OnFall.RESTART and claim.state.is_broken)

    def _begin_epoch(self, life: Life, ticket: Ticket, reading: Reading) -> list[int]:
        """Starts the counter's new life at the reading and carries over what may still count in it.

        Returns:
            The claims quarantined because nobody can say which life they belong to (E8).
        """
        old, quarantined = self._epoch, []
        self.totals.restarts += life is Life.RESTART
        self.totals.reloads += life is Life.RELOAD
        self.totals.unknown_falls += life is Life.UNKNOWN_FALL
        if life is Life.RESTART and old.boot is not None:
            self._unsettled.process_ended(old.boot)
        if life is Life.UNKNOWN_FALL:
            for claim in self._delivered_before(ticket):
                if claim.state.waits_on_evidence:
                    claim.move(ClaimEvent.UNPROVABLE)
                    quarantined.append(claim.id)
        # With several versions the fall may be one's, and a claim may run in another that went on.
        all_loads = life is Life.RESTART or len(old.versions | reading.versions) <= 1
        for claim in self.claims.values():
            if life is not Life.BASELINE and (all_loads or not old.versions & reading.versions):
                claim.replaced |= claim.resident
            claim.crossed |= claim.may_count and life in {Life.RELOAD, Life.UNKNOWN_FALL}
            if claim.state is ClaimState.AWAITING_BASELINE:
                claim.move(ClaimEvent.BASELINE_READ)
        self._epoch = Epoch(
            number=old.number + 1,
            # After a fall that nobody could explain the process is another one for all we know.
            boot=None if life is Life.UNKNOWN_FALL else old.boot,
            process=old.process if life is Life.RELOAD else None,
        )
        self._observe(ticket, reading)
        return quarantined

    def _observe(self, ticket: Ticket, reading: Reading) -> None:
        """Rule 6, and the start of a witness that has no bound yet."""
        unsettled = self._unsettled.since(ticket)
        outstanding = self._outstanding()
        counted = [claim for claim in outstanding if not claim.replaced]
        exact = not unsettled and not any(claim.state.is_open for claim in counted)
        self._unsettled.doubtful = not exact and (self._unsettled.doubtful or self._epoch.model is None)
        self._epoch.observe(
            reading,
            self._rule,
            by_model=len(counted) * self._rule.most + unsettled,
            by_process=len(outstanding) * self._rule.most + unsettled,
            crossed=self._crossed,
        )

    def _mark_seen(self, ticket: Ticket, reading: Reading) -> None:
        if reading.boot != self._epoch.boot:
            return  # it does not tell its process, which may be another than the epoch's
        settled_s = ticket.begun_at_s - self._unsettled.settle_s
        for claim in self._delivered_before(ticket):
            claim.seen = True
            claim.resident |= claim.delivered_at_s is not None and claim.delivered_at_s <= settled_s
            claim.boot = claim.boot or reading.boot

    def _quarantine_unprovable(self) -> list[int]:
        """Rule 7."""
        hopeless = [
            claim
            for claim in self._broken()
            if claim.state is ClaimState.RECONCILING
            and claim.seen
            and (not claim.countable or (claim.replaced and (self._epoch.process is None or self._warms_up)))
        ]
        for claim in hopeless:
            claim.move(ClaimEvent.UNPROVABLE)
        return [claim.id for claim in hopeless]

    # Bookkeeping

    def _values(self, reading: Reading) -> list[tuple[Witness, int]]:
        """Each valid witness with what it shows now.

        The process's counter is one only while a claim may be in an older load: for the others it adds nothing but
        the warm-up of a load that does not serve yet, of which nothing else tells (E7).
        """
        model, process = self._epoch.model, self._epoch.process
        assert model is not None, "quiet is only asked of an epoch with a baseline"
        values = [(model, self._rule.measure(reading.model))]
        if self._crossed and process is not None and reading.process is not None and not self._warms_up:
            value = self._rule.measure(reading.process)
            # With an unchanged process a fall means that its series was started anew: no evidence.
            if not process.fell(value):
                values.append((process, value))
        return values

    def _counted_by(self, witness: Witness) -> list[Claim]:
        """The broken claims whose end this witness shows."""
        by_process = witness is self._epoch.process
        return [
            claim
            for claim in self._broken()
            if claim.countable and (claim.crossed if by_process else not claim.replaced)
        ]

    def _take_back(self, claim: Claim, surplus: int) -> None:
        """A claim that may count adds `surplus` less than assumed."""
        if self._epoch.model is not None and not claim.replaced:
            self._epoch.model.never_counts(surplus)
        if self._epoch.process is not None:
            self._epoch.process.never_counts(surplus)

    @property
    def _crossed(self) -> bool:
        return any(claim.crossed for claim in self.claims.values())

    def _delivered_before(self, ticket: Ticket) -> list[Claim]:
        return [claim for claim in self.claims.values() if claim.delivered_before(ticket.begun_at_s)]

    def _outstanding(self) -> list[Claim]:
        return [claim for claim in self.claims.values() if claim.may_count]

    def _broken(self) -> list[Claim]:
        return [claim for claim in self.claims.values() if claim.state.is_broken]

    def _end(self, claims: Iterable[Claim], proof: ClaimEvent) -> list[tuple[int, ClaimEvent]]:
        ended: list[tuple[int, ClaimEvent]] = []
        for claim in claims:
            claim.move(proof)
            self._remove(claim)
            ended.append((claim.id, proof))
        if proof is ClaimEvent.QUIET:
            self.totals.proven_quiet += len(ended)
        else:
            self.totals.proven_process_ended += len(ended)
        return ended

    def _remove(self, claim: Claim) -> None:
        assert claim.state is ClaimState.ENDED, "a credit comes back only when its claim has ended (E1)"
        del self.claims[claim.id]
