"""Strict JSON from a backend: one way in, every oddity refused with a reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from governor.errors import JsonValue


def parse_json(body: bytes, *, lenient_text: bool = False) -> JsonValue:
    """Parse UTF-8 JSON.

    Args:
        body: the document.
        lenient_text: replace bytes that are not UTF-8. Triton copies a model's BYTES output into its JSON as they
            are, so a text answer may hold any byte.

    Raises:
        ValueError: not UTF-8, not JSON, NaN or Infinity, a key twice in one object, or nested too deeply.
    """
    text = body.decode("utf-8", errors="replace" if lenient_text else "strict")
    try:
        # Annotated because json.loads is typed Any; JsonValue is what it returns.
        value: JsonValue = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _no_duplicates(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result
