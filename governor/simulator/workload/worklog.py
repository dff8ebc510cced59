"""The work log: what a model really executed, and when. Counters and credits are held against it."""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import Literal

What = Literal["start", "end"]

ENVIRONMENT_KEY = "GOVERNOR_WORKLOG"
"""The environment variable that names the log file; unset or empty: nothing is logged."""


def append(path: str, *, t: float, model: str, what: What, execution: str) -> None:
    """Append one line to the log at `path`.

    The line is one `write` to a file opened with `O_APPEND`, so several processes never mix their lines.

    Args:
        path: the log file; created when absent.
        t: unix seconds.
        model: the model's name.
        what: whether the execution starts or ends.
        execution: the execution's id, the same in its start and its end.
    """
    line = json.dumps({"t": t, "model": model, "what": what, "id": execution}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


class WorkLog:
    """Logs the executions of one model with the clock of this machine."""

    def __init__(self, model: str, path: str | None = None) -> None:
        self._model = model
        self._path = os.environ.get(ENVIRONMENT_KEY, "") if path is None else path

    def start(self, request_id: str) -> str:
        """Log a start; returns the execution's id: the request's own id, or a new one where it has none."""
        execution = request_id or str(uuid.uuid4())
        self._write("start", execution)
        return execution

    def end(self, execution: str) -> None:
        """Log the end of the execution that `start` named."""
        self._write("end", execution)

    def _write(self, what: What, execution: str) -> None:
        if self._path:
            append(self._path, t=time.time(), model=self._model, what=what, execution=execution)
