"""`GET /metrics`: the governor's statistics in Prometheus' words, read at the moment of the scrape (A8).

Nothing is counted here: every number is the governor's own, so metrics and behaviour cannot disagree. Labels come
from the configuration (backend, model, name) and from the code (states, proofs, outcomes, reasons), so there are few
and always the same, whatever callers send.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from governor.core.prompts import Outcome

from .hardened.limits import OpenConnections
from .hardened.refusals import refused_connections
from .identity_metrics import Family, add_histogram, identity_families
from .logs import suppressed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from governor.service import Governor, GovernorStatistics

    from .refused import Refused


class GovernorCollector(Collector):
    """Turns one snapshot of a governor into metric families.

    Args:
        governor: whose numbers are shown.
        refused: the refusals of the application in front of it.
        in_flight: how many requests that application is serving.
        acp: how many connections of ACP clients it has.
    """

    def __init__(
        self, governor: Governor, refused: Refused, in_flight: Callable[[], int], acp: Callable[[], int]
    ) -> None:
        self._governor = governor
        self._refused = refused
        self._in_flight = in_flight
        self._acp = acp
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(namespace="vig", registry=self._registry)

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Family]:
        """Nothing: the names are not known before a scrape, and no other collector has names like these."""
        return ()

    def collect(self) -> Iterator[Family]:
        """One scrape."""
        statistics = self._governor.statistics()
        build = GaugeMetricFamily("vig_build_info", "Always 1; the label is the running version.", labels=["version"])
        build.add_metric([version("triton-governor")], 1)
        yield build
        yield from _service(statistics)
        yield from _prompts(statistics)
        yield from self._surface()
        yield from self._backends()
        yield from identity_families(statistics.identities)

    def _surface(self) -> Iterator[Family]:
        """What the HTTP server does, and what it refuses."""
        yield GaugeMetricFamily("vig_connections", "Open connections of clients.", OpenConnections.total())
        yield GaugeMetricFamily("vig_acp_connections", "Open connections of ACP clients.", self._acp())
        yield GaugeMetricFamily("vig_requests_in_flight", "Requests being answered.", self._in_flight())
        refusals = CounterMetricFamily(
            "vig_refusals", "Requests and connections refused, by the code of the answer.", labels=["reason"]
        )
        for reason, count in {**self._refused.counts, **refused_connections()}.items():
            refusals.add_metric([reason], count)
        yield refusals
        yield CounterMetricFamily(
            "vig_log_lines_suppressed", "Log events that were not written because too many came.", suppressed()
        )

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
    totals = statistics.totals
    yield GaugeMetricFamily("vig_draining", "1 once the governor accepts nothing more.", statistics.draining)
    yield GaugeMetricFamily("vig_sessions", "Live sessions.", statistics.sessions)
    yield CounterMetricFamily("vig_sessions_opened", "Sessions that were made.", totals.sessions_opened)
    yield GaugeMetricFamily("vig_event_subscribers", "Open event streams.", statistics.subscribers)
    yield CounterMetricFamily(
        "vig_subscriber_evictions", "Event streams ended because their reader was too slow.", totals.subscribers_evicted
    )


def _prompts(statistics: GovernorStatistics) -> Iterator[Family]:
    totals = statistics.totals
    yield GaugeMetricFamily(
        "vig_pending_prompts",
        "Accepted and not yet settled prompts, running ones included.",
        statistics.pending_prompts,
    )
    yield GaugeMetricFamily("vig_active_prompts", "Prompts whose turn is running.", statistics.active_prompts)
    yield CounterMetricFamily("vig_prompts_admitted", "Prompts that were accepted.", totals.prompts_admitted)
    yield CounterMetricFamily(
        "vig_prompts_refused", "Prompts refused because their session's queue was full.", totals.prompts_refused
    )
    took = HistogramMetricFamily(
        "vig_prompt_seconds", "From a prompt's admission to its end for its caller.", labels=["outcome"]
    )
    for outcome in Outcome:
        add_histogram(took, [outcome.value], totals.prompts_s[outcome])
    yield took
