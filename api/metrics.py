"""`GET /metrics`: the governor's statistics in Prometheus' words, read at the moment of the scrape (A8).

Nothing is counted here: every number is the governor's own, so metrics and behaviour cannot disagree. Labels come
from the configuration (backend, model) and from the code (claim states, proofs), so there are few and always the same.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from governor.core.claims import ClaimState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from governor.identity import IdentityStatistics
    from governor.service import Governor, GovernorStatistics

Family: TypeAlias = "GaugeMetricFamily | CounterMetricFamily"

_IDENTITY: Final = ("backend", "model")
_STATES: Final = tuple(state for state in ClaimState if state is not ClaimState.ENDED)


class GovernorCollector(Collector):
    """Turns one snapshot of a governor into metric families."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Family]:
        """Nothing: the names are not known before a scrape, and no other collector shares the registry."""
        return ()

    def collect(self) -> Iterator[Family]:
        """One scrape."""
        statistics = self._governor.statistics()
        build = GaugeMetricFamily("vig_build_info", "Always 1; the label is the running version.", labels=["version"])
        build.add_metric([version("triton-governor")], 1)
        yield build
        yield from _service(statistics)
        yield from self._backends()
        yield from _slots(statistics.identities)
        yield from _calls(statistics.identities)
        yield from _evidence(statistics.identities)

    def _backends(self) -> Iterator[Family]:
        up = GaugeMetricFamily("vig_backend_up", "1 while the last health check found the server.", labels=["backend"])
        for name, backend in self._governor.backends.items():
            up.add_metric([name], backend.status.problem is None)
        yield up
        text = "1 while the model (by its public name) is ready for calls."
        usable = GaugeMetricFamily("vig_model_usable", text, labels=["name"])
        problems = self._governor.problems()
        for name in self._governor.models:
            usable.add_metric([name], name not in problems)
        yield usable


def _service(statistics: GovernorStatistics) -> Iterator[Family]:
    yield GaugeMetricFamily("vig_draining", "1 once the governor accepts nothing more.", statistics.draining)
    yield GaugeMetricFamily("vig_sessions", "Live sessions.", statistics.sessions)
    yield GaugeMetricFamily(
        "vig_pending_prompts",
        "Accepted and not yet settled prompts, running ones included.",
        statistics.pending_prompts,
    )
    yield GaugeMetricFamily("vig_active_prompts", "Prompts whose turn is running.", statistics.active_prompts)
    yield GaugeMetricFamily("vig_event_subscribers", "Open event streams.", statistics.subscribers)
    yield CounterMetricFamily("vig_prompts_admitted", "Prompts that got a 202.", statistics.prompts_admitted)
    yield CounterMetricFamily(
        "vig_prompts_refused",
        "Prompts refused because their session's queue was full.",
        statistics.prompts_refused,
    )


def _slots(identities: list[IdentityStatistics]) -> Iterator[Family]:
    slots = _gauge("vig_slots", "Slot credits of the identity.")
    free = _gauge("vig_free_slots", "Slot credits that no claim holds.")
    quarantined = _gauge("vig_quarantined_slots", "Credits held by claims that no counter can prove ended any more.")
    claims = GaugeMetricFamily("vig_claims", "Claims that hold a slot credit, by state.", labels=[*_IDENTITY, "state"])
    for identity in identities:
        labels, ledger = _labels(identity), identity.ledger
        slots.add_metric(labels, ledger.slots)
        free.add_metric(labels, ledger.free)
        quarantined.add_metric(labels, ledger.states.get(ClaimState.QUARANTINED, 0))
        for state in _STATES:
            claims.add_metric([*labels, state.value], ledger.states.get(state, 0))
    yield from (slots, free, quarantined, claims)


def _calls(identities: list[IdentityStatistics]) -> Iterator[Family]:
    waiting = _gauge("vig_waiting_calls", "Calls that wait for a slot credit.")
    started = _counter("vig_calls", "Calls that got a slot credit.")
    refused = _counter("vig_calls_refused", "Calls refused because too many were waiting already.")
    answered = _counter("vig_calls_answered", "Calls whose complete answer arrived.")
    undelivered = _counter("vig_calls_undelivered", "Calls that never left completely, so never executed.")
    broken = _counter("vig_calls_broken", "Calls whose connection died after delivery.")
    abandoned = _counter("vig_calls_abandoned", "Calls whose caller left before their end.")
    for identity in identities:
        labels, totals = _labels(identity), identity.totals
        waiting.add_metric(labels, identity.waiting)
        started.add_metric(labels, totals.calls)
        refused.add_metric(labels, totals.refused)
        answered.add_metric(labels, totals.answered)
        undelivered.add_metric(labels, totals.undelivered)
        broken.add_metric(labels, totals.broken)
        abandoned.add_metric(labels, totals.abandoned)
    yield from (waiting, started, refused, answered, undelivered, broken, abandoned)


def _evidence(identities: list[IdentityStatistics]) -> Iterator[Family]:
    contested = _gauge("vig_contested", "1 while somebody else calls the model, so that no quiet proof counts.")
    polling = _gauge("vig_polling", "1 while readings are taken because a claim waits for evidence.")
    readings = _counter("vig_readings", "Readings of the backend's counters that were asked for.")
    failed = _counter("vig_readings_failed", "Readings that the backend did not give.")
    stale = _counter("vig_readings_stale", "Readings of an earlier epoch, ignored.")
    reconciled = CounterMetricFamily(
        "vig_execution_reconciled", "Broken claims that evidence proved ended.", labels=[*_IDENTITY, "proof"]
    )
    # The name is fixed without the _total that a counter of this format must have.
    missing = _gauge("vig_reconcile_baseline_missing", "Claims that broke before there was a baseline; only grows.")
    restarts = _counter("vig_restarts", "Restarts of the backend's process that were noticed.")
    reloads = _counter("vig_reloads", "Reloads of the model that were noticed.")
    falls = _counter("vig_unknown_falls", "Counters that fell and nobody could say why.")
    released = _counter("vig_released_unproven", "Credits released without proof, by an operator or by age.")
    for identity in identities:
        labels, ledger, totals = _labels(identity), identity.ledger_totals, identity.totals
        contested.add_metric(labels, identity.ledger.contested)
        polling.add_metric(labels, identity.polling)
        readings.add_metric(labels, totals.readings)
        failed.add_metric(labels, totals.readings_failed)
        stale.add_metric(labels, ledger.stale_readings)
        reconciled.add_metric([*labels, "quiet"], ledger.proven_quiet)
        reconciled.add_metric([*labels, "process_ended"], ledger.proven_process_ended)
        missing.add_metric(labels, ledger.baseline_missing)
        restarts.add_metric(labels, ledger.restarts)
        reloads.add_metric(labels, ledger.reloads)
        falls.add_metric(labels, ledger.unknown_falls)
        released.add_metric(labels, ledger.released_unproven)
    yield from (contested, polling, readings, failed, stale, reconciled, missing)
    yield from (restarts, reloads, falls, released)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=_IDENTITY)


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=_IDENTITY)


def _labels(identity: IdentityStatistics) -> list[str]:
    return [identity.key.backend, identity.key.model]
