"""A governor on a socket, in front of a simulated Triton, for all tests of the client that need one."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.pair import governor_in_front
from tests.e2e.simulated import simulated_triton

if TYPE_CHECKING:
    from collections.abc import Iterator


ROOT = Path(__file__).parents[2]
ADMIN_TOKEN = "the-admin-token-of-the-tests"
MORE_LINES = f"""
[tokens]
admin = "{ADMIN_TOKEN}"
[[models]]
name = "short"
backend = "triton"
triton_model = "storyteller"
slots = 1
kind = "generate_stream"
parameters = {{ max_tokens = 8 }}
"""


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment in which the package was installed as its users do, without the server."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = folder.glob("triton_governor-*.whl")
    install = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run(install, check=True, timeout=300)
    return python


@pytest.fixture(scope="session")
def triton_url() -> Iterator[str]:
    """A simulated Triton."""
    with simulated_triton() as url:
        yield url


@pytest.fixture(scope="session")
def governor_url(triton_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a governor with an admin token, and with a model that tells short stories."""
    with governor_in_front(triton_url, tmp_path_factory.mktemp("governor"), limits=MORE_LINES) as url:
        yield url
