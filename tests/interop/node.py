"""The client that we did not write: its package, installed once, and scripts that use it."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = Path(__file__).parent / "js"
FOLDER: Final = ROOT / ".node"
"""Where the package is installed; Git ignores it."""
PACKAGE: Final = "@qwen-code/sdk"
VERSION: Final = "0.1.14"
"""The first version that the protocol's description was taken from; older ones have no daemon client."""
NODE_MIN: Final = 20
INSTALL_S: Final = 300.0


def why_not_here() -> str | None:
    """What this machine lacks to run the client; None if nothing."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return f"{program} is not installed; Node {NODE_MIN} or later runs the interoperability tests"
    told = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    major = re.match(r"v(\d+)\.", told)
    if major is None or int(major[1]) < NODE_MIN:
        return f"node is {told.strip()}; the interoperability tests need Node {NODE_MIN} or later"
    return None


def install() -> None:
    """Installs the package unless it is there. Two test runs at once wait for each other."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if installed_version() == VERSION:
            return
        (FOLDER / "package.json").write_text('{"private": true}\n')
        # The package asks for Node 22 because of its command line; its daemon client runs under Node 20.
        command = [
            "npm", "install", "--no-save", "--no-package-lock", "--engine-strict=false", "--ignore-scripts",
            "--no-audit", "--no-fund", f"{PACKAGE}@{VERSION}",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=INSTALL_S)
        assert done.returncode == 0, f"npm could not install {PACKAGE}@{VERSION}:\n{done.stdout}{done.stderr}"
        assert installed_version() == VERSION


def installed_version() -> str | None:
    """The version of the package that is there."""
    manifest = FOLDER / "node_modules" / PACKAGE / "package.json"
    return str(json.loads(manifest.read_text())["version"]) if manifest.exists() else None


async def run_script(name: str, options: Mapping[str, Any], *, seconds: float = 60.0) -> dict[str, Any]:
    """Runs one script under Node and returns what it told. A failed assertion in it fails the test.

    Args:
        name: a file of `js/`, without its ending.
        options: what the script gets.
        seconds: the longest it may take; a script that hangs is killed.
    """
    command = ["node", str(SCRIPTS / f"{name}.mjs"), json.dumps({**options, "prefix": str(FOLDER)})]
    with trio.move_on_after(seconds) as bound:
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert not bound.cancelled_caught, f"{name}.mjs had not ended after {seconds:g} s"
    errors = done.stderr.decode(errors="replace")
    assert done.returncode == 0, f"{name}.mjs failed:\n{errors}"
    told = json.loads(done.stdout)
    assert isinstance(told, dict)
    return told
