"""A child process that never outlives this one, whatever kills this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_POLL_S = 0.02
_LINUX = sys.platform == "linux"

_BIND_TO_PARENT = """\
import ctypes, os, sys
parent, death_signal = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl(1, death_signal, 0, 0, 0)  # PR_SET_PDEATHSIG survives the exec
if os.getppid() != parent:
    sys.exit("the process that started this one is gone")
os.execvp(sys.argv[3], sys.argv[3:])
"""


class ChildProcess:
    """One child in a process group of its own, its output appended to a log file.

    On Linux the kernel sends it `death_signal` when the thread that started it ends, so it must be started
    from the thread that runs trio. That is also why this is not `trio.Process`: trio starts processes from a
    worker thread, which ends after some idle seconds, and the child with it.

    Args:
        command: the program (absolute, or found on the PATH of `env`) and its arguments.
        log: file that gets its standard output and standard error, appended.
        env: its whole environment.
        cwd: its working directory; None: this process's own.
        death_signal: what it gets when this process dies.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        bind = [sys.executable, "-I", "-S", "-c", _BIND_TO_PARENT, str(os.getpid()), str(int(death_signal))]
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                [*(bind if _LINUX else []), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """Its process id, which is its process group's id too."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, -N when signal N ended it, None while it runs."""
        return self._popen.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone; nothing happens when it has ended."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to the process alone, as the kernel's out-of-memory killer does it."""
        self._popen.kill()

    def kill_group(self) -> None:
        """SIGKILL to every process of its group that is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def group_is_empty(self) -> bool:
        """Whether no process of its group is left, its own children included."""
        self._popen.poll()
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return True
        return False

    async def wait(self) -> int:
        """Wait for its end; returns the exit code. Any number of tasks may wait."""
        while (code := self._popen.poll()) is None:  # noqa: ASYNC110  # no event tells of a child's end
            await trio.sleep(_POLL_S)
        return code

    async def wait_for_group(self, timeout_s: float) -> None:
        """Give the rest of its group `timeout_s` seconds to end, then kill what is left."""
        with trio.move_on_after(timeout_s):
            while not self.group_is_empty():  # noqa: ASYNC110  # as above, and these are not even ours
                await trio.sleep(_POLL_S)
        if not self.group_is_empty():
            self.kill_group()

    async def stop(self, grace_s: float) -> int:
        """End it: SIGTERM, `grace_s` seconds to leave, then SIGKILL to its whole group.

        Returns:
            the exit code. After a cancellation or the grace it is gone all the same.
        """
        try:
            self.send_signal(signal.SIGTERM)
            with trio.move_on_after(grace_s):
                return await self.wait()
        finally:
            if self._popen.poll() is None:
                self.end_now()
        return self._popen.wait()

    def end_now(self) -> None:
        """SIGKILL to its whole group; the process is gone when this returns."""
        self.kill_group()
        # A killed process is gone within moments: this blocks no longer than that, and cleanup needs no await.
        self._popen.wait()
