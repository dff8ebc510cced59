"""A model's configuration, in the few fields that change what a model does, and as Triton tells it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from governor.errors import JsonValue


@dataclass(frozen=True)
class TensorSpec:
    """One input or output. `dims` leaves the batch dimension out; -1 is any size."""

    name: str
    datatype: str
    dims: tuple[int, ...] = (1,)
    optional: bool = False

    @property
    def config_type(self) -> str:
        """The datatype as a model configuration spells it."""
        return "TYPE_STRING" if self.datatype == "BYTES" else f"TYPE_{self.datatype}"


@dataclass(frozen=True)
class Batcher:
    """A dynamic batcher and its queue policy. Times in seconds; None and 0: no limit."""

    max_queue_delay_s: float = 0.0
    timeout_s: float | None = None
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True)
class EnsembleStep:
    """One member of an ensemble: member tensor name -> ensemble tensor name."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]


@dataclass(frozen=True)
class ModelConfig:
    """The configuration of one model. `max_batch_size` 0: no batching, no batch dimension."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    decoupled: bool = False
    instances: int = 1
    batcher: Batcher | None = None
    ensemble: tuple[EnsembleStep, ...] = ()
    response_cache: bool = False
    warmup_count: int = 0
    all_versions: bool = False
    parameters: dict[str, str] = field(default_factory=dict)

    def same_load(self, other: ModelConfig) -> bool:
        """Whether Triton keeps what is loaded (and its counters) when this replaces `other`."""
        return replace(self, instances=1) == replace(other, instances=1)

    def full_dims(self, spec: TensorSpec) -> tuple[int, ...]:
        """The dims of a tensor as a request must have them, the batch dimension included."""
        return (-1, *spec.dims) if self.max_batch_size else spec.dims

    def metadata(self, versions: list[str]) -> dict[str, JsonValue]:
        """The body of `GET /v2/models/NAME`."""
        return {
            "name": self.name,
            "versions": [*versions],
            "platform": "ensemble" if self.ensemble else "python",
            "inputs": [self._metadata_of(spec) for spec in self.inputs],
            "outputs": [self._metadata_of(spec) for spec in self.outputs],
        }

    def _metadata_of(self, spec: TensorSpec) -> dict[str, JsonValue]:
        return {"name": spec.name, "datatype": spec.datatype, "shape": [*self.full_dims(spec)]}

    def as_json(self) -> dict[str, JsonValue]:
        """The body of `GET /v2/models/NAME/config`."""
        told: dict[str, JsonValue] = {
            "name": self.name,
            "platform": "ensemble" if self.ensemble else "",
            "backend": "" if self.ensemble else "python",
            "runtime": "",
            "version_policy": {"all": {}} if self.all_versions else {"latest": {"num_versions": 1}},
            "max_batch_size": self.max_batch_size,
            "input": [
                {
                    "name": spec.name,
                    "data_type": spec.config_type,
                    "format": "FORMAT_NONE",
                    "dims": [*spec.dims],
                    "is_shape_tensor": False,
                    "allow_ragged_batch": False,
                    "optional": spec.optional,
                    "is_non_linear_format_io": False,
                }
                for spec in self.inputs
            ],
            "output": [
                {
                    "name": spec.name,
                    "data_type": spec.config_type,
                    "dims": [*spec.dims],
                    "label_filename": "",
                    "is_shape_tensor": False,
                    "is_non_linear_format_io": False,
                }
                for spec in self.outputs
            ],
            "batch_input": [],
            "batch_output": [],
        }
        told.update(self._scheduling())
        told["parameters"] = {key: {"string_value": value} for key, value in self.parameters.items()}
        told["model_warmup"] = []
        if self.warmup_count:
            told["model_warmup"] = [{"name": "warm-up", "batch_size": 1, "count": self.warmup_count}]
        if self.response_cache:
            told["response_cache"] = {"enable": True}
        if self.decoupled or self.ensemble:
            told["model_transaction_policy"] = {"decoupled": self.decoupled}
        return told

    def _scheduling(self) -> dict[str, JsonValue]:
        if self.ensemble:
            steps: list[JsonValue] = [
                {
                    "model_name": step.model,
                    "model_version": -1,
                    "input_map": {**step.inputs},
                    "output_map": {**step.outputs},
                    "model_namespace": "",
                }
                for step in self.ensemble
            ]
            return {"ensemble_scheduling": {"step": steps}, "instance_group": []}
        group: JsonValue = [{"name": f"{self.name}_0", "kind": "KIND_CPU", "count": self.instances}]
        if self.batcher is None:
            return {"instance_group": group}
        policy: dict[str, JsonValue] = {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": round((self.batcher.timeout_s or 0) * 1e6),
            "allow_timeout_override": self.batcher.allow_timeout_override,
            "max_queue_size": self.batcher.max_queue_size,
        }
        delay = round(self.batcher.max_queue_delay_s * 1e6)
        batching: JsonValue = {"max_queue_delay_microseconds": delay, "default_queue_policy": policy}
        return {"instance_group": group, "dynamic_batching": batching}
