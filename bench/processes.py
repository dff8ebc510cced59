"""Processes under measurement: started, waited for, their CPU time and memory read, stopped."""

from __future__ import annotations

import http.client
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

_PROC = Path("/proc")
_FIRST = -15
"""The nice value of a preferred session."""


class Server:
    """One server process and whatever it starts.

    Args:
        name: for messages and the log's file name.
        command: what to run.
        folder: where its output goes, `NAME.log`.
        cpu: the only CPU it may use; None for any.
        environment: variables beside those of this process.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        cpu: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log: IO[bytes] = (folder / f"{name}.log").open("wb")
        self._process = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        if cpu is not None:
            os.sched_setaffinity(self._process.pid, {cpu})

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def wait_for(self, port: int, path: str, *, seconds: float = 30, status: int = 200) -> None:
        """Returns once a GET of `path` is answered with `status`.

        Raises:
            RuntimeError: the process ended, or the time was over; the message has the end of its log.
        """
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                break
            with suppress(OSError, http.client.HTTPException):
                if get(port, path)[0] == status:
                    return
            time.sleep(0.05)
        log = Path(self._log.name).read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{self.name} did not answer {path} with {status} within {seconds:g} s:\n{log}")

    @property
    def pid(self) -> int:
        """The process that was started."""
        return self._process.pid

    def memory_bytes(self) -> int:
        """Resident memory of the process and its children."""
        return sum(_resident_bytes(pid) for pid in _tree(self.pid))

    def stop(self) -> None:
        """Ends it, by force after five seconds."""
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        self._log.close()


def prefer(pid: int | None = None) -> None:
    """Asks the kernel to let the session of a process, by default this one's own new one, run before others.

    For a machine that others use as well: their work then waits, and is measured less. Needs root and a kernel that
    groups processes by session; elsewhere nothing happens.
    """
    with suppress(OSError):
        if pid is None:
            os.setsid()
        (_PROC / str(pid or "self") / "autogroup").write_text(str(_FIRST))


def get(port: int, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """One small request on a connection of its own: a GET, or a POST of `body`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def cpu_s(pid: int) -> float:
    """CPU seconds that a process and its children have used, to the nanosecond."""
    return sum(_cpu_ns(each) for each in _tree(pid)) / 1e9


def _tree(pid: int) -> list[int]:
    found, unread = [], [pid]
    while unread:
        each = unread.pop()
        found.append(each)
        for task in (_PROC / str(each) / "task").glob("*/children"):
            with suppress(OSError):
                unread += [int(child) for child in task.read_text().split()]
    return found


def _cpu_ns(pid: int) -> int:
    total = 0
    for task in (_PROC / str(pid) / "task").glob("*/schedstat"):
        with suppress(OSError):
            total += int(task.read_text().split()[0])
    return total


def _resident_bytes(pid: int) -> int:
    with suppress(OSError):
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
