"""Values from the environment and from the command line, laid over those of the file.

`GOVERNOR__SERVER__PORT=4171` sets `server.port`, `GOVERNOR__BACKENDS__0__URL=...` the `url` of the first backend.
The command line goes before the environment, the environment before the file.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from governor.config.explain import ARRAYS, TABLES, takes_text
from governor.config.models import EvidenceConfig, Section
from governor.config.problems import KeyPath, Problem, show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.errors import JsonValue

PREFIX = "GOVERNOR__"
"""Start of the names of environment variables that set a key; further `__` separate the steps of its path."""

_MISSPELT = re.compile(rf"GOVERNOR_(?P<steps>({'|'.join([*TABLES, *ARRAYS])})__.)", re.IGNORECASE)
"""A token that was set by such a name would be missing without a word. (Kubernetes sets `GOVERNOR_SERVER_PORT` and the
like for a service of that name, but nothing with `__`.)"""


@dataclass
class Overlay:
    """Where values came from that the file does not hold, and what could not be laid over.

    Attributes:
        origins: for each path that was set, who set it, in words.
        problems: (who, problem) pairs of settings that have no place.
    """

    origins: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[tuple[str, Problem]] = field(default_factory=list)

    def origin_of(self, path: KeyPath) -> str | None:
        """Who set the value at `path` or around it; None when it is not from the overlay."""
        for length in range(len(path), 0, -1):
            if (origin := self.origins.get(path[:length])) is not None:
                return origin
        return None


def lay_over(raw: dict[str, object], environ: Mapping[str, str], overrides: Mapping[str, JsonValue]) -> Overlay:
    """Set in `raw` what the environment and then the command line say; unrelated variables are ignored."""
    overlay = Overlay()
    for name in sorted(environ):
        if (meant := _MISSPELT.match(name)) is not None:
            steps = name[meant.start("steps") :].lower().split("__")
            sentence = f"the variable sets nothing; did you mean {PREFIX}{name[meant.start('steps') :].upper()}?"
            overlay.problems.append((_by("environment", name), Problem(tuple(steps), sentence)))
    names = [name for name in environ if name.upper().startswith(PREFIX)]
    for name in sorted(names, key=_by_position):
        steps = name[len(PREFIX) :].lower().split("__")
        if name != name.upper():
            problem = Problem(tuple(steps), f"the variable's name must be in upper case: {name.upper()}")
            overlay.problems.append((_by("environment", name), problem))
            continue
        _set(raw, steps, _from_text(steps, environ[name]), _by("environment", name), overlay)
    for key, value in overrides.items():
        if value is not None:  # a flag that was not given
            _set(raw, key.split("."), value, _by("option", key), overlay)
    return overlay


def _by(kind: str, name: str) -> str:
    return f"{kind} {name if name.isprintable() else show(name)}"


def _by_position(name: str) -> list[tuple[int, int, str]]:
    """Sort key that puts position 2 before position 10, so that arrays grow from their end."""
    return [(0, int(step), "") if _is_position(step) else (1, 0, step) for step in name[len(PREFIX) :].split("__")]


def _is_position(step: str) -> bool:
    return step.isascii() and step.isdecimal() and len(step) <= 6


def _set(raw: dict[str, object], steps: list[str], value: object, origin: str, overlay: Overlay) -> None:
    """Put one value into the tables; tables on its way that are missing are made."""
    container: object = raw
    path: KeyPath = ()
    for depth, step in enumerate(steps):
        last = depth == len(steps) - 1
        fresh: object = value if last else ([] if depth == 0 and step in ARRAYS else {})
        if isinstance(container, dict):
            path += (step,)
            if last or step not in container:
                container[step] = fresh
                overlay.origins.setdefault(path, origin)
            container = container[step]
        elif isinstance(container, list):
            position = int(step) if _is_position(step) else -1
            if not 0 <= position <= len(container):
                problem = Problem(path, f"{show(step)} is no position; expected 0 to {len(container)}")
                overlay.problems.append((origin, problem))
                return
            path += (position,)
            if position == len(container):
                container.append(fresh)
                overlay.origins.setdefault(path, origin)
            elif last:
                container[position] = fresh
            container = container[position]
        else:
            overlay.problems.append((origin, Problem(path, "it is no table, so nothing can be set inside it")))
            return
    overlay.origins[path] = origin


def _from_text(steps: list[str], text: str) -> object:
    """The value that a variable's text means: text for keys that hold text, else as TOML would read it."""
    field_model, key = _field_at(steps)
    if field_model is not None and key in field_model.model_fields and takes_text(field_model.model_fields[key]):
        return text
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _field_at(steps: list[str]) -> tuple[type[Section] | None, str]:
    """The section and key that a path names, as far as it names one."""
    match steps:
        case [table, key] if table in TABLES:
            return TABLES[table], key
        case [array, _, key] if array in ARRAYS:
            return ARRAYS[array], key
        case ["backends", _, "evidence", key]:
            return EvidenceConfig, key
        case _:
            return None, ""
