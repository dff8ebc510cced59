"""docs/security.md: each claim is held by a test that exists, and each test here is named there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text()


def names_in(path: Path) -> set[str]:
    nodes = ast.parse(path.read_text()).body
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name for node in functions if node.name.startswith("test_")}


def test_every_claim_names_a_test_that_exists() -> None:
    claims = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
    assert len(claims) > 30
    for path, name in claims:
        assert name in names_in(TESTS / path), f"{path}::{name}"
    for row in re.findall(r"^\| .* \|$", PAGE.split("## Claims")[1].split("## What remains")[0], re.MULTILINE):
        assert "::" in row or row.startswith(("| Claim", "| ---")), row


def test_every_test_of_this_folder_is_behind_a_claim() -> None:
    for path in Path(__file__).parent.glob("test_*.py"):
        if path != Path(__file__):
            for name in names_in(path):
                assert f"security/{path.name}::{name}" in PAGE, name
