"""A mistake in a configuration, and how it is written down for a person."""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

KeyPath: TypeAlias = tuple[str | int, ...]
"""Where a value stands: table keys, and positions from 0 in arrays."""

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Problem:
    """One mistake: the key, and what is wrong with it and right instead."""

    path: KeyPath
    text: str

    def sentence(self) -> str:
        """Key and text, without the place in a file."""
        return f"{dotted(self.path)}: {self.text}" if self.path else self.text


def dotted(path: KeyPath) -> str:
    """A path as people write it: `backends[0].url`; keys that TOML would have to quote are quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if _is_bare(step) else show(step))
    return text


def _is_bare(key: str) -> bool:
    return key != "" and key.isascii() and all(char.isalnum() or char in "_-" for char in key) and len(key) <= 64


def show(value: object) -> str:
    """A received value in one short line of ASCII, however large or odd it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = json.dumps(value[: _SHOWN_CHARACTERS + 1])
    elif isinstance(value, int):
        # Python refuses to write integers of thousands of digits, and nobody would read them.
        text = str(value) if value.bit_length() < 200 else "an integer of more than 60 digits"
    elif isinstance(value, float):
        text = str(value) if math.isfinite(value) else {"inf": "inf", "-inf": "-inf"}.get(str(value), "nan")
    elif isinstance(value, dict):
        text = f"a table of {len(value)} keys" if len(value) != 1 else "a table of 1 key"
    elif isinstance(value, list | tuple):
        text = f"an array of {len(value)} values" if len(value) != 1 else "an array of 1 value"
    elif value is None:
        text = "null"
    else:
        text = f"a {type(value).__name__}"  # what TOML offers beyond JSON: date, time, datetime
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to a misspelt one, or None when nothing is close."""
    if len(word) > 100:  # comparing is quadratic, and no key is this long
        return None
    plain = word.lower().replace("-", "_")
    close = difflib.get_close_matches(plain, list(known), n=1, cutoff=0.7)
    return close[0] if close else None
