"""Small configurations, and what the loader says about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.config import Config, parse_config
from governor.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.errors import JsonValue

BACKEND = '[[backends]]\nname = "triton"\nurl = "http://127.0.0.1:8000"\n'
MODEL = '[[models]]\nname = "chat"\nbackend = "triton"\nslots = 1\nkind = "generate_stream"\n'
MINIMAL = BACKEND + MODEL


def load(text: str, environ: Mapping[str, str] | None = None, **overrides: JsonValue) -> Config:
    """Parse; an override's `__` stands for the dot of its key."""
    flags = {key.replace("__", "."): value for key, value in overrides.items()}
    return parse_config(text, environ=environ or {}, overrides=flags)


def problems(text: str, environ: Mapping[str, str] | None = None, **overrides: JsonValue) -> list[str]:
    """All that is wrong; empty when nothing is."""
    try:
        load(text, environ, **overrides)
    except ConfigError as error:
        found = error.problems
    else:
        return []
    assert found, "an error without a problem"
    assert all(problem.isprintable() for problem in found), found
    return found


def only_problem(text: str, environ: Mapping[str, str] | None = None, **overrides: JsonValue) -> str:
    """The one thing that is wrong."""
    found = problems(text, environ, **overrides)
    assert len(found) == 1, found
    return found[0]
