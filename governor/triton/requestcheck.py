"""Would Triton refuse this request? Pure: a request's JSON against a model's configuration (D5).

A refusal here means that Triton would refuse, for certain: what is unclear passes, as Triton itself is the judge.
Rules, their order and the sentences are those of Triton 2.51 (`InferenceRequest::Normalize` and the HTTP front end); a
request with several faults may be told another of them than Triton would tell.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from governor.errors import JsonValue
from governor.triton.jsons import parse_json
from governor.triton.outcomes import CallKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from governor.triton.metadata import ModelFacts, TensorFacts

CHECKED_BYTES_MAX: Final = 16 * 1024
"""Larger JSON is not parsed: it costs more than it saves. `hugeshapes` searches it all the same."""
DATA_KEY: Final = b'"data"'
DATATYPES: Final = frozenset(
    {"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16"}
    | {"BYTES"}
)
_INVALID: Final = "<invalid>"
_INTEGERS: Final = {
    f"{sign}INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if sign == "" else (0, 2**bits - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}
_KINDS: Final[dict[str, frozenset[type]]] = {
    "BYTES": frozenset({str}),
    "BOOL": frozenset({bool}),
    "FP32": frozenset({int, float}),
    "FP64": frozenset({int, float}),
}
_SIZE_MAX: Final = 2**63 - 1
_DECOUPLED: Final = "HTTP end point doesn't support models with decoupled transaction policy"
_BATCH_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to "
    "each input shape. If you want to specify the full shape including the batch dim in your input dims config, "
    "try setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
Document = dict[str, JsonValue]


class Fault(NamedTuple):
    """What Triton would answer: status and sentence."""

    status: int
    sentence: str


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The part of a request that is looked at.

    Attributes:
        kind: how the model is called.
        version: the version that is asked for; None leaves it to Triton.
        text: the request's JSON; empty where there is none that can be read.
        raw_bytes: length of what comes behind it.
        document: the JSON, parsed, without the numbers of its tensors; None where it is too large to be looked at, or
            unclear.
    """

    kind: CallKind
    version: str | None
    text: bytes
    raw_bytes: int
    document: Document | None

    @classmethod
    def of(cls, kind: CallKind, version: str | None, text: bytes, raw_bytes: int = 0) -> RequestHead:
        """Parses what is small enough."""
        return cls(kind, version, text, raw_bytes, read_document(text))

    @property
    def timeout_us(self) -> int | None:
        """The request parameter `timeout` of `infer`, in microseconds; None where there is none."""
        parameters = self.document.get("parameters") if self.document is not None else None
        value = parameters.get("timeout") if isinstance(parameters, dict) else None
        if self.kind is not CallKind.INFER or isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            return None
        return value


class GivenInput(NamedTuple):
    """One input of an `infer` request, as far as it is checked.

    Attributes:
        name: its name.
        datatype: as given, or `_INVALID`.
        shape: its dimensions.
        data: its elements in JSON; None where they are not in the JSON.
        binary_bytes: its length behind the JSON.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[JsonValue] | None
    binary_bytes: int


def read_document(text: bytes) -> Document | None:
    """The JSON object of a request without the numbers in its tensors; None if it is too large, or unclear.

    The numbers are most of the text, and of no interest as long as nothing else is wrong.
    """
    if not 0 < len(text) <= CHECKED_BYTES_MAX:
        return None
    try:
        document: JsonValue = json.loads(without_numbers(text).decode())
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def without_numbers(text: bytes) -> bytes:
    """The text with empty lists for the `data` of tensors, unless they hold texts. Takes time in proportion to it."""
    pieces, done = [], 0
    while (key := text.find(DATA_KEY, done)) >= 0:
        start = key + len(DATA_KEY)
        end = _first(b"}", text, start, _first(b'"', text, start, len(text)))
        opening = text.find(b"[", start, end)
        closing = text.rfind(b"]", start, end)
        kept = opening + 1 if 0 < opening < closing else start
        pieces.append(text[done:kept])
        done = closing if 0 < opening < closing else start
    pieces.append(text[done:])
    return b"".join(pieces)


def _first(byte: bytes, text: bytes, start: int, end: int) -> int:
    found = text.find(byte, start, end)
    return found if found >= 0 else end


def read_exactly(text: bytes) -> Document | None:
    """The same, whole; None if Triton's parser may read it otherwise: a key twice, a NUL (which ends a text there)."""
    try:
        document = parse_json(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) and b"\\u0000" not in text else None


def find_fault(head: RequestHead, facts: ModelFacts) -> Fault | None:
    """What Triton would say if it would refuse this request, for certain; None if it would not, or may not."""
    if head.kind is CallKind.INFER and facts.decoupled:
        return Fault(501, _DECOUPLED)
    if head.document is None or _check(head, head.document, facts) is None:
        return None
    # Now it is worth while to read all of it, and as exactly as Triton does.
    whole = read_exactly(head.text)
    fault = _check(head, whole, facts) if whole is not None else None
    if fault is None or whole is None or fault.status != 400 or head.kind is not CallKind.INFER:
        return fault
    return fault if is_readable(whole, raw_bytes=head.raw_bytes) else None


def _check(head: RequestHead, document: Document, facts: ModelFacts) -> Fault | None:
    return check_infer(document, facts) if head.kind is CallKind.INFER else check_generate(document, facts)


def check_infer(document: Document, facts: ModelFacts) -> Fault | None:
    """What Triton would say if it would refuse this `infer` request; None if it would not, or may not.

    Args:
        document: the request's JSON, with the tensors' numbers or without.
        facts: the model.
    """
    given = _given_inputs(document)
    label = _label(document)
    if given is None or label is None:
        return None
    sentence = (
        _twice(given, label)
        or _unknown_output(document, facts)
        or _wrong_count([each.name for each in given], facts, label)
        or _unknown_input(given, facts)
        or _wrong_batch(given, facts, label)
        or _wrong_tensor(given, facts, label)
    )
    return Fault(400, sentence) if sentence is not None else None


def is_readable(document: Document, *, raw_bytes: int) -> bool:
    """The tensors of a whole `infer` request are there and can be read.

    Triton reads them before it looks at anything else, and what it finds wrong there it says in words of its own.

    Args:
        document: the request's JSON, whole.
        raw_bytes: length of what comes behind it.
    """
    given = _given_inputs(document) or []
    if sum(each.binary_bytes for each in given) != raw_bytes:
        return False
    return all(each.data is None or _is_readable(each.data, each.datatype, each.shape) for each in given)


def check_generate(document: Document, facts: ModelFacts) -> Fault | None:
    """The same for `generate` and `generate_stream`, whose fields are inputs or parameters."""
    label = _label(document)
    nested = document.get("parameters", {})
    names = [tensor.name for tensor in facts.inputs]
    if label is None or not isinstance(nested, dict) or "parameters" in names:
        return None
    sentence = _wrong_count([name for name in names if name in document or name in nested], facts, label)
    return Fault(400, sentence) if sentence is not None else None


def _label(document: Document) -> str | None:
    """What Triton begins its sentence with; None if the id is none."""
    request_id = document.get("id", "")
    return f"[request id: {request_id or '<id_unknown>'}] " if isinstance(request_id, str) else None


def _given_inputs(document: Document) -> list[GivenInput] | None:
    """None if something of them is not as it should be, so that Triton refuses it in other words."""
    inputs = document.get("inputs")
    if not isinstance(inputs, list):
        return None
    given = [_given_input(each) for each in inputs]
    return [each for each in given if each is not None] if None not in given else None


def _given_input(value: JsonValue) -> GivenInput | None:
    if not isinstance(value, dict):
        return None
    name, datatype, shape = value.get("name"), value.get("datatype"), value.get("shape")
    if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(shape, list):
        return None
    sizes = [size for size in shape if isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= _SIZE_MAX]
    parameters, data = value.get("parameters", {}), value.get("data")
    if len(sizes) != len(shape) or not isinstance(parameters, dict):
        return None
    binary_bytes = parameters.get("binary_data_size", 0)
    if isinstance(data, list) and not parameters:
        return GivenInput(name, datatype, tuple(sizes), data, 0) if datatype in DATATYPES else None
    if (
        "data" in value
        or not parameters
        or not isinstance(binary_bytes, int)
        or isinstance(binary_bytes, bool)
        or binary_bytes < 0
    ):
        return None
    known = datatype if datatype in DATATYPES else _INVALID
    return GivenInput(name, known, tuple(sizes), None, binary_bytes)


def _is_readable(data: list[JsonValue], datatype: str, shape: tuple[int, ...]) -> bool:
    if not shape or prod(shape) == 0:
        return True  # Triton does not look at it
    elements = list(_flat(data))
    if len(elements) != prod(shape):
        return False
    if datatype in _INTEGERS:
        lowest, highest = _INTEGERS[datatype]
        return all(type(each) is int and lowest <= each <= highest for each in elements)
    return datatype in _KINDS and all(type(each) in _KINDS[datatype] for each in elements)


def _flat(data: list[JsonValue]) -> Iterator[JsonValue]:
    for each in data:
        if isinstance(each, list):
            yield from _flat(each)
        else:
            yield each


def _twice(given: list[GivenInput], label: str) -> str | None:
    seen: set[str] = set()
    for each in given:
        if each.name in seen:
            return f"{label}input '{each.name}' already exists in request"
        seen.add(each.name)
    return None


def _unknown_output(document: Document, facts: ModelFacts) -> str | None:
    outputs = document.get("outputs", [])
    known = {tensor.name for tensor in facts.outputs}
    for each in outputs if isinstance(outputs, list) else []:
        name = each.get("name") if isinstance(each, dict) else None
        if isinstance(name, str) and name not in known:
            return f"unexpected inference output '{name}' for model '{facts.name}'"
    return None


def _wrong_count(given: Collection[str], facts: ModelFacts, label: str) -> str | None:
    required = [tensor.name for tensor in facts.inputs if not tensor.optional]
    if len(required) <= len(given) <= len(facts.inputs):
        return None
    missing = [name for name in required if name not in given]
    expected = (
        f"{len(required)} inputs"
        if len(required) == len(facts.inputs)
        else f"number of inputs between {len(required)} and {len(facts.inputs)}"
    )
    return (
        f"{label}expected {expected} but got {len(given)} inputs for model '{facts.name}'. Got input(s) "
        f"[{_listed(given)}], but missing required input(s) {f'[{_listed(missing)}]' if missing else ']'}. "
        "Please provide all required input(s)."
    )


def _unknown_input(given: list[GivenInput], facts: ModelFacts) -> str | None:
    known = {tensor.name for tensor in facts.inputs}
    name = next((each.name for each in given if each.name not in known), None)
    return None if name is None else f"unexpected inference input '{name}' for model '{facts.name}'"


def _wrong_batch(given: list[GivenInput], facts: ModelFacts, label: str) -> str | None:
    if facts.max_batch_size <= 0:
        return None
    batched = [each for each in given if not _tensor(facts, each.name).free_shape]
    for each in batched:
        if not each.shape:
            return f"{label}input '{each.name}' has no shape but model requires batch dimension for '{facts.name}'"
    sizes = {each.shape[0] for each in batched}
    if 0 in sizes:
        return None  # what Triton says of a batch of zero beside another depends on which of them it looks at first
    if len(sizes) > 1:
        odd = next(each.name for each in batched if each.shape[0] != batched[0].shape[0])
        return f"{label}input '{odd}' batch size does not match other inputs for '{facts.name}'"
    if sizes and max(sizes) > facts.max_batch_size:
        return f"{label}inference request batch-size must be <= {facts.max_batch_size} for '{facts.name}'"
    return None


def _wrong_tensor(given: list[GivenInput], facts: ModelFacts, label: str) -> str | None:
    batch_dimensions = 1 if facts.max_batch_size > 0 else 0
    for each in given:
        tensor = _tensor(facts, each.name)
        if tensor.datatype in DATATYPES and each.datatype != tensor.datatype:
            return (
                f"{label}inference input '{each.name}' data-type is '{each.datatype}', but model '{facts.name}' "
                f"expects '{tensor.datatype}'"
            )
        if tensor.free_shape or _fits(each.shape[batch_dimensions:], tensor.shape):
            continue
        expected = _dimensions((-1,) * batch_dimensions + tensor.shape)
        return (
            f"{label}unexpected shape for input '{each.name}' for model '{facts.name}'. Expected {expected}, got "
            f"{_dimensions(each.shape)}. {_BATCH_NOTE if batch_dimensions else ''}"
        )
    return None


def _tensor(facts: ModelFacts, name: str) -> TensorFacts:
    return next(tensor for tensor in facts.inputs if tensor.name == name)


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(shape) == len(wanted) and all(size in {-1, have} for size, have in zip(wanted, shape, strict=True))


def _dimensions(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _listed(names: Collection[str]) -> str:
    return ",".join(f"'{name}'" for name in names)
