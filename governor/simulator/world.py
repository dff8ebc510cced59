"""The simulated world: a model repository, and one Triton process after another that serves it.

No I/O and no clock of its own: time passes through the scheduler it is given.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from governor.simulator.process import Process
from governor.simulator.rules import DEFAULT_VERSION, rules_of
from governor.simulator.workload import worklog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from governor.errors import JsonValue
    from governor.simulator.inference import Source
    from governor.simulator.scheduling import Scheduler


class SimulatedWorkLog:
    """What the simulated models really executed, in memory and, on demand, in a file as the real ones do.

    Attributes:
        lines: the log so far: `t` (unix seconds), `model`, `what` ("start" or "end"), `id`.
    """

    def __init__(self, world: World, path: str | None = None) -> None:
        self.lines: list[dict[str, JsonValue]] = []
        self._world = world
        self._path = path
        self._count = itertools.count(1)

    def start(self, model: str, request_id: str) -> str:
        """Log a start; the execution's id is the request's, or a new one where it has none."""
        execution = request_id or f"execution-{next(self._count)}"
        self._write(model, "start", execution)
        return execution

    def end(self, model: str, execution: str) -> None:
        """Log an end."""
        self._write(model, "end", execution)

    def _write(self, model: str, what: worklog.What, execution: str) -> None:
        now = self._world.unix_now()
        self.lines.append({"t": now, "model": model, "what": what, "id": execution})
        if self._path is not None:
            worklog.append(self._path, t=now, model=model, what=what, execution=execution)

    def highest_concurrency(self, model: str) -> int:
        """How many executions of a model ran at the same time at most."""
        running = highest = 0
        for line in self.lines:
            if line["model"] == model:
                running += 1 if line["what"] == "start" else -1
                highest = max(highest, running)
        return highest


class World:
    """A repository and at most one live process.

    Args:
        sources: the models of the repository.
        scheduler: through which time passes.
        version: the Triton release to behave like, for example "2.51.0".
        server_id: what a process tells as its name; every start may change it.
        start_models: the models each process loads at start; None: all.
        unix_start: the unix time at the scheduler's present.
        worklog_path: a file for the work log, besides memory.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        scheduler: Scheduler,
        *,
        version: str = DEFAULT_VERSION,
        server_id: str = "triton",
        start_models: Sequence[str] | None = None,
        unix_start: float = 1_750_000_000.0,
        worklog_path: str | None = None,
    ) -> None:
        self.repository = {source.config.name: source for source in sources}
        self.rules = rules_of(version)
        self.server_id = server_id
        self.start_models = None if start_models is None else tuple(start_models)
        self.worklog = SimulatedWorkLog(self, worklog_path)
        self.boots = 0
        self.process: Process | None = None
        self._scheduler = scheduler
        self._unix_offset = unix_start - scheduler.now()

    def unix_now(self) -> float:
        """Unix seconds."""
        return self._scheduler.now() + self._unix_offset

    def boot(self) -> Process:
        """Start a process and load the start models: counters 0, settings at their start-up values.

        Raises:
            RuntimeError: one lives already.
            RefusedError: a start model is not in the repository; nothing was started.
        """
        if self.process is not None:
            raise RuntimeError("a process lives already: kill it first")
        process = Process(
            self.repository,
            scheduler=self._scheduler,
            unix_now=self.unix_now,
            rules=self.rules,
            server_id=self.server_id,
            recorder=self.worklog,
        )
        for name in self.repository if self.start_models is None else self.start_models:
            process.load_model(name)
        self.boots += 1
        self.process = process
        return process

    def kill(self) -> None:
        """SIGKILL: the process, its work and its counters are gone. Nothing happens without one."""
        if self.process is not None:
            self.process.die()
            self.process = None
