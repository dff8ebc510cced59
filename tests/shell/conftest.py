"""Every async test of the shell runs on a clock of its own that jumps when nothing can run."""

from __future__ import annotations

from inspect import iscoroutinefunction
from pathlib import Path

import pytest

from tests.shell.harness import run_jumping

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first marker that names a runner decides; pytest-trio's own stands behind this one."""
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=run_jumping), append=False)
