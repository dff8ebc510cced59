"""Fields out of JSON that somebody else made. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .errors import DaemonProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.errors import JsonValue


def decode_json(text: str | bytes) -> JsonValue:
    """The JSON that a text is.

    Raises:
        ValueError: it is none, or nested too deeply to be read.
    """
    try:
        value: JsonValue = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def text_of(raw: Mapping[str, JsonValue], key: str) -> str | None:
    """A string; None if there is none."""
    value = raw.get(key)
    return value if isinstance(value, str) else None


def whole_of(raw: Mapping[str, JsonValue], key: str) -> int | None:
    """A whole number; None if there is none. A bool is none."""
    value = raw.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flag_of(raw: Mapping[str, JsonValue], key: str) -> bool:
    """True only if the field is `true`."""
    return raw.get(key) is True


def object_of(raw: Mapping[str, JsonValue], key: str) -> Mapping[str, JsonValue]:
    """An object; an empty one if there is none."""
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def objects_of(raw: Mapping[str, JsonValue], key: str) -> tuple[Mapping[str, JsonValue], ...]:
    """The objects of a list; none if there is no list."""
    value = raw.get(key)
    return tuple(item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def require_object(value: JsonValue, label: str) -> Mapping[str, JsonValue]:
    """The object that an answer must be.

    Raises:
        DaemonProtocolError: it is something else; `label` says what was asked.
    """
    if not isinstance(value, dict):
        raise DaemonProtocolError(f"{label}: the answer is no JSON object")
    return value


def require_text(raw: Mapping[str, JsonValue], key: str, label: str) -> str:
    """A string without which an answer is of no use.

    Raises:
        DaemonProtocolError: there is none; `label` says what was asked.
    """
    value = text_of(raw, key)
    if not value:
        raise DaemonProtocolError(f'{label}: the answer has no "{key}"')
    return value
