"""A simulated Triton in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from governor.demo.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODELS = "sentiment,storyteller,slow"


@contextmanager
def simulated_triton(work_log: Path | None = None) -> Iterator[str]:
    """Serves the demo models until the end; gives its URL once it serves. What they execute is logged if wanted."""
    port, metrics_port = free_ports(2)
    command = [sys.executable, "-m", "governor.simulator", "--models", MODELS]
    options = ["--port", str(port), "--metrics-port", str(metrics_port)]
    if work_log is not None:
        options += ["--work-log", str(work_log)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"simulated Triton at")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
