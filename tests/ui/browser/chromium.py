"""Finds a Chromium for the tests, or installs Debian's: `python -m tests.ui.browser.chromium`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS: Final = (
    "--no-sandbox",  # the tests may run as root, and look at pages of their own alone
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
MISSING: Final = (
    "The tests of the operators' page need Chromium, and there is none: install it (Debian: apt-get install chromium),"
    " or set CHROMIUM to the path of one"
)
_INSTALL_S: Final = 600


def find() -> str | None:
    """The path of a Chromium; None if there is none."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def install() -> str | None:
    """Installs Debian's, where this process may; the path, None if there is none afterwards."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return None
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"],
    ):
        print(" ".join(command), flush=True)  # noqa: T201  # a minute of silence looks like a hang
        subprocess.run(command, env=environment, check=False, timeout=_INSTALL_S, stdout=subprocess.DEVNULL)
    return find()


if __name__ == "__main__":
    sys.exit(None if find() or install() else MISSING)
