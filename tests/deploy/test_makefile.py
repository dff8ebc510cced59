"""`make`: an environment that could not be finished is gone on with, and what failed is said."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = """\
#!/bin/sh
# Stands for python: `-m venv` makes the folder; its pip has no network until the file `net` is there.
here=$(dirname "$(readlink -f "$0")")
case "$*" in
  "--version") echo "Python 3.99" ;;
  "-m venv "*) echo made >> "$here/venvs"; mkdir -p "$3/bin"; ln -sf "$here/python" "$3/bin/python"; touch "$3/pip" ;;
  "-m pip --version") test -e "$(dirname "$0")/../pip" ;;
  "-m pip install"*) echo asked >> "$here/pips"; test -e "$here/net" || { echo "ERROR: no network"; exit 1; } ;;
esac
"""


def make(folder: Path) -> subprocess.CompletedProcess[str]:
    venv = folder / "venv"
    return subprocess.run(
        ["make", "-C", str(ROOT), f"VENV={venv}", f"PYTHON={folder / 'python'}", f"{venv}/.made"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_environment_that_could_not_be_finished_is_finished_by_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    broken = make(tmp_path)
    assert broken.returncode == 2
    assert "ERROR: no network\nNot installed: pip says above why." in broken.stdout
    (tmp_path / "net").touch()
    assert make(tmp_path).returncode == 0
    assert (tmp_path / "venvs").read_text() == "made\n", "the environment that is there is not made anew"
    assert (tmp_path / "pips").read_text() == "asked\nasked\n"
    assert make(tmp_path).returncode == 0
    assert (tmp_path / "pips").read_text() == "asked\nasked\n", "a finished one is left alone"


def test_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "venv").touch()
    broken = make(tmp_path)
    assert broken.returncode == 2
    assert f"No virtual environment could be made in {tmp_path / 'venv'}" in broken.stdout
