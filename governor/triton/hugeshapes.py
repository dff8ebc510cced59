"""Would Triton die of this request's shapes? Pure, and cheap enough for a body of any size.

Triton up to at least 2.51 makes room for as many elements as the shape of a JSON tensor says before it looks how many
there are, and ends when it cannot. Large JSON is not parsed for that: its bytes are searched for keys `shape`, in
every spelling that JSON has. Only a request with a shape that its own bytes could never fill is read, and it is refused
unless it is clear that Triton does not make room for it. So nothing unclear reaches Triton with such a shape.
"""

from __future__ import annotations

import json
import re
from math import prod
from typing import TYPE_CHECKING, Final

from governor.triton.requestcheck import DATA_KEY, Fault, without_numbers

if TYPE_CHECKING:
    from governor.errors import JsonValue

ARRAYS_MAX: Final = 1024
"""More shapes are searched in no request; no model has as many inputs."""
READ_BYTES_MAX: Final = 64 * 1024
"""JSON with a shape that nothing fills is read if without the numbers in its tensors it is no longer than this."""
_ARRAY_BYTES_MAX: Final = 256
_SPACE: Final = rb"[ \t\n\r]*"
_LETTERS: Final = "".join(rf"(?:{letter}|\\u{ord(letter):04x})" for letter in "shape").encode()
_SHAPE: Final = re.compile(
    b'"' + _LETTERS + b'"' + _SPACE + b":" + _SPACE + rb"\[(?=([^\]]{0,%d})(\]?))" % _ARRAY_BYTES_MAX
)
_NUMBERS: Final = re.compile(rb"[0-9, \t\n\r]*")
_NUMBER: Final = re.compile(rb"[0-9]+")
_BACKSLASH: Final = ord("\\")
_WRONG_LENGTH: Final = "Unable to parse 'data': Shape does not match true shape of 'data' field"
_UNCLEAR: Final = (
    "Unable to parse 'shape': it asks for more elements than the request can hold, and the JSON is too large or too "
    "unclear to see whether its data are in shared memory"
)


def find_fatal_shape(text: bytes | memoryview, *, body_bytes: int) -> Fault | None:
    """What to answer to an `infer` request whose shapes Triton would die of, or may die of; None if it will not.

    Args:
        text: its JSON.
        body_bytes: length of the whole request.
    """
    shapes = shapes_in(text)
    if shapes is not None and all(prod(shape) <= body_bytes for shape in shapes):
        return None
    inputs = _read_inputs(bytes(text))
    if inputs is None:
        return Fault(400, _UNCLEAR)
    return Fault(500, _WRONG_LENGTH) if any(_makes_room(each, body_bytes) for each in inputs) else None


def shapes_in(text: bytes | memoryview) -> list[tuple[int, ...]] | None:
    """Every array of whole numbers under a key `shape`, wherever it is in a JSON document, without parsing it.

    None if there are more, or longer ones, than any request has. What is no JSON may give anything.
    """
    shapes: list[tuple[int, ...]] = []
    for count, found in enumerate(_SHAPE.finditer(text)):
        if count == ARRAYS_MAX:
            return None
        if found.start() and text[found.start() - 1] == _BACKSLASH:
            continue  # a longer string that ends like the key
        array, end = found.groups()
        if not _NUMBERS.fullmatch(array):
            continue
        if not end:
            return None
        shapes.append(tuple(map(int, _NUMBER.findall(array))))
    return shapes


def _read_inputs(text: bytes) -> list[JsonValue] | None:
    """The inputs as Triton's parser sees them, without the numbers in their data; None if that is not clear."""
    if text.count(DATA_KEY) > ARRAYS_MAX or len(short := without_numbers(text)) > READ_BYTES_MAX:
        return None
    try:
        document: JsonValue = json.loads(short.decode(), object_pairs_hook=_first_of_each)
    except (ValueError, RecursionError):
        return None
    inputs = document.get("inputs", []) if isinstance(document, dict) else None
    return inputs if isinstance(inputs, list) else None


def _first_of_each(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    return dict(reversed(pairs))


def _makes_room(given: JsonValue, body_bytes: int) -> bool:
    """For this input Triton makes room by its shape: its data are in the JSON, and are no texts."""
    if not isinstance(given, dict) or "data" not in given or given.get("datatype") == "BYTES":
        return False
    shape = given.get("shape")
    sizes = [size for size in shape if type(size) is int and size >= 0] if isinstance(shape, list) else []
    return isinstance(shape, list) and len(sizes) == len(shape) and prod(sizes) > body_bytes
