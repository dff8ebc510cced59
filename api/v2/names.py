"""Triton's answers under the names that callers know. Pure.

An answer is touched only where a public name differs from Triton's own; otherwise its bytes stay as they are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from governor.errors import BackendProtocolError
from governor.triton.jsons import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from governor.errors import JsonValue


def renamed(body: bytes, public: str, triton: str) -> bytes:
    """A model's metadata or configuration under its public name.

    Raises:
        BackendProtocolError: the body is no JSON object.
    """
    if public == triton:
        return body
    document = _parsed(body)
    if not isinstance(document, dict):
        raise _odd("no object")
    return _dumped({**document, "name": public})


def entries_renamed(entries: Iterable[JsonValue], public: Mapping[str, Sequence[str]]) -> list[JsonValue]:
    """Entries with a `name`, once under each public name of theirs; those of other models are left out.

    Args:
        entries: of `model_stats` or of a repository index.
        public: the public names of each of Triton's names.
    """
    found: list[JsonValue] = []
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if isinstance(entry, dict) and isinstance(name, str):
            found += [{**entry, "name": each} for each in public.get(name, ())]
    return found


def statistics_entries(body: bytes) -> list[JsonValue]:
    """The entries of a statistics answer.

    Raises:
        BackendProtocolError: it has none.
    """
    document = _parsed(body)
    entries = document.get("model_stats") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise _odd('no list "model_stats"')
    return entries


def index_entries(body: bytes) -> list[JsonValue]:
    """The entries of a repository index.

    Raises:
        BackendProtocolError: it is no list.
    """
    document = _parsed(body)
    if not isinstance(document, list):
        raise _odd("no list")
    return document


def statistics_body(entries: list[JsonValue]) -> bytes:
    """A statistics answer with these entries."""
    return _dumped({"model_stats": entries})


def index_body(entries: list[JsonValue]) -> bytes:
    """A repository index with these entries."""
    return _dumped(entries)


def _parsed(body: bytes) -> JsonValue:
    try:
        return parse_json(body)
    except ValueError as error:
        raise _odd(f"no JSON: {error}") from error


def _dumped(value: JsonValue) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _odd(found: str) -> BackendProtocolError:
    return BackendProtocolError(f"The backend's answer is not what Triton promises: it is {found}")
