"""Prometheus' own checker, from Debian's package: unpacked, not installed, so that no server is started."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / ".tools"
"""Where the package is unpacked; Git ignores it."""
PATIENCE_S: Final = 120.0


def promtool() -> str:
    """The path of the program. Skips the test where there is none and none can be had."""
    found = shutil.which("promtool")
    if found is not None:
        return found
    unpacked = FOLDER / "usr" / "bin" / "promtool"
    if not unpacked.exists():
        _unpack(unpacked)
    return str(unpacked)


def run_promtool(*arguments: str | Path, stdin: bytes = b"") -> str:
    """Runs it and returns what it printed; a complaint fails the test."""
    done = subprocess.run(
        [promtool(), *map(str, arguments)], input=stdin, capture_output=True, check=False, timeout=PATIENCE_S
    )
    told = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, told
    return told


def _unpack(wanted: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("promtool is not installed, and without apt-get it cannot be fetched")
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if wanted.exists():
            return
        for command in (["apt-get", "download", "prometheus"], ["apt-get", "update"]):
            done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
            if done.returncode == 0 and "download" in command:
                break
        else:
            done = subprocess.run(
                ["apt-get", "download", "prometheus"],
                cwd=FOLDER,
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE_S,
            )
        packages = sorted(FOLDER.glob("prometheus_*.deb"))
        if not packages:
            pytest.skip(f"promtool is not installed, and apt-get cannot fetch it: {done.stderr.strip()}")
        subprocess.run(["dpkg-deb", "-x", packages[-1], FOLDER], check=True, timeout=PATIENCE_S)
