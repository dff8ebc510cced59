"""On which line a key stands, held against texts whose layout is known."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from governor.config.lines import key_lines, line_of

if TYPE_CHECKING:
    from governor.config.problems import KeyPath


def test_every_shape_of_toml_is_found() -> None:
    text = """\
# a comment = 1
title = "x" # [no.table]
a.b."c d".'e.f' = 1
[one]
x = 1
  y   =  [ 1, # ]
    [ 2, 3 ],
    { p = 1, q.r = "}" },
  ]
"quoted key" = '''
z = 5
]]'''
s = \"\"\"
\\\"\"\"
w = 6 \"\"\"\"\"
[one.two]
k = {}
[[list]]
v = 1
[list.sub]
v = 2
[[list.deep]]
[[list]]
v = 3
[[list.deep]]
u = 1
[[list.deep]]
u = 2
"""
    tomllib.loads(text)
    lines = key_lines(text)
    expected: dict[KeyPath, int] = {
        ("title",): 2,
        ("a",): 3,
        ("a", "b"): 3,
        ("a", "b", "c d", "e.f"): 3,
        ("one",): 4,
        ("one", "x"): 5,
        ("one", "y"): 6,
        ("one", "y", 0): 6,
        ("one", "y", 1): 7,
        ("one", "y", 1, 1): 7,
        ("one", "y", 2): 8,
        ("one", "y", 2, "p"): 8,
        ("one", "y", 2, "q", "r"): 8,
        ("one", "quoted key"): 10,
        ("one", "s"): 13,
        ("one", "two"): 16,
        ("one", "two", "k"): 17,
        ("list",): 18,
        ("list", 0): 18,
        ("list", 0, "v"): 19,
        ("list", 0, "sub"): 20,
        ("list", 0, "sub", "v"): 21,
        ("list", 0, "deep", 0): 22,
        ("list", 1): 23,
        ("list", 1, "v"): 24,
        ("list", 1, "deep", 0): 25,
        ("list", 1, "deep", 0, "u"): 26,
        ("list", 1, "deep", 1, "u"): 28,
    }
    assert {path: lines.get(path) for path in expected} == expected


def test_a_key_that_is_not_there_has_the_line_of_what_is_around_it() -> None:
    lines = key_lines("\n[a]\nb = 1\n")
    assert line_of(lines, ("a", "b", "c")) == 3
    assert line_of(lines, ("a", "x")) == 2
    assert line_of(lines, ("x",)) is None
    assert line_of(lines, ()) is None


def test_windows_line_ends_count_once() -> None:
    assert key_lines("a = 1\r\n\r\nb = 2\r\n") == {("a",): 1, ("b",): 3}


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=6)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=12)
LEAVES = st.integers(-9, 9) | st.booleans() | TEXTS
TREES = st.dictionaries(
    KEYS,
    st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)),
)


def render(value: object, newline: str) -> str:
    """TOML of a value, with line breaks wherever arrays allow them."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key, ensure_ascii=False)} = {render(inner, newline)}" for key, inner in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list):
        return "[" + "".join(f"{newline}{render(inner, newline)},  # ]" + "\n" for inner in value) + "]"
    if isinstance(value, str) and len(value) % 2:
        return '"""\n' + json.dumps(value, ensure_ascii=False)[1:-1] + '"""'
    return json.dumps(value, ensure_ascii=False)


def leaves(value: object, path: KeyPath) -> list[KeyPath]:
    if isinstance(value, dict):
        return [path, *(leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key)))]
    if isinstance(value, list):
        return [path, *(leaf for index, inner in enumerate(value) for leaf in leaves(inner, (*path, index)))]
    return [path]


@settings(deadline=None)
@given(TREES, st.sampled_from(["", "\n", "\n\n "]))
def test_every_key_of_any_toml_has_its_line(tree: dict[str, object], newline: str) -> None:
    """The line found for a top-level key is where its text begins, and nothing inside it is missing."""
    text, starts = "", {}
    for key, value in tree.items():
        starts[key] = text.count("\n") + 1
        text += f"{json.dumps(key, ensure_ascii=False)} = {render(value, newline)}\n"
    assert tomllib.loads(text) == tree
    lines = key_lines(text)
    for key, start in starts.items():
        assert lines[key,] == start
    wanted = [path for key, value in tree.items() for path in leaves(value, (key,))]
    assert set(lines) == set(wanted)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_text_at_all_upsets_the_scanner(text: str) -> None:
    key_lines(text)


def test_deep_nesting_does_not_upset_the_scanner() -> None:
    assert key_lines("a = 1\nb = " + "[" * 100_000)["a",] == 1
