"""The ledger's behaviour as transcripts that can be read aloud: one per sentence of ADR-0040 and per fact that matters.

`GOLDEN_REWRITE=1 pytest tests/core/test_golden.py` rewrites them; what has changed is then in the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.core.transcript import Script

FILES = sorted((Path(__file__).parent / "golden").glob("*.txt"))


def test_there_are_transcripts() -> None:
    assert len(FILES) > 20


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text()
    happened = Script().run(text)
    if os.environ.get("GOLDEN_REWRITE"):
        path.write_text(happened)
    assert happened == path.read_text()
