"""On which line of a TOML text each key stands; the standard parser does not tell.

The text must already be known to be valid TOML. The scanner follows its structure and skips its values, so it needs
no rules about what is allowed; where it loses its way all the same, the rest of the keys simply has no line.
"""

from __future__ import annotations

import bisect
import re
import tomllib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.config.problems import KeyPath

_BLANK = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE_VALUE = re.compile(r"[^,\]}#\n]+")


class _LostError(Exception):
    """The text is not what the scanner takes it for."""


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line, counted from 1, of every key, table and array element in a valid TOML text."""
    scanner = _Scanner(text)
    try:
        scanner.scan()
    except (_LostError, RecursionError):
        # A line number is a convenience; what was found so far is right.
        return scanner.lines
    return scanner.lines


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """The line of a key, or of the nearest table around it; None when nothing of it is in the text."""
    for length in range(len(path), 0, -1):
        if (line := lines.get(path[:length])) is not None:
            return line
    return None


class _Scanner:
    """One pass over one text; `lines` grows as keys are met."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.lines: dict[KeyPath, int] = {}
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._tables_in: dict[KeyPath, int] = {}

    def scan(self) -> None:
        """Walk the whole text."""
        table: KeyPath = ()
        while True:
            self._skip(_GAP)
            if self.position >= len(self.text):
                return
            if self._next("[["):
                table = self._header(array=True)
                self._expect("]]")
            elif self._next("["):
                table = self._header(array=False)
                self._expect("]")
            else:
                self._pair(table)

    def _header(self, *, array: bool) -> KeyPath:
        line = self._line()
        keys = self._keys()
        path: KeyPath = ()
        for depth, key in enumerate(keys, 1):
            path += (key,)
            if array and depth == len(keys):
                self.lines.setdefault(path, line)
                index = self._tables_in.get(path, 0)
                self._tables_in[path] = index + 1
                path += (index,)
            elif path in self._tables_in:
                path += (self._tables_in[path] - 1,)
            self.lines.setdefault(path, line)
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        path = table
        for key in self._keys():
            path += (key,)
            self.lines.setdefault(path, line)
        self._expect("=")
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        self._skip(_BLANK)
        self.lines.setdefault(path, self._line())
        if self._next("["):
            self._array(path)
        elif self._next("{"):
            self._inline_table(path)
        elif self.text[self.position : self.position + 1] in {'"', "'"}:
            self._match(_STRING)
        else:
            self._match(_BARE_VALUE)

    def _array(self, path: KeyPath) -> None:
        index = 0
        while True:
            self._skip(_GAP)
            if self._next("]"):
                return
            self._value((*path, index))
            index += 1
            self._skip(_GAP)
            self._next(",")

    def _inline_table(self, path: KeyPath) -> None:
        while True:
            self._skip(_GAP)
            if self._next("}"):
                return
            self._pair(path)
            self._skip(_GAP)
            self._next(",")

    def _keys(self) -> list[str]:
        keys = []
        while True:
            self._skip(_BLANK)
            key = self._match(_KEY)
            keys.append(_unquoted(key))
            self._skip(_BLANK)
            if not self._next("."):
                return keys

    def _line(self) -> int:
        return bisect.bisect_left(self._newlines, self.position) + 1

    def _next(self, mark: str) -> bool:
        found = self.text.startswith(mark, self.position)
        if found:
            self.position += len(mark)
        return found

    def _expect(self, mark: str) -> None:
        if not self._next(mark):
            raise _LostError

    def _skip(self, pattern: re.Pattern[str]) -> None:
        self._match(pattern)

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.position)
        if match is None:
            raise _LostError
        self.position = match.end()
        return match.group()


def _unquoted(key: str) -> str:
    if key[0] not in "\"'":
        return key
    return str(tomllib.loads(f"key = {key}")["key"])
