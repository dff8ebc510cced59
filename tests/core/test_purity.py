"""T4: the core is pure. It imports nothing that could reach a clock, the network or chance."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import governor.core

CORE = sorted(Path(governor.core.__file__).parent.glob("*.py"))
PURE = {"__future__", "collections", "collections.abc", "dataclasses", "enum", "itertools", "json", "math", "typing"}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add(str(node.module))
    return names


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_imports_itself_the_errors_and_what_computes(path: Path) -> None:
    others = {name for name in imported(path) if not name.startswith("governor.core.")}
    assert others <= {*PURE, "governor.errors"}


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_never_waits_and_runs_no_input(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"open", "print", "input", "exec", "eval", "hash", "id", "__import__"}
