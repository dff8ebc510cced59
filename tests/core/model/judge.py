"""What the ledger must never do, held against the truth; and the exceptions, each with its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from governor.core.claims import ClaimEvent, ClaimState
from governor.core.evidence import Life, OnFall, Verdict
from tests.core.model.backend import DEAD, NEW, UP

if TYPE_CHECKING:
    from tests.core.model.world import World


class BrokenRuleError(AssertionError):
    """The ledger did what it must never do."""


class Sample(NamedTuple):
    """What the statistics showed at one moment, and (unknown to the ledger) of which life and process."""

    value: int
    versions: frozenset[str]
    boot: str | None
    life: int
    process: int


class Before:
    """What the ledger held when a reading came."""

    def __init__(self, world: World) -> None:
        claims = world.ledger.claims
        self.states = {claim_id: claim.state for claim_id, claim in claims.items()}
        self.seen = {claim_id for claim_id, claim in claims.items() if claim.seen}
        self.gone = {claim_id for claim_id, claim in claims.items() if claim.gone}
        self.contested = world.ledger.contested


FOREIGN = "somebody else's call was counted in place of ours"
WRONG_RELEASE = "an operator released a claim that still executed"
LATE_COUNT = "a count came later than the settle time"
RELOAD = "without boot identity a reload was taken for a restart, as the operator chose"
WINDOW = "without boot identity a call was lost in the new process before the restart was noticed, as ADR-0040 says"
WARM_UP = "a load warmed up more than its predecessor had counted, and overtook it unseen"


EARLY_COUNT = "the counter did not wait for the end of the work, and nobody had said so"
DRAIN = "the next process answered while the last one still executed"


def check_states(world: World) -> None:
    """After every event: a claim is open exactly while its connection is, and an answered one is gone."""
    claims = world.ledger.claims
    for index, call in enumerate(world.backend.calls):
        claim = claims.get(index + 1)
        if call.stage == NEW:
            break
        is_open = call.link in {UP, DEAD}
        if is_open != (claim is not None and claim.state.is_open):
            raise BrokenRuleError(f"claim {index + 1} is {claim and claim.state.value} while its connection is {call.link}")
    if world.ledger.free + len(claims) != world.ledger.slots:
        raise BrokenRuleError("credits are not conserved (E1)")


def check_verdict(world: World, before: Before, sample: Sample, verdict: Verdict) -> None:
    """After every reading: nothing ended early, nothing open ended, nothing was processed twice."""
    for claim_id, proof in verdict.ended:
        if not before.states[claim_id].is_broken:
            raise BrokenRuleError(f"open claim {claim_id} ended by {proof.value} (E6)")
        if world.backend.calls[claim_id - 1].executes:
            excuse = world.tainted or _excuse(world, before, sample, claim_id, proof, verdict)
            if excuse is None:
                raise BrokenRuleError(f"claim {claim_id} ended by {proof.value} while its work executes")
            world.excuses.add(excuse)
            world.tainted = excuse
        if before.contested and proof is ClaimEvent.QUIET:
            raise BrokenRuleError("a quiet proof was accepted while contested (E10)")
    if verdict.life is Life.STALE:
        world.seen.add("stale")
        return
    life, process, known = world.last
    if verdict.life is Life.RESTART and known == sample.process:
        raise BrokenRuleError("one restart was processed twice (E6)")
    if verdict.life in {Life.RELOAD, Life.UNKNOWN_FALL} and life == sample.life:
        raise BrokenRuleError(f"{verdict.life.value} without a new life (E6)")
    if verdict.contested and not before.contested and not world.tainted and not _others_count(world):
        raise BrokenRuleError("contested, although nobody else calls the model (E10)")
    _notice(world, before, sample, verdict)
    if sample.boot is not None or verdict.life in {Life.BASELINE, Life.RESTART, Life.UNKNOWN_FALL}:
        known = sample.process
    world.last = (sample.life, sample.process, known)


def _others_count(world: World) -> bool:
    bounds = world.bounds
    # With the last one a call may be given up between the moment a reading shows and its coming.
    return (
        world.left.foreign < bounds.foreign
        or bounds.warm_up_after > bounds.warm_up
        or not bounds.lag_is_short
        or bounds.on_fall is OnFall.RESTART
    )


def _excuse(
    world: World, before: Before, sample: Sample, claim_id: int, proof: ClaimEvent, verdict: Verdict
) -> str | None:
    bounds = world.bounds
    if world.left.foreign < bounds.foreign:
        return FOREIGN
    if not bounds.lag_is_short:
        return LATE_COUNT
    if bounds.counts_early:
        return EARLY_COUNT
    if bounds.drains:
        return DRAIN
    if bounds.warm_up_after > bounds.warm_up:
        return WARM_UP
    if proof is ClaimEvent.PROCESS_ENDED and claim_id in before.gone:
        return RELOAD
    if proof is ClaimEvent.PROCESS_ENDED and verdict.life is Life.UNKNOWN_FALL:
        if world.last[1] == sample.process and bounds.on_fall is not OnFall.HOLD:
            return RELOAD
        if bounds.on_fall is OnFall.RESTART and claim_id not in before.seen:
            return WINDOW
    return None


def _notice(world: World, before: Before, sample: Sample, verdict: Verdict) -> None:
    """Interesting situations, so that a search can show that it reached them."""
    seen = world.seen
    seen.add(verdict.life.value)
    proofs = [proof for _, proof in verdict.ended]
    if proofs.count(ClaimEvent.QUIET) > 1:
        seen.add("quiet ended two claims")
    for claim_id, proof in verdict.ended:
        seen.add(f"{before.states[claim_id].value} ended by {proof.value}")
        if proof is ClaimEvent.PROCESS_ENDED and verdict.life is Life.SAME:
            seen.add("a process proven dead ended what broke later")
    if verdict.quarantined:
        seen.add("quarantined")
    if verdict.contested:
        seen.add("contested")
    if before.contested and not verdict.contested:
        seen.add("contested no more")
    if verdict.life is Life.RESTART and any(state.is_open for state in before.states.values()):
        seen.add("an open claim was carried into a new process")
    if any(claim.replaced and claim.state is not ClaimState.QUARANTINED for claim in world.ledger.claims.values()):
        seen.add("a claim lost the model's counter")
    if ClaimEvent.QUIET in proofs and any(claim.replaced for claim in world.ledger.claims.values()):
        seen.add("quiet was proven beside a claim that lost the model's counter")
    if verdict.life is Life.SAME and world.last[0] != sample.life:
        seen.add("an overtaken counter hid a new life")
