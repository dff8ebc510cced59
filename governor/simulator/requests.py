"""How a body of the v2 protocol becomes a request, or is refused, in Triton's own words."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

from governor.simulator.inference import Request
from governor.simulator.tensors import (
    BAD_JSON,
    DATATYPES,
    RefusedError,
    Tensor,
    TornTextError,
    elements_from_binary,
    elements_from_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.errors import JsonValue
    from governor.simulator.config import ModelConfig, TensorSpec

_BATCH_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to "
    "each input shape. If you want to specify the full shape including the batch dim in your input dims config, "
    "try setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def parse_json(body: bytes) -> JsonValue:
    """The JSON value of a body.

    Raises:
        RefusedError: 500, as Triton answers it.
    """
    if not body:
        raise RefusedError(500, f"{BAD_JSON}The document is empty. at 0")
    try:
        value: JsonValue = json.loads(body.decode("utf-8", "surrogateescape"), parse_constant=_no_constant)
    except json.JSONDecodeError as broken:
        raise RefusedError(500, f"{BAD_JSON}Invalid value. at {broken.pos}") from None
    except (ValueError, RecursionError):
        raise RefusedError(500, f"{BAD_JSON}Invalid value. at 0") from None
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"JSON knows no {name}")


def _member(holder: JsonValue, key: str) -> JsonValue:
    if not isinstance(holder, dict) or key not in holder:
        raise RefusedError(500, f"Unable to parse '{key}': attempt to access non-existing object member '{key}'")
    return holder[key]


def _string(holder: JsonValue, key: str) -> str:
    value = _member(holder, key)
    if not isinstance(value, str):
        raise RefusedError(500, f"Unable to parse '{key}': attempt to access JSON non-string as string")
    return value


def _request_id(document: Mapping[str, JsonValue]) -> str:
    return _string({**document}, "id") if "id" in document else ""


# -- infer -------------------------------------------------------------------------------------------------


class InferBody:
    """A parsed `infer` body.

    Attributes:
        request: the request it makes.
        outputs: the wanted outputs, each with whether it is wanted in binary; empty: all.
        binary: whether the outputs that are not named are wanted in binary.
    """

    def __init__(self, config: ModelConfig, body: bytes, header_length: int | None) -> None:
        if header_length is not None and header_length > len(body):
            sentence = f"inference header size should be in range (0, {len(body)}), got: {header_length}"
            raise RefusedError(400, sentence, plain=True)
        if not body or header_length == 0:
            raise RefusedError(
                400,
                "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got "
                f"{len(config.inputs)} inputs in '{config.name}' model configuration",
            )
        document = parse_json(body if header_length is None else body[:header_length])
        self._raw = b"" if header_length is None else body[header_length:]
        self._config = config
        inputs = _member(document, "inputs")
        assert isinstance(document, dict), "it has members"
        self._torn: str | None = None
        tensors = [self._input(one) for one in inputs] if isinstance(inputs, list) else []
        if self._raw:
            raise RefusedError(400, f"unexpected additional input data for model '{config.name}'")
        parameters = document.get("parameters")
        known = parameters if isinstance(parameters, dict) else {}
        self.binary = known.get("binary_data_output") is True
        self.outputs = self._outputs(document.get("outputs"))
        timeout = known.get("timeout")
        self.request = Request(
            id=_request_id(document),
            inputs={tensor.name: tensor for tensor in tensors},
            parameters=known,
            timeout_s=timeout / 1e6 if isinstance(timeout, int) and timeout > 0 else None,
            torn=self._torn,
        )
        validate(config, self.request)

    def _input(self, told: JsonValue) -> Tensor:
        name, shape = _string(told, "name"), _shape(_member(told, "shape"))
        datatype = _string(told, "datatype")
        if datatype not in DATATYPES:
            raise RefusedError(400, f"invalid datatype for input {name}")
        assert isinstance(told, dict), "it has members"
        parameters = told.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if isinstance(size, int) and "data" not in told:
            return Tensor(name, datatype, shape, self._binary(name, datatype, shape, size))
        if "data" not in told:
            raise RefusedError(
                400,
                "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
                "'shared_memory_region' in 'parameters'. But no field is set",
            )
        return Tensor(name, datatype, shape, elements_from_json(told["data"], datatype, shape))

    def _binary(
        self, name: str, datatype: str, shape: tuple[int, ...], size: int
    ) -> tuple[int | float | bool | bytes, ...]:
        if size > len(self._raw):
            missing = size - len(self._raw)
            sentence = f"unexpected size for input '{name}', expecting {missing} additional bytes for model "
            raise RefusedError(400, f"{sentence}'{self._config.name}'")
        raw, self._raw = self._raw[:size], self._raw[size:]
        try:
            return elements_from_binary(raw, name, datatype, shape)
        except TornTextError as torn:
            self._torn = str(torn)
            return ()

    def _outputs(self, told: JsonValue) -> dict[str, bool]:
        wanted: dict[str, bool] = {}
        known = {spec.name for spec in self._config.outputs}
        for one in told if isinstance(told, list) else []:
            name = _string(one, "name")
            if name not in known:
                sentence = f"unexpected inference output '{name}' for model '{self._config.name}'"
                raise RefusedError(400, sentence)
            parameters = one.get("parameters") if isinstance(one, dict) else None
            binary = parameters.get("binary_data") if isinstance(parameters, dict) else None
            wanted[name] = binary is True or (binary is None and self.binary)
        return wanted


def _shape(told: JsonValue) -> tuple[int, ...]:
    if not isinstance(told, list):
        raise RefusedError(500, "Unable to parse 'shape': attempt to access JSON non-array as array")
    sizes = tuple(size for size in told if isinstance(size, int) and not isinstance(size, bool) and size >= 0)
    if len(sizes) != len(told):
        sentence = "attempt to access JSON non-unsigned-integer as unsigned-integer"
        raise RefusedError(500, f"Unable to parse 'shape': {sentence}")
    return sizes


# -- generate ----------------------------------------------------------------------------------------------


def generate_request(config: ModelConfig, body: bytes) -> Request:
    """The request a `generate` or `generate_stream` body makes: fields named like inputs become tensors.

    Raises:
        RefusedError: as Triton answers it.
    """
    document = parse_json(body)
    if not isinstance(document, dict):
        raise RefusedError(500, "attempt to get members for non-object")
    specs = {spec.name: spec for spec in config.inputs}
    inputs: dict[str, Tensor] = {}
    parameters: dict[str, JsonValue] = {}

    def take(fields: Mapping[str, JsonValue], prefix: str) -> None:
        for key, value in fields.items():
            if key == "id" and not prefix:
                continue
            if key in specs:
                inputs[key] = _generate_input(config, specs[key], value)
            elif key == "parameters" and isinstance(value, dict) and not prefix:
                take(value, "Converting keyword: 'parameters': ")
            elif value is None or isinstance(value, list | dict):
                kinds = "It should be either 'int', 'bool', or 'string'."
                raise RefusedError(400, f"{prefix}parameter '{key}' has invalid type. {kinds}")
            else:
                parameters[key] = value

    request_id = _request_id(document)
    take(document, "")
    request = Request(id=request_id, inputs=inputs, parameters=parameters)
    validate(config, request)
    return request


def _generate_input(config: ModelConfig, spec: TensorSpec, value: JsonValue) -> Tensor:
    given: list[JsonValue] = value if isinstance(value, list) else [value]
    dims = (1, *spec.dims) if config.max_batch_size else spec.dims
    fixed = math.prod(size for size in dims if size >= 0)
    fits = len(given) == fixed if -1 not in dims else fixed > 0 and len(given) % fixed == 0
    if not fits:
        raise RefusedError(400, f"The schema can not convert input '{spec.name}' to tensor with proper shape")
    shape = tuple(size if size >= 0 else len(given) // fixed for size in dims)
    return Tensor(spec.name, spec.datatype, shape, elements_from_json(given, spec.datatype, shape))


# -- validation --------------------------------------------------------------------------------------------


def validate(config: ModelConfig, request: Request) -> None:
    """Hold a request against its model's configuration.

    Raises:
        RefusedError: 400, with Triton's sentence for the first thing that is wrong.
    """
    label = f"[request id: {request.id or '<id_unknown>'}] "
    given, required = request.inputs, [spec.name for spec in config.inputs if not spec.optional]
    missing = [name for name in required if name not in given]
    known = {spec.name: spec for spec in config.inputs}
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None and len(given) == len(required):
        raise RefusedError(400, f"unexpected inference input '{unknown}' for model '{config.name}'")
    if missing or unknown is not None:
        got = ",".join(f"'{name}'" for name in given)
        lacks = f"[{','.join(repr(name) for name in missing)}]" if missing else "]"
        raise RefusedError(
            400,
            f"{label}expected {len(required)} inputs but got {len(given)} inputs for model '{config.name}'. "
            f"Got input(s) [{got}], but missing required input(s) {lacks}. Please provide all required input(s).",
        )
    sizes = [tensor.shape[0] for tensor in given.values() if tensor.shape] if config.max_batch_size else []
    for tensor in given.values():
        _validate_tensor(config, known[tensor.name], tensor, label)
    if sizes and len(set(sizes)) > 1:
        odd = next(name for name, tensor in given.items() if tensor.shape)
        raise RefusedError(400, f"{label}input '{odd}' batch size does not match other inputs for '{config.name}'")
    if sizes and sizes[0] > config.max_batch_size:
        limit = f"inference request batch-size must be <= {config.max_batch_size} for '{config.name}'"
        raise RefusedError(400, f"{label}{limit}")


def _validate_tensor(config: ModelConfig, spec: TensorSpec, tensor: Tensor, label: str) -> None:
    if tensor.datatype != spec.datatype:
        raise RefusedError(
            400,
            f"{label}inference input '{tensor.name}' data-type is '{tensor.datatype}', but model '{config.name}' "
            f"expects '{spec.datatype}'",
        )
    wanted = config.full_dims(spec)
    if len(wanted) != len(tensor.shape) or any(
        size not in {-1, have} for size, have in zip(wanted, tensor.shape, strict=True)
    ):
        expected, got = (",".join(map(str, shape)) for shape in (wanted, tensor.shape))
        note = _BATCH_NOTE if config.max_batch_size else ""
        raise RefusedError(
            400,
            f"{label}unexpected shape for input '{tensor.name}' for model '{config.name}'. "
            f"Expected [{expected}], got [{got}]. {note}",
        )
