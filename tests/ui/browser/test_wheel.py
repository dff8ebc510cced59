"""What is installed has the page."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from api.ui.routes import ASSETS

ROOT = Path(__file__).parents[3]
BUILD_S = 120


def test_the_wheel_has_every_file_of_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, timeout=BUILD_S)
    [wheel] = tmp_path.glob("triton_governor-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        found = {
            name.removeprefix("api/ui/static/"): packed.read(name)
            for name in packed.namelist()
            if name.startswith("api/ui/static/")
        }
    assert found == {name: asset.body for name, asset in ASSETS.items()}
