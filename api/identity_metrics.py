"""The metric families of identities: slots, calls, evidence, and how long things take. See `metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from governor.core.claims import ClaimState
from governor.histogram import BOUNDS_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from governor.histogram import Histogram
    from governor.identity import IdentityStatistics

Family: TypeAlias = "GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily"

_IDENTITY: Final = ("backend", "model")
_STATES: Final = tuple(state for state in ClaimState if state is not ClaimState.ENDED)
_BOUNDS: Final = (*map(floatToGoString, BOUNDS_S), "+Inf")


def identity_families(identities: list[IdentityStatistics]) -> Iterator[Family]:
    """Everything about identities, in one scrape."""
    yield from _slots(identities)
    yield from _calls(identities)
    yield from _times(identities)
    yield from _evidence(identities)
    yield from _lives(identities)


def add_histogram(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    """Adds a histogram as one series of the family."""
    family.add_metric(labels, list(zip(_BOUNDS, histogram.cumulative(), strict=True)), histogram.sum_s)


def _slots(identities: list[IdentityStatistics]) -> Iterator[Family]:
    slots = _gauge("vig_slots", "Slot credits of the identity.")
    free = _gauge("vig_free_slots", "Slot credits that no claim holds; negative while slots were taken away.")
    quarantined = _gauge("vig_quarantined_slots", "Credits held by claims that no counter can prove ended any more.")
    claims = GaugeMetricFamily("vig_claims", "Claims that hold a slot credit, by state.", labels=[*_IDENTITY, "state"])
    oldest = GaugeMetricFamily(
        "vig_oldest_claim_seconds",
        "Age of the oldest claim in a state, since it got its credit; 0 where there is none.",
        labels=[*_IDENTITY, "state"],
    )
    for identity in identities:
        labels, ledger = _labels(identity), identity.ledger
        slots.add_metric(labels, ledger.slots)
        free.add_metric(labels, ledger.free)
        quarantined.add_metric(labels, ledger.states.get(ClaimState.QUARANTINED, 0))
        for state in _STATES:
            claims.add_metric([*labels, state.value], ledger.states.get(state, 0))
            oldest.add_metric([*labels, state.value], identity.oldest_claims_s.get(state, 0.0))
    yield from (slots, free, quarantined, claims, oldest)


def _calls(identities: list[IdentityStatistics]) -> Iterator[Family]:
    waiting = _gauge("vig_waiting_calls", "Calls that wait for a slot credit.")
    oldest = _gauge("vig_oldest_waiting_call_seconds", "How long the longest waiting call has waited; 0 for none.")
    started = _counter("vig_calls", "Calls that got a slot credit.")
    refused = _counter("vig_calls_refused", "Calls refused because too many were waiting already.")
    answered = _counter("vig_calls_answered", "Calls whose complete answer arrived.")
    undelivered = _counter("vig_calls_undelivered", "Calls that never left completely, so never executed.")
    broken = _counter("vig_calls_broken", "Calls whose connection died after delivery.")
    abandoned = _counter("vig_calls_abandoned", "Calls whose caller left before their end.")
    for identity in identities:
        labels, totals = _labels(identity), identity.totals
        waiting.add_metric(labels, identity.waiting)
        oldest.add_metric(labels, identity.oldest_waiting_s or 0.0)
        started.add_metric(labels, totals.calls)
        refused.add_metric(labels, totals.refused)
        answered.add_metric(labels, totals.answered)
        undelivered.add_metric(labels, totals.undelivered)
        broken.add_metric(labels, totals.broken)
        abandoned.add_metric(labels, totals.abandoned)
    yield from (waiting, oldest, started, refused, answered, undelivered, broken, abandoned)


def _times(identities: list[IdentityStatistics]) -> Iterator[Family]:
    wait = _histogram("vig_credit_wait_seconds", "From asking for a slot credit to getting it.")
    service = _histogram("vig_service_seconds", "From getting a slot credit to the complete answer.")
    lag = _histogram("vig_proof_lag_seconds", "From the break of a call to the proof of its end.", "proof")
    for identity in identities:
        labels, chronicle = _labels(identity), identity.chronicle
        add_histogram(wait, labels, chronicle.wait_s)
        add_histogram(service, labels, chronicle.service_s)
        for proof, histogram in chronicle.proof_lag_s.items():
            add_histogram(lag, [*labels, proof.value], histogram)
    yield from (wait, service, lag)


def _evidence(identities: list[IdentityStatistics]) -> Iterator[Family]:
    polling = _gauge("vig_polling", "1 while readings are taken because a claim waits for evidence.")
    readings = _counter("vig_readings", "Readings of the backend's counters that were asked for.")
    failed = _counter("vig_readings_failed", "Readings that the backend did not give.")
    stale = _counter("vig_readings_stale", "Readings of an earlier epoch, ignored.")
    reconciled = CounterMetricFamily(
        "vig_execution_reconciled", "Broken claims that evidence proved ended.", labels=[*_IDENTITY, "proof"]
    )
    # The name is fixed without the _total that a counter of this format must have.
    missing = _gauge("vig_reconcile_baseline_missing", "Claims that broke before there was a baseline; only grows.")
    released = _counter("vig_released_unproven", "Credits released without proof, by an operator or by age.")
    for identity in identities:
        labels, ledger, totals = _labels(identity), identity.ledger_totals, identity.totals
        polling.add_metric(labels, identity.polling)
        readings.add_metric(labels, totals.readings)
        failed.add_metric(labels, totals.readings_failed)
        stale.add_metric(labels, ledger.stale_readings)
        reconciled.add_metric([*labels, "quiet"], ledger.proven_quiet)
        reconciled.add_metric([*labels, "process_ended"], ledger.proven_process_ended)
        missing.add_metric(labels, ledger.baseline_missing)
        released.add_metric(labels, ledger.released_unproven)
    yield from (polling, readings, failed, stale, reconciled, missing, released)


def _lives(identities: list[IdentityStatistics]) -> Iterator[Family]:
    epoch = _gauge("vig_epoch", "Number of the current life of the counters; 0 before the first reading.")
    restarts = _counter("vig_restarts", "Restarts of the backend's process that were noticed.")
    reloads = _counter("vig_reloads", "Reloads of the model that were noticed.")
    falls = _counter("vig_unknown_falls", "Counters that fell and nobody could say why.")
    contested = _gauge("vig_contested", "1 while somebody else calls the model, so that no quiet proof counts.")
    contests = _counter("vig_contests", "Times that somebody else was noticed calling the model.")
    for identity in identities:
        labels, ledger = _labels(identity), identity.ledger_totals
        epoch.add_metric(labels, identity.ledger.epoch)
        restarts.add_metric(labels, ledger.restarts)
        reloads.add_metric(labels, ledger.reloads)
        falls.add_metric(labels, ledger.unknown_falls)
        contested.add_metric(labels, identity.ledger.contested)
        contests.add_metric(labels, ledger.contested)
    yield from (epoch, restarts, reloads, falls, contested, contests)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=_IDENTITY)


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=_IDENTITY)


def _histogram(name: str, text: str, *further: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, labels=[*_IDENTITY, *further])


def _labels(identity: IdentityStatistics) -> list[str]:
    return [identity.key.backend, identity.key.model]
