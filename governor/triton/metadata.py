"""What a Triton server and its models say about themselves (E12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from governor.errors import BackendProtocolError, BackendUnavailableError
from governor.triton.jsons import parse_json
from governor.triton.text import error_message
from governor.triton.wire import WireRequest, model_path

if TYPE_CHECKING:
    from governor.errors import JsonValue
    from governor.triton.lane import Lane

_MAX_BYTES = 4 * 1024 * 1024
_DATATYPES = {"TYPE_STRING": "BYTES"}


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One input or output.

    Attributes:
        name: its name.
        datatype: as on the wire: `BYTES`, `FP32`, ...
        shape: its dimensions without the batch dimension; -1 is any.
        optional: an input that a request may leave out.
        free_shape: its shape is not the tensor's own (shape tensors, formats of a backend): it cannot be checked.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    free_shape: bool = False


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One loaded model.

    Attributes:
        name: Triton's name.
        decoupled: a request may have any number of responses; the end counter proves nothing (E12, D11).
        ensemble: its requests run through other models; the end counter counts oddly (E12).
        max_batch_size: 0 when requests have no batch dimension.
        instance_count: executions that can run at once, over all devices; 0 for an ensemble.
        inputs: what it takes.
        outputs: what it gives.
        versions: the loaded versions, as Triton lists them.
        warms_up: each load counts requests of its own before the first call, in the process's counters too.
        backend: what runs it, such as `python`; its platform where it names no backend.
        batch: requests that one execution can take: the maximum batch size with dynamic batching, else 1.
    """

    name: str
    decoupled: bool
    ensemble: bool
    max_batch_size: int
    instance_count: int
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    versions: tuple[str, ...]
    warms_up: bool = False
    backend: str = "unknown"
    batch: int = 1


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One server.

    Attributes:
        name: `triton`, or what `--id` gave it (E8).
        version: such as `2.51.0`.
        extensions: the protocol extensions it offers.
    """

    name: str
    version: str
    extensions: frozenset[str]


async def fetch_server(lane: Lane, *, timeout_ms: int = 5_000) -> ServerFacts:
    """`GET /v2`. Raises BackendError when there is no answer, or not a server's."""
    document = await _get(lane, "/v2", timeout_ms)
    extensions = document.get("extensions", [])
    if not isinstance(extensions, list):
        raise _malformed("extensions")
    return ServerFacts(
        name=_text(document, "name"),
        version=_text(document, "version"),
        extensions=frozenset(each for each in extensions if isinstance(each, str)),
    )


async def fetch_model(lane: Lane, model: str, *, timeout_ms: int = 5_000) -> ModelFacts:
    """The model's configuration and loaded versions; `timeout_ms` bounds each of two requests.

    Raises:
        BackendUnavailableError: the server cannot be reached, or says that it does not serve the model.
        BackendError: what it says is no configuration.
    """
    config = await _get(lane, model_path(model, None, "config"), timeout_ms)
    metadata = await _get(lane, model_path(model, None), timeout_ms)
    return parse_model(config, metadata)


async def server_ready(lane: Lane, *, timeout_ms: int = 5_000) -> bool:
    """Whether the server says that it can serve. Raises BackendError when it cannot be asked."""
    return await _is_ready(lane, "/v2/health/ready", timeout_ms)


async def model_ready(lane: Lane, model: str, version: str | None = None, *, timeout_ms: int = 5_000) -> bool:
    """Whether the model, or one version of it, says that it can serve. Raises as `server_ready` does.

    True proves little: a model whose process died stays ready.
    """
    return await _is_ready(lane, model_path(model, version, "ready"), timeout_ms)


def parse_model(config: dict[str, JsonValue], metadata: dict[str, JsonValue]) -> ModelFacts:
    """Read `/v2/models/{model}/config` and `/v2/models/{model}`.

    Raises:
        BackendProtocolError: a member that matters is missing or of another type.
    """
    policy = config.get("model_transaction_policy")
    max_batch_size = _integer(config.get("max_batch_size", 0), "max_batch_size")
    versions = metadata.get("versions", [])
    if not isinstance(versions, list):
        raise _malformed("versions")
    return ModelFacts(
        name=_text(config, "name"),
        decoupled=isinstance(policy, dict) and policy.get("decoupled") is True,
        ensemble=config.get("platform") == "ensemble" or "ensemble_scheduling" in config,
        max_batch_size=max_batch_size,
        instance_count=sum(_instances(group) for group in _objects(config, "instance_group")),
        inputs=tuple(_tensor(each) for each in _objects(config, "input")),
        outputs=tuple(_tensor(each) for each in _objects(config, "output")),
        versions=tuple(each for each in versions if isinstance(each, str)),
        warms_up=bool(_objects(config, "model_warmup")),
        backend=str(config.get("backend") or config.get("platform") or "unknown"),
        batch=max(1, max_batch_size) if "dynamic_batching" in config else 1,
    )


async def _get(lane: Lane, path: str, timeout_ms: int) -> dict[str, JsonValue]:
    status, body = await lane.fetch(WireRequest(method="GET", path=path), max_bytes=_MAX_BYTES, timeout_ms=timeout_ms)
    if status != 200:
        raise BackendUnavailableError(f"{lane.origin} answered {path} with status {status}: {error_message(body)}")
    try:
        document = parse_json(body)
    except ValueError as error:
        raise BackendProtocolError(f"{lane.origin} answered {path} with what is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BackendProtocolError(f"{lane.origin} answered {path} with JSON that is no object")
    return document


async def _is_ready(lane: Lane, path: str, timeout_ms: int) -> bool:
    status, _ = await lane.fetch(WireRequest(method="GET", path=path), max_bytes=_MAX_BYTES, timeout_ms=timeout_ms)
    return status == 200


def _tensor(value: dict[str, JsonValue]) -> TensorFacts:
    datatype = _text(value, "data_type")
    dims = value.get("dims", [])
    if not isinstance(dims, list):
        raise _malformed("dims")
    return TensorFacts(
        name=_text(value, "name"),
        datatype=_DATATYPES.get(datatype, datatype.removeprefix("TYPE_")),
        shape=tuple(_integer(each, "dims") for each in dims),
        optional=value.get("optional") is True,
        free_shape=value.get("is_shape_tensor") is True or value.get("is_non_linear_format_io") is True,
    )


def _instances(group: dict[str, JsonValue]) -> int:
    """`count` executions per device; a passive group executes nothing."""
    gpus = group.get("gpus", [])
    if group.get("passive") is True or not isinstance(gpus, list):
        return 0
    return _integer(group.get("count", 1), "count") * max(1, len(gpus))


def _objects(document: dict[str, JsonValue], key: str) -> list[dict[str, JsonValue]]:
    values = document.get(key, [])
    if not isinstance(values, list):
        raise _malformed(key)
    objects = [each for each in values if isinstance(each, dict)]
    if len(objects) != len(values):
        raise _malformed(key)
    return objects


def _text(document: dict[str, JsonValue], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str):
        raise _malformed(key)
    return value


def _integer(value: JsonValue, key: str) -> int:
    # Protobuf's own JSON writes 64-bit numbers as strings.
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 20:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _malformed(key)
    return value


def _malformed(key: str) -> BackendProtocolError:
    return BackendProtocolError(f'"{key}" is not what Triton promises; is this URL a Triton server?')
