"""The bench that scenarios stand on: the truth-telling backend, targets, CPU time, and tables of what was seen."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.load import Plan, Result, run
from bench.processes import Server, get, prefer
from bench.targets import INFER, STARTS, Place, Running
from governor.demo.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.truth import Told

Cell = str | float | int | None


@dataclass
class Table:
    """One result: rows of cells under named columns, and what is to be known about them.

    Attributes:
        chart: columns to draw: the horizontal one first.
        series: the column that tells lines of one chart apart.
    """

    title: str
    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    chart: tuple[str, str] | None = None
    series: str | None = None
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def shown(self) -> list[list[str]]:
        """The rows as they are printed."""
        return [[_shown(cell) for cell in row] for row in self.rows]

    def text(self) -> str:
        """For a terminal and for Markdown alike."""
        cells = [self.columns, *self.shown()]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
        lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return "\n".join([f"### {self.title}", "", *lines, "", *self.notes])


@dataclass(frozen=True)
class Measured:
    """One run against one target.

    Attributes:
        cpu_us: CPU time of the target per answer, microseconds; NaN for the backend itself.
        truth: what the backend says of it.
    """

    target: str
    result: Result
    cpu_us: float
    truth: Told


class Lab:
    """Holds the backend for all scenarios; targets are started by each.

    Args:
        stack: ends everything.
        targets: names of what is measured beside the backend itself.
        quick: fewer and shorter rounds.
        first: what is measured runs before other work of the machine (`processes.prefer`).
    """

    def __init__(self, stack: ExitStack, targets: Sequence[str], *, quick: bool, first: bool = False) -> None:
        self.quick = quick
        self.first = first
        self.targets = list(targets)
        self.rounds = 3 if quick else 5
        self.seconds = 1.2 if quick else 3.0
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        self._stack = stack
        cpus = sorted(os.sched_getaffinity(0))
        # The target has a CPU for itself as far as this bench goes; load and backend share another.
        self.target_cpu: int | None = cpus[0] if len(cpus) > 1 else None
        self.other_cpu: int | None = cpus[1] if len(cpus) > 1 else None
        (self.backend_port,) = free_ports(1)
        command = [sys.executable, "-m", "bench.backend", "--port", str(self.backend_port)]
        self.backend = stack.enter_context(Server("backend", command, folder=self.folder, cpu=self.other_cpu))
        self.backend.wait_for(self.backend_port, "/v2/health/ready")
        if first:
            prefer(self.backend.pid)

    def behave(self, **behaviour: float) -> None:
        """Resets the truth, and the backend's behaviour to the default but for what is named."""
        default = {"delay_ms": 0, "instances": 0, "answer_bytes": 0, "stream_events": 8, "stream_interval_ms": 10}
        get(self.backend_port, "/truth", json.dumps({**default, **behaviour}).encode())

    def forget(self) -> None:
        """Resets the truth alone."""
        get(self.backend_port, "/truth", b"{}")

    def truth(self) -> Told:
        """What the backend says now."""
        told: Told = json.loads(get(self.backend_port, "/truth")[1])
        return told

    @property
    def direct(self) -> Running:
        """The backend itself."""
        return Running("direct", self.backend_port, None)

    @contextmanager
    def start(self, name: str, **place: int | None) -> Iterator[Running]:
        """Runs a target while the block lasts."""
        port, spare_port = free_ports(2)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        made = Place(
            folder=folder, port=port, spare_port=spare_port, backend_port=self.backend_port, cpu=self.target_cpu
        )
        running = STARTS[name](replace(made, **place))  # type: ignore[arg-type]  # fields of `Place`
        assert running.server is not None
        with running.server:
            if self.first:
                prefer(running.server.pid)
            yield running

    @contextmanager
    def all(self, *, but: str | None = None, **place: int | None) -> Iterator[list[Running]]:
        """Runs every target at once, so that rounds can alternate between them; the backend itself comes first."""
        names = [name for name in self.targets if name != but]
        with ExitStack() as stack:
            yield [self.direct, *(stack.enter_context(self.start(name, **place)) for name in names)]

    def measure(self, running: Running, **plan: object) -> Measured:
        """One run of a plan against a target."""
        made = Plan(
            port=running.port,
            path=running.path,
            body=running.body,
            headers=running.headers,
            cpu=self.other_cpu,
            target_pid=running.server.pid if running.server else None,
            first=self.first,
        )
        made = replace(made, **{"seconds": self.seconds, **plan})  # type: ignore[arg-type]  # fields of `Plan`
        self.forget()
        result = run(made)
        return Measured(running.name, result, result.target_cpu_us, self.truth())

    def rounds_of(self, targets: Sequence[Running], **plan: object) -> dict[str, list[Measured]]:
        """Measures each target in turn, the order reversed each round, so that a noisy neighbour hits all alike."""
        seen: dict[str, list[Measured]] = {running.name: [] for running in targets}
        for number in range(self.rounds):
            for running in targets if number % 2 == 0 else reversed(targets):
                seen[running.name].append(self.measure(running, **plan))
        return seen


def middle(runs: Sequence[Measured], of: Callable[[Measured], float]) -> float:
    """The median over rounds."""
    return median(of(each) for each in runs)


def machine() -> dict[str, object]:
    """Where this ran, and how noisy it was: `steal` and the load are the neighbours'."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "load": [round(each, 2) for each in os.getloadavg()],
        "spin": _spin(),
    }


def _spin() -> dict[str, float]:
    """The same small loop a hundred times: how much longer it takes at worst is what neighbours take away."""
    times = []
    for _ in range(100):
        begun = time.perf_counter()
        sum(range(100_000))
        times.append(1000 * (time.perf_counter() - begun))
    times.sort()
    return {"best_ms": round(times[0], 2), "median_ms": round(times[50], 2), "p99_ms": round(times[98], 2)}


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        if cell != cell:  # noqa: PLR0124  # NaN
            return "-"
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.2f}"
    return str(cell)


__all__ = ["INFER", "Lab", "Measured", "Table", "machine", "middle"]
