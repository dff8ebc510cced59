"""The unit: systemd takes it, it is as closed as it can be, and its times fit the governor's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from governor.config import ServerConfig
from tests.deploy.promtool import ROOT

if TYPE_CHECKING:
    from pathlib import Path

UNIT = ROOT / "deploy" / "systemd" / "governor.service"
EXPOSURE_MAX = 20
"""systemd's own measure, in tenths: 0 is closed, 100 open."""


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def analyze(*arguments: str) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    return told


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "governor.service"
    # It also looks whether the program is there.
    unit.write_text(UNIT.read_text().replace("/opt/governor/bin/governor", sys.executable))
    assert analyze("verify", str(unit)) == ""


def test_it_is_closed() -> None:
    told = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(UNIT))
    assert "Overall exposure level" in told


def test_stopping_has_time_for_the_drain_and_the_last_answers() -> None:
    server = ServerConfig()
    needed_s = (server.graceful_timeout_ms + server.send_timeout_ms) / 1000
    assert float(settings()["TimeoutStopSec"][0]) >= needed_s + 10


def test_the_locks_have_a_folder_of_their_own() -> None:
    """D8: without it a second unit with the same models would find none of the first one's locks."""
    assert settings()["RuntimeDirectory"] == ["governor"]
    assert "XDG_RUNTIME_DIR=%t/governor" in settings()["Environment"]


def test_it_runs_what_the_page_installs() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    program, command, config = settings()["ExecStart"][0].split()
    assert command == "serve"
    assert program.removesuffix("/bin/governor") in page
    assert config in page
    assert settings()["EnvironmentFile"][0].removeprefix("-") in page
