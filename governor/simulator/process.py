"""One simulated `tritonserver` process: what it has loaded, its settings, its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from governor.simulator.counters import Series, prometheus_text
from governor.simulator.ensemble import EnsembleLoad
from governor.simulator.load import Load
from governor.simulator.tensors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from governor.errors import JsonValue
    from governor.simulator.inference import Inference, Source, WorkRecorder
    from governor.simulator.rules import Rules
    from governor.simulator.scheduling import Scheduler, Timer

AnyLoad = Load | EnsembleLoad

UNLOAD_S: Final = 1.1
"""How long after its last work an unloaded model's processes are gone."""

TRACE_DEFAULTS: Final[Mapping[str, JsonValue]] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
_TRACE_NUMBERS: Final = {"trace_rate", "trace_count", "log_frequency"}


class Process:
    """A process from its start to its death. What dies with it is exactly what it holds.

    Args:
        repository: the models it can load, as they are at the time of each load.
        scheduler: the world's time.
        unix_now: the world's unix time in seconds.
        rules: how its release counts.
        server_id: what it tells as its name.
        recorder: where its models log their work.
    """

    def __init__(
        self,
        repository: Mapping[str, Source],
        *,
        scheduler: Scheduler,
        unix_now: Callable[[], float],
        rules: Rules,
        server_id: str,
        recorder: WorkRecorder,
    ) -> None:
        self.rules = rules
        self.server_id = server_id
        self.counter_lag_s = 0.0
        self.alive = True
        self._repository = repository
        self._scheduler = scheduler
        self._unix_now = unix_now
        self._recorder = recorder
        self._loads: dict[str, dict[int, AnyLoad]] = {}
        self._states: dict[str, dict[int, tuple[str, str]]] = {}
        self._series: dict[tuple[str, int], Series] = {}
        self._old_loads: set[AnyLoad] = set()
        self._trace: dict[str, JsonValue] = {}
        self._model_trace: dict[str, dict[str, JsonValue]] = {}

    # -- surroundings of the loads -------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds on the world's clock."""
        return self._scheduler.now()

    def unix_now(self) -> float:
        """Unix seconds."""
        return self._unix_now()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back later, unless the process is dead by then."""
        return self._scheduler.call_later(delay_s, lambda: callback() if self.alive else None)

    def die(self) -> None:
        """The process is gone, and with it all its work; nothing ends, nothing counts."""
        self.alive = False

    # -- inferences ----------------------------------------------------------------------------------------

    def find(self, model: str, version: int | None = None) -> AnyLoad:
        """The load that takes an inference: of one version, or of the highest one.

        Raises:
            RefusedError: 404, with Triton's sentence.
        """
        loads = self._loads.get(model, {})
        if version is not None:
            if version not in loads:
                raise RefusedError(404, f"Request for unknown model: '{model}' version {version} is not found")
            return loads[version]
        if not loads:
            ending = "has no available versions" if model in self._states else "is not found"
            raise RefusedError(404, f"Request for unknown model: '{model}' {ending}")
        return loads[max(loads)]

    def versions(self, model: str) -> list[str]:
        """The loaded versions of a model, lowest first."""
        return [str(version) for version in sorted(self._loads.get(model, {}))]

    def submit(self, load: AnyLoad, inference: Inference) -> None:
        """Start an inference; see `Load.submit`."""
        load.submit(inference)

    @property
    def in_flight(self) -> int:
        """Inferences queued or executing in the whole process."""
        current = [load for loads in self._loads.values() for load in loads.values()]
        return sum(load.in_flight for load in (*current, *self._old_loads))

    # -- statistics and metrics ----------------------------------------------------------------------------

    def statistics(self, model: str | None = None, version: int | None = None) -> dict[str, JsonValue]:
        """The body of the statistics of one model, of one version, or of all.

        Raises:
            RefusedError: 400, the model or version is not loaded.
        """
        if model is not None and not self._loads.get(model):
            raise RefusedError(400, f"requested model '{model}' is not available")
        if model is not None and version is not None and version not in self._loads[model]:
            raise RefusedError(400, f"requested model version is not available for model '{model}'")
        told: list[JsonValue] = [
            load.statistics.as_json(name, number)
            for name, loads in sorted(self._loads.items())
            for number, load in sorted(loads.items())
            if model in {None, name} and version in {None, number}
        ]
        return {"model_stats": told}

    def metrics(self) -> str:
        """The body of `/metrics`."""
        return prometheus_text((model, version, one) for (model, version), one in self._series.items())

    # -- model control -------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether the server is ready: not while any model is being unloaded."""
        return not any(state == "UNLOADING" for states in self._states.values() for state, _reason in states.values())

    def index(self, *, ready_only: bool = False) -> list[JsonValue]:
        """The repository index."""
        told: list[JsonValue] = []
        for name in sorted({*self._repository, *self._states}):
            states = self._states.get(name, {})
            if not states and not ready_only:
                told.append({"name": name})
            for version, (state, reason) in sorted(states.items()):
                if ready_only and state != "READY":
                    continue
                entry: dict[str, JsonValue] = {"name": name, "version": str(version), "state": state}
                told.append({**entry, "reason": reason} if reason else entry)
        return told

    def load_model(self, name: str) -> None:
        """Load a model as the repository has it now; what is loaded and unchanged stays as it is.

        Raises:
            RefusedError: 500, the repository has no such model.
        """
        source = self._repository.get(name)
        if source is None:
            raise RefusedError(500, f"failed to load '{name}', failed to poll from model repository")
        for step in source.config.ensemble:
            self.load_model(step.model)
        wanted = source.versions if source.config.all_versions else (max(source.versions),)
        loads = self._loads.setdefault(name, {})
        states = self._states.setdefault(name, {})
        for version in [version for version in loads if version not in wanted]:
            states[version] = ("UNLOADING", "")
            self._retire(name, loads.pop(version))
        for version in wanted:
            old = loads.get(version)
            unchanged = old is not None and old.revision == source.revision
            if old is not None and unchanged and old.config.same_load(source.config):
                old.config = source.config
                old.resize(source.config.instances)
                continue
            new = self._make(source, version)
            new.revision = source.revision
            loads[version] = new
            states[version] = ("READY", "")
            if old is not None:
                self._retire(name, old)

    def unload_model(self, name: str) -> None:
        """Unload a model and every ensemble that needs it; a model that is not loaded stays so.

        Work that executes goes on, and its end shows in the metrics only.
        """
        for other, loads in list(self._loads.items()):
            if any(step.model == name for load in loads.values() for step in load.config.ensemble):
                self.unload_model(other)
        for version, load in self._loads.pop(name, {}).items():
            self._states[name][version] = ("UNLOADING", "")
            self._retire(name, load)

    def _make(self, source: Source, version: int) -> AnyLoad:
        series = self._series.setdefault((source.config.name, version), Series())
        if source.config.ensemble:
            return EnsembleLoad(self, source.config, version, series, self._current)
        twin = source.make_twin(source.config, self._recorder)
        return Load(self, source.config, version, twin, series)

    def _current(self, model: str) -> AnyLoad | None:
        loads = self._loads.get(model)
        return loads[max(loads)] if loads else None

    def _retire(self, name: str, load: AnyLoad) -> None:
        self._old_loads.add(load)
        delay_s = 0.0 if isinstance(load, EnsembleLoad) else UNLOAD_S
        load.when_idle(lambda: self._close(name, load, delay_s))

    def _close(self, name: str, load: AnyLoad, delay_s: float) -> None:
        if delay_s:
            self.call_later(delay_s, lambda: self._close(name, load, 0.0))
            return
        self._old_loads.discard(load)
        self._series[name, load.version].release()
        if self._states[name].get(load.version) == ("UNLOADING", ""):
            self._states[name][load.version] = ("UNAVAILABLE", "unloaded")

    # -- trace settings ------------------------------------------------------------------------------------

    def trace(self, model: str | None = None) -> dict[str, JsonValue]:
        """The trace settings, global or as they hold for one model.

        Raises:
            RefusedError: 400, the model is not loaded.
        """
        if model is not None and not self._loads.get(model):
            raise RefusedError(400, f"Request for unknown model : {model}")
        own = self._model_trace.get(model, {}) if model is not None else {}
        return {**TRACE_DEFAULTS, **self._trace, **own}

    def set_trace(self, changes: Mapping[str, JsonValue], model: str | None = None) -> dict[str, JsonValue]:
        """Change trace settings; null means: back to the start-up value, or for a model to the global one.

        They survive every reload and unload and end with the process.

        Raises:
            RefusedError: with Triton's own sentence.
        """
        self.trace(model)
        kept = self._trace if model is None else self._model_trace.setdefault(model, {})
        parsed = {key: _trace_value(key, value) for key, value in changes.items() if key in TRACE_DEFAULTS}
        for key, value in parsed.items():
            if value is None:
                kept.pop(key, None)
            else:
                kept[key] = value
        return self.trace(model)


def _trace_value(key: str, value: JsonValue) -> JsonValue:
    if value is None or (key == "trace_level" and isinstance(value, list)):
        return value
    if not isinstance(value, str):
        raise RefusedError(500, "attempt to access JSON non-string as string")
    if key not in _TRACE_NUMBERS:
        return value
    try:
        number = int(value)
    except ValueError:
        raise RefusedError(400, f"Unable to parse '{key}', got: {value}") from None
    return str(number % 2**32) if key == "log_frequency" else str(number)
