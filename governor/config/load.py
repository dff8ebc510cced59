"""Reading a configuration: file, environment and flags in; a `Config` or every mistake out."""

from __future__ import annotations

import re
import tomllib
from types import MappingProxyType
from typing import TYPE_CHECKING

from governor.config.lines import key_lines, line_of
from governor.config.models import Config
from governor.config.overlay import Overlay, lay_over
from governor.config.problems import Problem, show
from governor.config.validate import validate
from governor.errors import ConfigError, JsonValue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_FILE_BYTES = 1_048_576
"""Size up to which a configuration file is read."""

_NOTHING: Mapping[str, str] = MappingProxyType({})
_NO_OVERRIDES: Mapping[str, JsonValue] = MappingProxyType({})
_TOML_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")


def load_config(
    path: Path, *, environ: Mapping[str, str] = _NOTHING, overrides: Mapping[str, JsonValue] = _NO_OVERRIDES
) -> Config:
    """Read and validate a configuration file.

    Args:
        path: the TOML file, UTF-8, at most `MAX_FILE_BYTES`.
        environ: environment variables; those that start with `GOVERNOR__` set keys, the others are ignored.
        overrides: values of flags by dotted key (`{"server.port": 4171}`), which go before all others; None
            stands for a flag that was not given.

    Raises:
        ConfigError: the file cannot be read, or its values cannot work; `problems` has one line for each mistake.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{_printable(path)}: cannot be read: {error.strerror or error}"]) from error
    except ValueError as error:
        raise ConfigError([f"{_printable(path)}: is no path: {error}"]) from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError([f"{_printable(path)}: larger than {MAX_FILE_BYTES} bytes, which no configuration is"])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{_printable(path)}:{line}: not UTF-8; save the file in that encoding"]) from error
    return parse_config(text, environ=environ, overrides=overrides, source=_printable(path))


def parse_config(
    text: str,
    *,
    environ: Mapping[str, str] = _NOTHING,
    overrides: Mapping[str, JsonValue] = _NO_OVERRIDES,
    source: str | None = None,
) -> Config:
    """Validate the text of a configuration.

    Args:
        text: TOML.
        environ: as for `load_config`.
        overrides: as for `load_config`.
        source: name of the file, to be shown before line numbers.

    Raises:
        ConfigError: as for `load_config`.
    """
    raw = _parse(text, source)
    overlay = lay_over(raw, environ, overrides)
    result = validate(raw)
    if isinstance(result, Config) and not overlay.problems:
        return result
    problems = [] if isinstance(result, Config) else result
    raise ConfigError(_located(problems, overlay, text, source))


def _parse(text: str, source: str | None) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, line = str(error), None
        if place := _TOML_PLACE.search(reason):
            reason, line = f"{reason[: place.start()]} (column {place[2]})", int(place[1])
        hint = "; text needs double quotes, and true and false are lower-case" if "Invalid value" in reason else ""
        raise ConfigError([f"{_place(source, line)}not valid TOML: {reason}{hint}"]) from error
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError([f"{_place(source, None)}not valid TOML: {error}"]) from error
    except RecursionError as error:
        raise ConfigError([f"{_place(source, None)}not a configuration: nested too deeply"]) from error


def _located(problems: list[Problem], overlay: Overlay, text: str, source: str | None) -> list[str]:
    """One line for each problem: those of the file in its order, then those of the environment and the flags."""
    lines = key_lines(text)
    in_file: list[tuple[int, str]] = []
    elsewhere = [f"{origin}: {problem.sentence()}" for origin, problem in overlay.problems]
    for problem in problems:
        if origin := overlay.origin_of(problem.path):
            elsewhere.append(f"{origin}: {problem.sentence()}")
            continue
        line = line_of(lines, problem.path)
        in_file.append((line or 0, _place(source, line) + problem.sentence()))
    in_file.sort(key=lambda entry: entry[0])
    return [sentence for _, sentence in in_file] + elsewhere


def _place(source: str | None, line: int | None) -> str:
    if source is None:
        return "" if line is None else f"line {line}: "
    return f"{source}: " if line is None else f"{source}:{line}: "


def _printable(path: Path) -> str:
    text = str(path)
    return text if text.isprintable() else show(text)
