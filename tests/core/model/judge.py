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
        self.doubtful = world.ledger._unsettled.doubtful


FOREIGN = "somebody else's call was counted in place of ours"
WRONG_RELEASE = "an operator released a claim that still executed"
LATE_COUNT = "a count came later than the settle time"
RELOAD = "without boot identity a reload was taken for a restart, as the operator chose"
WINDOW = "without boot identity a call was lost in the new process before the restart was noticed, as ADR-0040 says"
WARM_UP = "a load that nobody noticed warmed up, as its predecessor had not"


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
            state = None if claim is None else claim.state.value
            raise BrokenRuleError(f"claim {index + 1} is {state} while its connection is {call.link}")
    if world.ledger.free + len(claims) != world.ledger.slots:
        raise BrokenRuleError("credits are not conserved (E1)")


def check_verdict(world: World, before: Before, sample: Sample, verdict: Verdict) -> None:
    """After every reading: nothing ended early, nothing open ended, nothing was processed twice."""
    for claim_id, proof in verdict.ended:
        _check_end(world, before, sample, claim_id, proof, verdict)
    if verdict.life is Life.STALE:
        world.seen.add("stale")
        return
    life, _, known = world.last
    if verdict.life is Life.RESTART and known == sample.process:
        raise BrokenRuleError("one restart was processed twice (E6)")
    if verdict.life in {Life.RELOAD, Life.UNKNOWN_FALL} and life == sample.life:
        raise BrokenRuleError(f"{verdict.life.value} without a new life (E6)")
    if verdict.contested and not before.contested and not world.tainted and not _others_count(world):
        raise BrokenRuleError("contested, although nobody else calls the model (E10)")
    _notice(world, before, sample, verdict)
    if sample.boot is not None or verdict.life in {Life.RESTART, Life.UNKNOWN_FALL}:
        known = sample.process
    world.last = (sample.life, sample.process, known)


def _check_end(
    world: World, before: Before, sample: Sample, claim_id: int, proof: ClaimEvent, verdict: Verdict
) -> None:
    if not before.states[claim_id].is_broken:
        raise BrokenRuleError(f"open claim {claim_id} ended by {proof.value} (E6)")
    if before.contested and proof is ClaimEvent.QUIET:
        raise BrokenRuleError("a quiet proof was accepted while contested (E10)")
    if world.backend.calls[claim_id - 1].executes:
        excuse = world.tainted or _excuse(world, before, sample, claim_id, proof, verdict)
        if excuse is None:
            raise BrokenRuleError(f"claim {claim_id} ended by {proof.value} while its work executes")
        world.excuses.add(excuse)
        world.tainted = excuse


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
    """The one exception that a world allows, if this is it."""
    bounds = world.bounds
    if proof is ClaimEvent.PROCESS_ENDED and not bounds.drains:
        if claim_id in before.gone:
            return RELOAD
        if verdict.life is not Life.UNKNOWN_FALL or bounds.on_fall is OnFall.HOLD:
            return None
        if world.last[1] == sample.process:
            return RELOAD
        return WINDOW if bounds.on_fall is OnFall.RESTART and claim_id not in before.seen else None
    return next(
        (
            excuse
            for applies, excuse in (
                (world.left.foreign < bounds.foreign, FOREIGN),
                (not bounds.lag_is_short, LATE_COUNT),
                (bounds.counts_early, EARLY_COUNT),
                (bounds.drains, DRAIN),
                (bounds.warm_up_after > bounds.warm_up, WARM_UP),
            )
            if applies
        ),
        None,
    )


def _notice(world: World, before: Before, sample: Sample, verdict: Verdict) -> None:
    """Interesting situations, so that a search can show that it reached them."""
    proofs = [proof for _, proof in verdict.ended]
    claims = world.ledger.claims.values()
    same = verdict.life is Life.SAME
    world.seen.add(verdict.life.value)
    for claim_id, proof in verdict.ended:
        world.seen.add(f"{before.states[claim_id].value} ended by {proof.value}")
    for happened, situation in (
        (proofs.count(ClaimEvent.QUIET) > 1, "quiet ended two claims"),
        (same and ClaimEvent.PROCESS_ENDED in proofs, "a process proven dead ended what broke later"),
        (before.doubtful and not world.ledger._unsettled.doubtful, "a doubt was resolved"),
        (bool(verdict.quarantined), "quarantined"),
        (verdict.contested, "contested"),
        (before.contested and not verdict.contested, "contested no more"),
        (
            verdict.life is Life.RESTART and any(state.is_open for state in before.states.values()),
            "an open claim was carried into a new process",
        ),
        (
            any(claim.replaced and claim.state is not ClaimState.QUARANTINED for claim in claims),
            "a claim lost the model's counter",
        ),
        (
            ClaimEvent.QUIET in proofs and any(claim.replaced for claim in claims),
            "quiet was proven beside a claim that lost the model's counter",
        ),
        (same and world.last[0] != sample.life, "an overtaken counter hid a new life"),
    ):
        if happened:
            world.seen.add(situation)
