"""The operator's exits (E11): explicit, counted, and never for an open claim."""

from __future__ import annotations

import pytest
import trio

from governor.core.claims import ClaimState
from governor.errors import BackendUnavailableError, ClaimOpenError, UnknownClaimError
from tests.shell.harness import POLL_S, Bench, body_within, identity_bench, until
from tests.shell.test_evidence import break_one, warm_up
from tests.shell.world import Fault, decoupled_facts


async def quarantine_one(bench: Bench, seconds: float = 5) -> None:
    """A claim that no counter can prove."""
    bench.world.reload(decoupled_facts())
    await break_one(bench, seconds)
    await until(lambda: bench.states == {ClaimState.QUARANTINED: 1}, 2 * POLL_S)


async def test_a_forced_restart_releases_broken_claims_and_reports_them() -> None:
    """E11: from a fresh baseline; what is forgotten is told, counted, and free."""
    async with identity_bench() as bench:
        await quarantine_one(bench)
        before = bench.identity.statistics().ledger.epoch
        report = await bench.identity.operator.restart()
        assert [(claim.id, claim.state) for claim in report.forgotten] == [(1, ClaimState.QUARANTINED)]
        assert report.forgotten[0].age_s > 0
        assert report.epoch > before
        assert report.proven == report.open_claims == 0
        assert bench.free == 1
        assert bench.identity.statistics().ledger_totals.released_unproven == 1


async def test_a_forced_restart_leaves_open_claims_alone() -> None:
    """E6, E11: their own answer decides."""
    async with identity_bench(slots=2) as bench:
        await warm_up(bench)
        await break_one(bench, 30)
        call = bench.submit("5")
        await call.started()
        await trio.sleep(1)
        report = await bench.identity.operator.restart()
        assert (len(report.forgotten), report.open_claims) == (1, 1)
        assert bench.states == {ClaimState.RUNNING: 1}
        await body_within(call, 10)
        assert bench.free == 2


async def test_a_forced_restart_takes_proof_where_there_is_some() -> None:
    """E11: what the fresh reading proves is not called unproven."""
    async with identity_bench() as bench:
        await warm_up(bench)
        bench.world.fault = Fault.REFUSED
        await break_one(bench, 1)
        await trio.sleep(5 + POLL_S / 2)  # between two readings of the poller
        bench.world.fault = None
        report = await bench.identity.operator.restart()
        assert (report.proven, report.forgotten) == (1, ())
        assert bench.identity.statistics().ledger_totals.released_unproven == 0


async def test_a_forced_restart_is_refused_while_the_backend_gives_no_reading() -> None:
    """E11: without a fresh baseline nothing is done; the sentence says why."""
    async with identity_bench() as bench:
        await quarantine_one(bench)
        bench.world.fault = Fault.REFUSED
        with pytest.raises(BackendUnavailableError, match="fresh baseline"):
            await bench.identity.operator.restart()
        assert bench.states == {ClaimState.QUARANTINED: 1}


async def test_one_claim_can_be_released() -> None:
    """E11: the credit goes to whoever waits; the release is counted."""
    async with identity_bench() as bench:
        await quarantine_one(bench, seconds=1)
        waiting = bench.submit("1 after")
        await trio.sleep(3)
        assert bench.identity.operator.release(1, reason="checked by hand").state is ClaimState.QUARANTINED
        await body_within(waiting, 10)
        assert bench.identity.statistics().ledger_totals.released_unproven == 1


async def test_an_open_or_unknown_claim_cannot_be_released() -> None:
    """E11: an open claim's own answer or break decides."""
    async with identity_bench() as bench:
        call = bench.submit("5")
        await call.started()
        with pytest.raises(ClaimOpenError):
            bench.identity.operator.release(1, reason="impatience")
        with pytest.raises(UnknownClaimError):
            bench.identity.operator.release(7, reason="no such claim")
        assert bench.states == {ClaimState.RUNNING: 1}


async def test_quarantined_claims_are_released_at_the_age_the_operator_set() -> None:
    """E11: only with the setting, only quarantined ones, counted."""
    async with identity_bench(max_unprovable_age_s=60) as bench:
        await quarantine_one(bench)
        await trio.sleep(50)
        assert bench.states == {ClaimState.QUARANTINED: 1}
        assert await until(lambda: bench.free == 1, 20) < 15
        assert bench.identity.statistics().ledger_totals.released_unproven == 1


async def test_the_report_counts_what_stayed_and_nobody_who_came_after() -> None:
    """E11: the credits go to whoever waits at once; their claims are none of those that stayed."""
    async with identity_bench(slots=2) as bench:
        bench.world.reload(decoupled_facts())
        await break_one(bench, 100)
        bench.submit("50")
        await until(lambda: bench.states.get(ClaimState.QUARANTINED) == 1, 2 * POLL_S)
        bench.submit("50 waits")
        report = await bench.identity.operator.restart()
        assert (len(report.forgotten), report.open_claims) == (1, 1)
        assert bench.states == {ClaimState.RUNNING: 2}
