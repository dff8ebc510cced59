"""The package is typed: mypy and pyright, from outside of it, know every signature, the blocking twins' included."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

USE = """
from typing import assert_type

from governor.client import (
    AgentMessageChunk, DaemonClient, DaemonEvent, DaemonSessionClient, PromptRequest, PromptResult, SyncDaemonClient,
    SyncDaemonSessionClient, TurnComplete,
)


async def in_async() -> None:
    async with DaemonClient("http://x", max_pending_prompts_per_session=None) as client:
        session = await DaemonSessionClient.create_or_attach(client, None, "me")
        assert_type(await session.prompt(PromptRequest(prompt="hello"), timeout_s=1), PromptResult)
        async with session.stream("hello") as turn:
            async for piece in turn.text:
                assert_type(piece, str)
            async for event in turn:
                assert_type(event, DaemonEvent)
                if isinstance(event, TurnComplete):
                    assert_type(event.stop_reason, str)
        async with session.events() as events:
            async for told in events:
                match told:
                    case AgentMessageChunk(text=text):
                        assert_type(text, str)
                    case _:
                        pass


def blocking() -> None:
    with SyncDaemonClient("http://x", token="t") as client:
        session = SyncDaemonSessionClient.create_or_attach(client)
        assert_type(session.prompt(PromptRequest(prompt="hello"), timeout_s=1), PromptResult)
        assert_type(client.prompt("s", "hello", cancel_on_server=True), PromptResult)
        assert_type(client.adopt_server_limit(), int | None)
        with session.stream("hello") as turn:
            for piece in turn.text:
                assert_type(piece, str)
            for event in turn:
                assert_type(event, DaemonEvent)
            assert_type(turn.result(), PromptResult)
        with client.events("s", last_event_id=3) as events:
            for event in events:
                assert_type(event, DaemonEvent)
"""
MISTAKES = """
from governor.client import SyncDaemonClient

with SyncDaemonClient("http://x") as client:
    client.prompt("s")
    client.prompt("s", "hello", timeout="1")
    client.prompt("s", "hello", timeout_s="1")
    client.stream("s", 3)
    client.no_such_method()
"""
LINES = {5, 6, 7, 8, 9}

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A project that uses the package, and one that uses it wrongly."""
    (tmp_path / "use.py").write_text(USE)
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    return tmp_path


def check(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_mypy(files: Path, bare_python: Path) -> None:
    options = ("mypy", "--strict", "--cache-dir", str(files / "cache"), "--python-executable", str(bare_python))
    assert check(files, *options, "use.py").stdout == "Success: no issues found in 1 source file\n"
    told = check(files, *options, "mistakes.py").stdout
    assert {int(line.split(":")[1]) for line in told.splitlines() if ": error:" in line} == LINES


def test_pyright(files: Path, bare_python: Path) -> None:
    (files / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    told = json.loads(check(files, "pyright", "--outputjson", "--pythonpath", str(bare_python)).stdout)
    errors = [item for item in told["generalDiagnostics"] if item["severity"] == "error"]
    shown = [(item["file"].rsplit("/", 1)[1], item["range"]["start"]["line"] + 1, item["message"]) for item in errors]
    assert [item for item in shown if item[0] == "use.py"] == []
    assert {line for _, line, _ in shown} == LINES
