"""docs/sdk.md: every example is run, against a governor on a socket, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import governor.client
from tests.client.conftest import ADMIN_TOKEN

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```\n(?:\n^```\n(.*?)^```\n)?", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_an_example_works_as_it_stands(code: str, printed: str, governor_url: str) -> None:
    assert "http://127.0.0.1:4170" in code
    # The same model, which here stops after a few words.
    code = code.replace("http://127.0.0.1:4170", governor_url).replace('"storyteller"', '"short"')
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, "GOVERNOR_ADMIN_TOKEN": ADMIN_TOKEN}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip()
    if printed:
        assert done.stdout == printed


def test_there_are_examples_for_all_three_ways() -> None:
    assert len(EXAMPLES) >= 6
    assert all(any(word in code for code, _ in EXAMPLES) for word in ("trio.run", "asyncio.run", "with SyncDaemon"))


def test_every_name_on_the_page_exists() -> None:
    named = set(re.findall(r"`(?:Sync)?(Daemon\w+|Prompt\w+|Retry\w+|State\w+|Unknown\w+)", PAGE))
    assert named
    assert {name for name in named if not hasattr(governor.client, name)} == set()
    assert all(hasattr(governor.client, name) for name in governor.client.__all__)
