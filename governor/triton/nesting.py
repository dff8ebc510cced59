"""Is a request's JSON nested too deeply for Triton? Pure, without parsing it.

Triton's parser and what reads tensors after it call themselves for each array within an array, and 2.51 ends when its
stack does: measured at 32,768 arrays around a text, not at 16,384.
"""

from __future__ import annotations

from typing import Final

from governor.triton.requestcheck import Fault

NESTED_MAX: Final = 8192
"""Deeper JSON is refused, and that of at most half this depth is not."""
_STEP: Final = NESTED_MAX // 2
_ALL: Final = bytes(range(256))
_NO_OPENING: Final = _ALL.translate(None, b"[{")
_NO_MARK: Final = _ALL.translate(None, b'[]{}"')
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")


def find_fatal_nesting(text: bytes | memoryview) -> Fault | None:
    """What to answer to a request whose nesting Triton would die of; None for every other one."""
    if len(text) <= NESTED_MAX:
        return None
    text = bytes(text)
    if len(text.translate(None, _NO_OPENING)) <= NESTED_MAX:
        return None
    brackets, depth = _brackets_outside_strings(text), 0
    for start in range(0, len(brackets), _STEP):
        step = brackets[start : start + _STEP]
        opened = step.count(b"[")
        if depth + opened > NESTED_MAX:
            return Fault(400, f"The JSON is nested too deeply: more than {_STEP} arrays and objects in one another")
        depth += opened - (len(step) - opened)
    return None


def _brackets_outside_strings(text: bytes) -> bytes:
    """All of them in their order, each as a square one."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")  # of what is left each quote begins or ends a string
    marks = text.translate(_SQUARE, _NO_MARK).replace(b'""', b"")  # most strings have no brackets
    return b"".join(marks.split(b'"')[::2])
