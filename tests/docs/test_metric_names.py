"""An operator searches for the metric that a page names: it exists, by that very name.

docs/http-api.md lists all metrics, and tests/api/test_metrics.py holds that list against the code.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bvig_[a-z_]+")
LISTED = set(re.findall(r"^\| `(vig_[a-z_]+)`", (ROOT / "docs" / "http-api.md").read_text(), re.MULTILINE))
PAGES = sorted(page.name for page in (ROOT / "docs").glob("*.md") if NAME.search(page.read_text()))


@pytest.mark.parametrize("page", PAGES)
def test_every_metric_that_a_page_names_exists(page: str) -> None:
    series = {f"{name}{end}" for name in LISTED for end in ("", "_bucket", "_count", "_sum")}
    assert set(NAME.findall((ROOT / "docs" / page).read_text())) - series == set()


def test_the_list_is_found() -> None:
    assert len(LISTED) > 30
