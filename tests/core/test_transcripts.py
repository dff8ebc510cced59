"""The transcripts are complete, each says what it shows, and their language takes nothing it does not understand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.core.transcript import Script, ScriptError

FILES = sorted((Path(__file__).parent / "golden").glob("*.txt"))
RULES = [f"E{number}" for number in range(1, 13)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_transcript_begins_with_the_rule_in_words(path: Path) -> None:
    first, *others = path.read_text().splitlines()
    assert first.startswith("# ")
    assert any(line.startswith("ledger ") for line in others)


@pytest.mark.parametrize("rule", [*RULES, "ADR-0040"])
def test_every_rule_has_a_transcript(rule: str) -> None:
    said = [re.findall(r"\bE\d+\b|ADR-0040", line) for path in FILES for line in path.read_text().splitlines()]
    assert any(rule in rules for rules in said)


@pytest.mark.parametrize(
    ("story", "complaint"),
    [
        ("sing", "there is no sing"),
        ("send a", "a story begins with its ledger"),
        ("ledger slots=1\nlost a", "there is no claim a"),
        ("ledger slots=1\nsend a\nanswered a\nlost a", "line 4, 'lost a': there is no claim a"),
        ("ledger slots=2\nsend a\nsend a", "a was told of before"),
        ("ledger slots=1\ntake t model=0,0", "nobody asked for t"),
        ("ledger slots=1\nread model=0,0 colour=red", "read takes no colour"),
        ("ledger slots=1 colour=red", "ledger takes no colour"),
    ],
)
def test_a_line_that_cannot_be_understood_is_refused(story: str, complaint: str) -> None:
    with pytest.raises(ScriptError, match=re.escape(complaint)):
        Script().run(story)


def test_what_a_transcript_says_is_told_anew() -> None:
    """An expected outcome cannot be wished for: indented lines are what came of it and nothing else."""
    story = "ledger slots=1\n    the moon\nsend a # with a word about it\n    all is well\n"
    assert Script().run(story) == (
        "ledger slots=1\nsend a # with a word about it\n    epoch 0: no baseline | free 0 | a=running\n"
    )
