"""Tensors, and their JSON and binary forms in the v2 protocol."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from governor.errors import JsonValue

Element = int | float | bool | bytes
"""One element of a tensor: text and raw bytes are `bytes`."""

_FORMATS: Final = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
DATATYPES: Final = frozenset({*_FORMATS, "BYTES"})
BAD_JSON: Final = "failed to parse the request JSON buffer: "
"""How Triton's sentence about a body that is no JSON begins."""
_MAX_ELEMENTS: Final = 4_000_000
"""More elements than this are refused before they are allocated."""


class RefusedError(Exception):
    """A request that Triton refuses before it becomes an inference: it executes nothing and counts nothing.

    Attributes:
        status: the HTTP status it is refused with.
        plain: the refusal has content type text/plain, as the errors of executed inferences have.
    """

    def __init__(self, status: int, message: str, *, plain: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.plain = plain


@dataclass(frozen=True)
class Tensor:
    """One named tensor, its elements in row-major order."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: tuple[Element, ...]

    @classmethod
    def of_text(cls, name: str, text: str) -> Tensor:
        """A BYTES tensor of one element."""
        return cls(name, "BYTES", (1,), (text.encode(),))


def element_count(shape: Sequence[int]) -> int:
    """How many elements a shape has."""
    return math.prod(shape)


def elements_from_json(data: JsonValue, datatype: str, shape: Sequence[int]) -> tuple[Element, ...]:
    """The elements of a JSON `data` field, nested or flat.

    Raises:
        RefusedError: with Triton's own sentence for what is wrong.
    """
    expected = element_count(shape)
    if expected > _MAX_ELEMENTS:
        raise RefusedError(400, f"a tensor of {expected} elements is more than this simulation takes")
    elements = tuple(_element_from_json(value, datatype) for value in _flat(data))
    if len(elements) != expected:
        raise RefusedError(500, "Unable to parse 'data': Shape does not match true shape of 'data' field")
    return elements


def _flat(data: JsonValue) -> Iterator[JsonValue]:
    if isinstance(data, list):
        for value in data:
            yield from _flat(value)
    else:
        yield data


def _element_from_json(value: JsonValue, datatype: str) -> Element:
    if datatype == "BYTES":
        if not isinstance(value, str):
            raise RefusedError(500, "Unable to parse JSON bytes array: attempt to access JSON non-string as string")
        try:
            # A byte that is no UTF-8 came through the JSON reader as a surrogate and leaves as that byte.
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise RefusedError(500, f"{BAD_JSON}The surrogate pair in string is invalid. at 0") from None
    if datatype == "BOOL":
        if not isinstance(value, bool):
            raise _not_a("boolean")
        return value
    if datatype.startswith("FP"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _not_a("number", "number" if datatype == "FP32" else "double")
        return float(value)
    signed = datatype.startswith("INT")
    bits = int(datatype.removeprefix("U").removeprefix("INT"))
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < high:
        raise _not_a("signed-integer" if signed else "unsigned-integer")
    return value


def _not_a(kind: str, wanted: str | None = None) -> RefusedError:
    return RefusedError(500, f"Unable to parse 'data': attempt to access JSON non-{kind} as {wanted or kind}")


def elements_from_binary(raw: bytes, tensor: str, datatype: str, shape: Sequence[int]) -> tuple[Element, ...]:
    """The elements of a tensor's raw bytes, `raw` being exactly its own part of the body.

    Raises:
        RefusedError: the fixed-size elements do not fill `raw` exactly.
        TornTextError: the length-prefixed elements do not; Triton finds that only while it executes.
    """
    if datatype == "BYTES":
        return tuple(_texts_from_binary(raw, tensor, element_count(shape)))
    expected = element_count(shape) * struct.calcsize(f"<{_FORMATS[datatype]}")
    if len(raw) != expected:
        sentence = f"unexpected total byte size {len(raw)} for input '{tensor}', expecting {expected}"
        raise RefusedError(400, sentence)
    return struct.unpack(f"<{element_count(shape)}{_FORMATS[datatype]}", raw)


class TornTextError(Exception):
    """A BYTES tensor whose length prefixes do not fit its bytes: fails, and counts, in execution."""


def _texts_from_binary(raw: bytes, tensor: str, count: int) -> Iterator[bytes]:
    at = 0
    for index in range(count):
        if at + 4 > len(raw):
            left = len(raw) - at
            raise TornTextError(
                f"incomplete string length indicator for inference input '{tensor}', expecting 4 bytes but only "
                f"{left} bytes available; expected {count} strings, got {index}"
            )
        length = int.from_bytes(raw[at : at + 4], "little")
        at += 4
        if at + length > len(raw):
            raise TornTextError(
                f"incomplete string data for inference input '{tensor}', expecting string of length {length} but "
                f"only {len(raw) - at} bytes available"
            )
        yield raw[at : at + length]
        at += length
    if at != len(raw):
        raise TornTextError(f"unexpected number of string elements {count + 1} for inference input '{tensor}'")


def elements_to_binary(tensor: Tensor) -> bytes:
    """A tensor's raw bytes."""
    if tensor.datatype == "BYTES":
        return b"".join(len(text).to_bytes(4, "little") + text for text in tensor.elements if isinstance(text, bytes))
    return struct.pack(f"<{len(tensor.elements)}{_FORMATS[tensor.datatype]}", *tensor.elements)


def elements_to_json(tensor: Tensor) -> list[JsonValue]:
    """A tensor's JSON `data`: always flat."""
    return [
        element.decode("utf-8", "surrogateescape") if isinstance(element, bytes) else element
        for element in tensor.elements
    ]
