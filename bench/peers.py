"""Installs what the governor is compared with, beside the project: `python -m bench.peers haproxy nginx smg`.

HAProxy and nginx are Debian's own packages, unpacked and not installed, so that nothing on the machine changes and
no service starts. smg, LiteLLM and Ray Serve each get a virtual environment of their own. All lie under `.bench/`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HOME = Path(".bench")
_ROOT = HOME / "debian"
_DEBIAN = {
    # The libraries are those that a slim Debian lacks.
    "haproxy": ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"),
    "nginx": ("nginx",),
}
_PYPI = {
    "smg": ("smg==1.13.0",),
    "litellm": ("litellm[proxy]==1.108.7",),
    "ray": ("ray[serve]==2.60.0", "httpx==0.28.1"),
}
NAMES = (*_DEBIAN, *_PYPI)


def program(peer: str) -> Path | None:
    """Where a peer's program is; None when it is not installed."""
    name = {"ray": "python"}.get(peer, peer)
    path = _ROOT / "usr/sbin" / name if peer in _DEBIAN else HOME / peer / "bin" / name
    return path.absolute() if path.exists() else None


def environment() -> dict[str, str]:
    """What Debian's programs need to find their libraries."""
    folders = [str(path.absolute()) for path in (_ROOT / "usr/lib").glob("*-linux-gnu")]
    return {"LD_LIBRARY_PATH": ":".join(folders)}


def install(peer: str) -> None:
    """Installs one peer, unless it is there already."""
    if program(peer) is not None:
        return
    HOME.mkdir(exist_ok=True)
    if peer in _DEBIAN:
        downloads = HOME / "downloads"
        downloads.mkdir(exist_ok=True)
        subprocess.run(["apt-get", "download", "-qq", *_DEBIAN[peer]], cwd=downloads, check=True)
        for package in downloads.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, _ROOT], check=True)
    else:
        subprocess.run([sys.executable, "-m", "venv", HOME / peer], check=True)
        pip = HOME / peer / "bin/pip"
        subprocess.run([pip, "install", "--quiet", "--disable-pip-version-check", *_PYPI[peer]], check=True)


def main() -> None:
    """Installs the named peers."""
    unknown = set(sys.argv[1:]) - set(NAMES)
    if unknown or len(sys.argv) < 2:
        sys.exit(f"usage: python -m bench.peers {{{','.join(NAMES)}}}...")
    for peer in sys.argv[1:]:
        try:
            install(peer)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{peer} cannot be installed here: {error}")
            continue
        print(f"{peer}: {os.path.relpath(program(peer) or '')}")


if __name__ == "__main__":
    main()
