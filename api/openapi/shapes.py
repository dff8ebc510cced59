"""JSON schemas in a few words. Pure; every function returns a fresh plain dict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.errors import JsonValue

Schema = dict[str, "JsonValue"]

SAFE_INTEGER_MAX: Final = 2**53 - 1


def ref(name: str) -> Schema:
    """A schema of the document's components."""
    return {"$ref": f"#/components/schemas/{name}"}


def text(description: str = "", **more: JsonValue) -> Schema:
    """A string."""
    return _told({"type": "string", **more}, description)


def one_of(*values: JsonValue, description: str = "") -> Schema:
    """One of a few values."""
    return _told({"enum": [*values]}, description)


def const(value: JsonValue, description: str = "") -> Schema:
    """This value and no other."""
    return _told({"const": value}, description)


def flag(description: str = "") -> Schema:
    """A boolean."""
    return _told({"type": "boolean"}, description)


def count(description: str = "", *, minimum: int = 0, **more: JsonValue) -> Schema:
    """A whole number."""
    return _told({"type": "integer", "minimum": minimum, **more}, description)


def unix_ms(description: str = "") -> Schema:
    """A moment in Unix milliseconds."""
    return count(description or "Unix milliseconds.")


def moment(description: str = "") -> Schema:
    """A moment as ISO 8601 in UTC."""
    return text(description, format="date-time")


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return {**schema, "type": [kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def array(items: Schema, description: str = "", **more: JsonValue) -> Schema:
    """A list."""
    return _told({"type": "array", "items": items, **more}, description)


def record(
    required: Mapping[str, Schema] | None = None,
    optional: Mapping[str, Schema] | None = None,
    description: str = "",
) -> Schema:
    """An object. What is not named may be there too: a client must take no offence at what is new."""
    required, optional = required or {}, optional or {}
    schema: Schema = {"type": "object", "properties": {**required, **optional}}
    if required:
        schema["required"] = [*required]
    return _told(schema, description)


def table(values: Schema, description: str = "") -> Schema:
    """An object whose keys are data."""
    return _told({"type": "object", "additionalProperties": values}, description)


def _told(schema: Schema, description: str) -> Schema:
    return {"description": description, **schema} if description else schema
