"""The command: S1, A9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from api import cli

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from governor.config import Config

CONFIG = """
[[backends]]
name = "triton"
url = "http://127.0.0.1:9"

[[models]]
name = "chat"
backend = "triton"
slots = 1
kind = "generate"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A configuration file."""
    file = tmp_path / "governor.toml"
    file.write_text(CONFIG)
    return file


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """What would have been served."""
    seen: list[Config] = []

    async def serve(config: Config, *, load: Callable[[], Config]) -> None:
        assert load() == config, "read again, the flags and the environment still go before the file"
        seen.append(config)

    monkeypatch.setattr("api.main.serve", serve)
    monkeypatch.setattr("api.logs.configure_logging", lambda: None)
    return seen


def test_flags_go_before_the_environment_and_the_file(
    path: Path, served: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOVERNOR__SERVER__PORT", "4000")
    monkeypatch.setenv("GOVERNOR__LIMITS__MAX_SESSIONS", "7")
    flags = ["--port", "0", "--host", "::1", "--max-pending-prompts-per-session", "3", "--prompt-deadline-ms", "900"]
    assert cli.main(["serve", str(path), *flags]) == 0
    (config,) = served
    assert (config.server.host, config.server.port) == ("::1", 0)
    assert config.limits.max_pending_prompts_per_session == 3
    assert config.limits.prompt_deadline_ms == 900
    assert config.limits.max_sessions == 7


def test_zero_pending_prompts_disables_the_limit(path: Path, served: list[Config]) -> None:
    """S1."""
    assert cli.main(["serve", str(path), "--max-pending-prompts-per-session", "0"]) == 0
    assert served[0].limits.max_pending_prompts_per_session is None


@pytest.mark.parametrize("value", ["-1", "1.5", "nan", "inf", "five", "", "1_0", "+1", " 1", "\uff11", "9" * 19])
@pytest.mark.parametrize("flag", ["--max-pending-prompts-per-session", "--prompt-deadline-ms", "--port"])
def test_anything_but_a_whole_number_is_refused(
    flag: str, value: str, path: Path, served: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", str(path), f"{flag}={value}"])
    assert caught.value.code == 2
    assert flag in capsys.readouterr().err
    assert not served


def test_every_mistake_of_a_configuration_is_named_and_nothing_starts(
    path: Path, served: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text(CONFIG.replace("slots = 1", "slots = 0").replace('"generate"', '"generat"'))
    for command in ("serve", "check"):
        assert cli.main([command, str(path)]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert any("slots" in line for line in lines)
        assert any("kind" in line for line in lines)
        assert lines[-1] == "governor: 2 mistakes; nothing was started"
    assert cli.main(["serve", str(path.parent / "missing.toml")]) == 2
    assert not served


def test_a_check_that_finds_errors_exits_with_1(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(path)]) == 1
    assert "triton" in capsys.readouterr().out


def test_what_keeps_it_from_serving_is_one_sentence(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from api.serving import ListenError

    async def serve(_: Config, *, load: Callable[[], Config]) -> None:
        raise ListenError("Cannot listen on 127.0.0.1:4170: in use.")

    monkeypatch.setattr("api.main.serve", serve)
    monkeypatch.setattr("api.logs.configure_logging", lambda: None)
    assert cli.main(["serve", str(path)]) == 1
    assert capsys.readouterr().err == "governor: Cannot listen on 127.0.0.1:4170: in use.\n"


def test_the_module_runs_as_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "api.cli", "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("governor ")


@pytest.mark.parametrize("command", ["serve", "check"])
def test_ctrl_c_before_anything_has_started_ends_it_without_a_traceback(command: str, tmp_path: Path) -> None:
    fifo = tmp_path / "governor.toml"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "api.cli", command, str(fifo)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    writer = os.open(fifo, os.O_WRONLY)  # as soon as it reads its configuration, which never comes
    try:
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20)[0] == b""
        assert process.returncode == -signal.SIGINT
    finally:
        os.close(writer)
