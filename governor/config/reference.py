"""The operator's tables of all keys, written from the types themselves: `python -m governor.config.reference`.

`docs/configuration.md` holds these tables word for word; a test compares them.
"""

from __future__ import annotations

import sys

from pydantic_core import PydanticUndefined

from governor.config.explain import ARRAYS, TABLES, expected
from governor.config.models import BackendConfig, ModelConfig, Section
from governor.config.problems import show

_WITHOUT_DEFAULT_VALUE = {
    (ModelConfig, "triton_model"): "the same as `name`",
    (ModelConfig, "parameters"): "`{}`",
    (BackendConfig, "evidence"): "as `[evidence]`",
}


def table(model: type[Section]) -> str:
    """One section as a Markdown table: key, default, what it takes, what it means."""
    rows = ["| Key | Default | Takes | Meaning |", "| --- | --- | --- | --- |"]
    for key, field in model.model_fields.items():
        takes = "a table with keys of `[evidence]`" if key == "evidence" else expected(field)
        meaning = " ".join((field.description or "").split())
        rows.append(f"| `{key}` | {_default(model, key)} | {takes} | {meaning} |")
    return "\n".join(rows) + "\n"


def tables() -> dict[str, str]:
    """Every section's heading in the file, and its table."""
    return {f"[{name}]": table(model) for name, model in TABLES.items()} | {
        f"[[{name}]]": table(model) for name, model in ARRAYS.items()
    }


def _default(model: type[Section], key: str) -> str:
    if special := _WITHOUT_DEFAULT_VALUE.get((model, key)):
        return special
    default: object = model.model_fields[key].default
    if default is PydanticUndefined:
        return "required"
    if default == ():
        return "`[]`"
    return "none" if default is None else f"`{show(default)}`"


if __name__ == "__main__":
    for heading, text in tables().items():
        sys.stdout.write(f"## `{heading}`\n\n{text}\n")
