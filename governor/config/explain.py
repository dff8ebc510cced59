"""Sentences about single values: what a field expects, and what is wrong with what it got."""

from __future__ import annotations

from types import UnionType
from typing import TYPE_CHECKING, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from governor.config.models import (
    BackendConfig,
    EvidenceConfig,
    LimitsConfig,
    ModelConfig,
    Section,
    ServerConfig,
    TokensConfig,
)
from governor.config.problems import KeyPath, Problem, did_you_mean, show
from governor.config.values import Expect, Unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

TABLES: Mapping[str, type[Section]] = {
    "server": ServerConfig,
    "limits": LimitsConfig,
    "evidence": EvidenceConfig,
    "tokens": TokensConfig,
}
"""Sections that are one table."""

ARRAYS: Mapping[str, type[Section]] = {"backends": BackendConfig, "models": ModelConfig}
"""Sections that are an array of tables."""

_SECRET_SECTION = "tokens"  # noqa: S105  # the name of a section, not a secret


def expected(field: FieldInfo) -> str:
    """What a field takes, in words that fit after "expected"."""
    annotation: object = field.annotation
    found = _from_metadata(field.metadata)
    for choice in get_args(annotation):
        found = found or _from_metadata(getattr(choice, "__metadata__", ()))
    if found:
        return found
    if get_origin(annotation) is Literal:
        return choices([show(value) for value in get_args(annotation)])
    if annotation is bool:
        return "true or false"
    raise TypeError(f"no words for {annotation!r}: annotate the field with Expect")


def takes_text(field: FieldInfo) -> bool:
    """Whether a field holds text, so that a value from the environment needs no quotes."""
    annotation: object = field.annotation
    if get_origin(annotation) is Literal:
        return True
    alternatives = get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)
    return any(choice is str or getattr(choice, "__origin__", None) is str for choice in alternatives)


def choices(words: list[str]) -> str:
    """`"a", "b" or "c"`."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


def explain(model: type[Section], table: KeyPath, error: ErrorDetails) -> Problem | None:
    """The problem behind one error of pydantic, or None when the error only follows from another one.

    Args:
        model: the section that was validated.
        table: where its table stands.
        error: one entry of `ValidationError.errors()`.
    """
    path: KeyPath = (*table, *error["loc"])
    kind, received = error["type"], error["input"]
    if kind == "default_factory_not_called":
        return None
    if kind == "extra_forbidden":
        return Problem(path, unknown_key(model, str(error["loc"][-1]), section=str(table[0])))
    field = model.model_fields[str(error["loc"][0])]
    wanted = _expected_inside(field) if len(error["loc"]) > 1 else expected(field)
    if kind == "missing":
        return Problem(path, f"missing; expected {wanted}")
    text = "received a value that is not shown" if table[0] == _SECRET_SECTION else f"received {_shown(received)}"
    if kind == "value_error":
        text += f": {error['ctx']['error']}"
    text += f"; expected {wanted}"
    if get_origin(field.annotation) is Literal and isinstance(received, str):
        close = did_you_mean(received, [str(choice) for choice in get_args(field.annotation)])
        text += f"; did you mean {show(close)}?" if close else ""
    return Problem(path, text)


def unknown_key(model: type[Section], key: str, *, section: str) -> str:
    """What to say about a key that a section does not have; its value is never shown."""
    known = list(model.model_fields)
    if close := did_you_mean(key, known):
        return f"unknown key; did you mean {show(close)}?"
    homes = [
        f"[{name}]" if name in TABLES else f"[[{name}]]"
        for name, other in {**TABLES, **ARRAYS}.items()
        if name != section and key in other.model_fields
    ]
    if homes:
        return f"unknown key here; it belongs in {choices(homes)}"
    return f"unknown key; expected one of {', '.join(known)}"


def not_a_table(path: KeyPath, received: object) -> Problem:
    """The problem of a section that is something else than a table."""
    if path[0] == _SECRET_SECTION:
        return Problem(path, "received a value that is not shown; expected a table")
    return Problem(path, f"received {show(received)}; expected a table")


def _shown(received: object) -> str:
    """A received value, without what may be a password in a URL."""
    if isinstance(received, str) and "@" in received:
        return show("********@" + received.rpartition("@")[2])
    return show(received)


def _expected_inside(field: FieldInfo) -> str:
    """What the values of a table-valued field must be."""
    inner: object = get_args(field.annotation)[-1]
    return _from_metadata(getattr(inner, "__metadata__", ())) or "another value"


def _from_metadata(metadata: object) -> str:
    low: object = None
    high: object = None
    unit = "an integer"
    for item in metadata if isinstance(metadata, list | tuple) else ():
        match item:
            case Expect(text):
                return text
            case Unit(name):
                unit = f"an integer of {name}"
            case annotated_types.Ge(ge):
                low = ge
            case annotated_types.Le(le):
                high = le
            case FieldInfo() if inner := _from_metadata(item.metadata):
                return inner
            case _:
                pass
    return f"{unit} from {low} to {high}" if low is not None and high is not None else ""
