"""The two sets of counters a Triton keeps: statistics per load of a model, metrics per process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from governor.errors import JsonValue

REASONS: Final = ("BACKEND", "CANCELED", "OTHER", "REJECTED")
"""The `reason` labels of the failure metric."""


@dataclass
class Tally:
    """How often, and for how long altogether."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count `times` more events of `seconds` each."""
        self.count += times
        self.ns += round(seconds * 1e9) * times

    def as_json(self) -> dict[str, JsonValue]:
        """As the statistics tell it."""
        return {"count": self.count, "ns": self.ns}


@dataclass
class Statistics:
    """What `GET /v2/models/NAME/stats` tells of one load of one model version."""

    success: Tally = field(default_factory=Tally)
    fail: Tally = field(default_factory=Tally)
    queue: Tally = field(default_factory=Tally)
    compute: Tally = field(default_factory=Tally)
    cache_hit: Tally = field(default_factory=Tally)
    cache_miss: Tally = field(default_factory=Tally)
    inference_count: int = 0
    execution_count: int = 0
    last_inference_ms: int = 0
    batches: dict[int, Tally] = field(default_factory=dict)

    def as_json(self, name: str, version: int) -> dict[str, JsonValue]:
        """One entry of `model_stats`."""
        inference_stats: dict[str, JsonValue] = {
            "success": self.success.as_json(),
            "fail": self.fail.as_json(),
            "queue": self.queue.as_json(),
            **_compute(self.compute),
            "cache_hit": self.cache_hit.as_json(),
            "cache_miss": self.cache_miss.as_json(),
        }
        return {
            "name": name,
            "version": str(version),
            "last_inference": self.last_inference_ms,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": inference_stats,
            "response_stats": {},
            "batch_stats": [{"batch_size": size, **_compute(tally)} for size, tally in sorted(self.batches.items())],
            "memory_usage": [],
        }


def _compute(tally: Tally) -> dict[str, JsonValue]:
    """All of a simulated model's time is inference; its inputs and outputs take none."""
    no_time: dict[str, JsonValue] = {"count": tally.count, "ns": 0}
    return {"compute_input": no_time, "compute_infer": tally.as_json(), "compute_output": no_time}


@dataclass
class Series:
    """The metrics of one (model, version) in one process.

    The success series and its like live as long as some load of the version does, and are counted on by an
    old load beside a new one. The failure series live as long as the process.
    """

    loads: int = 0
    success: int = 0
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    inferences: int = 0
    executions: int = 0
    request_us: int = 0
    compute_us: int = 0
    pending: int = 0

    def hold(self) -> None:
        """A load of the version begins."""
        self.loads += 1

    def release(self) -> None:
        """A load of the version is gone."""
        self.loads -= 1
        if not self.loads:
            self.success = self.inferences = self.executions = self.request_us = self.compute_us = 0


_FAMILIES: Final[tuple[tuple[str, str, str, Callable[[Series], int]], ...]] = (
    (
        "nv_inference_count",
        "counter",
        "Number of inferences performed (does not include cached requests)",
        lambda series: series.inferences,
    ),
    (
        "nv_inference_exec_count",
        "counter",
        "Number of model executions performed (does not include cached requests)",
        lambda series: series.executions,
    ),
    (
        "nv_inference_request_duration_us",
        "counter",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda series: series.request_us,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda series: series.compute_us,
    ),
    (
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda series: series.pending,
    ),
)


def prometheus_text(all_series: Iterable[tuple[str, int, Series]]) -> str:
    """The body of `GET /metrics`, from (model, version, series)."""
    held = list(all_series)
    lines = [
        "# HELP nv_inference_request_success Number of successful inference requests, all batch sizes",
        "# TYPE nv_inference_request_success counter",
        *(
            f'nv_inference_request_success{{model="{model}",version="{version}"}} {series.success}'
            for model, version, series in held
            if series.loads
        ),
        "# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes",
        "# TYPE nv_inference_request_failure counter",
        *(
            f'nv_inference_request_failure{{model="{model}",reason="{reason}",version="{version}"}} {count}'
            for model, version, series in held
            for reason, count in series.failures.items()
        ),
    ]
    for name, kind, about, value in _FAMILIES:
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        lines += [
            f'{name}{{model="{model}",version="{version}"}} {value(series)}'
            for model, version, series in held
            if series.loads
        ]
    return "\n".join(lines) + "\n"
