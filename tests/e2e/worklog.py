"""The models' own record of what really ran: the truth that credits are held against."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Execution:
    """One execution of a model. `end_s` is None while it runs."""

    id: str
    start_s: float
    end_s: float | None


class WorkLog:
    """Reads the work log from where it stood when this was made."""

    def __init__(self, path: Path, model: str) -> None:
        self._path = path
        self._model = model
        self._skip = len(path.read_bytes()) if path.exists() else 0

    def executions(self) -> list[Execution]:
        """Every execution since, in order of its start."""
        text = self._path.read_bytes()[self._skip :].decode() if self._path.exists() else ""
        events = [json.loads(line) for line in text.splitlines()]
        mine = [event for event in events if event["model"] == self._model]
        ends = {event["id"]: event["t"] for event in mine if event["what"] == "end"}
        return [Execution(e["id"], e["t"], ends.get(e["id"])) for e in mine if e["what"] == "start"]

    def peak(self) -> int:
        """The most executions that ran at the same time."""
        edges = [(e.start_s, 1) for e in self.executions()]
        edges += [(e.end_s, -1) for e in self.executions() if e.end_s is not None]
        running = peak = 0
        for _, change in sorted(edges):
            running += change
            peak = max(peak, running)
        return peak

    async def wait_started(self, count: int, *, seconds: float = 10) -> None:
        """Waits until that many executions have begun."""
        with trio.fail_after(seconds):
            while len(self.executions()) < count:
                await trio.sleep(0.02)

    async def wait_ended(self, count: int, *, seconds: float = 20) -> None:
        """Waits until that many executions are over."""
        with trio.fail_after(seconds):
            while sum(e.end_s is not None for e in self.executions()) < count:
                await trio.sleep(0.02)
