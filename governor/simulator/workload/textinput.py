"""What a text model accepts as its input, and the sentence it refuses the rest with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_SECONDS = 1.0
MAX_SECONDS = 600.0
MAX_TOKENS = 2000
DEFAULT_TOKENS = 60

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class BadInputError(ValueError):
    """The caller's input cannot be worked on; the message is meant for the caller."""


def text_of(elements: Sequence[object]) -> str:
    """The text of a one-element BYTES tensor.

    Raises:
        BadInputError: not one element, not UTF-8, or nothing but white space.
    """
    if len(elements) != 1:
        raise BadInputError(f"text_input has {len(elements)} elements; send exactly one text")
    element = elements[0]
    if not isinstance(element, bytes):
        raise BadInputError(f"text_input is {type(element).__name__}; send BYTES")
    try:
        text = element.decode("utf-8")
    except UnicodeDecodeError as broken:
        raise BadInputError(f"text_input is not UTF-8 (byte {broken.start}): send UTF-8 text") from None
    if not text.strip():
        raise BadInputError("text_input is empty: send at least one word")
    return text


def seconds_asked(text: str) -> float:
    """The first number in the text as seconds: 1 where there is none, at most 600."""
    found = _NUMBER.search(text)
    return min(float(found.group()), MAX_SECONDS) if found else DEFAULT_SECONDS


def tokens_asked(elements: Sequence[object] | None) -> int:
    """How many tokens the optional `max_tokens` tensor asks for: 60 where it is absent.

    Raises:
        BadInputError: not one whole number from 1 to 2000.
    """
    if elements is None:
        return DEFAULT_TOKENS
    if len(elements) != 1:
        raise BadInputError(f"max_tokens has {len(elements)} elements; send one whole number")
    asked = int(str(elements[0]))
    if not 1 <= asked <= MAX_TOKENS:
        raise BadInputError(f"max_tokens is {asked}; send a whole number from 1 to {MAX_TOKENS}")
    return asked
