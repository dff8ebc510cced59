"""What the models say that they really did: the truth against which credits are held."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path


@dataclass
class Execution:
    """One request in one model; times are Unix seconds.

    Attributes:
        start_s: when it began to compute.
        end_s: when it ended; None while it runs, and for ever if its process was killed.
        last_beat_s: when it last said that it computes.
    """

    start_s: float
    end_s: float | None = None
    last_beat_s: float = 0.0

    @property
    def alive_until_s(self) -> float:
        """The last moment at which it certainly computed."""
        return self.end_s if self.end_s is not None else max(self.start_s, self.last_beat_s)


class Work:
    """Reads a work log that grows. Executions are known by their request's id."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self._executions: dict[str, Execution] = {}

    def of(self, request_id: str) -> Execution | None:
        """The execution of a request; None if it has not begun."""
        self._refresh()
        return self._executions.get(request_id)

    def runs(self, request_id: str) -> bool:
        """It has begun and not ended."""
        execution = self.of(request_id)
        return execution is not None and execution.end_s is None

    def ended(self, request_id: str) -> bool:
        """It has begun and ended."""
        execution = self.of(request_id)
        return execution is not None and execution.end_s is not None

    def computing(self) -> bool:
        """Something computes, or did so half a second ago and has not ended."""
        self._refresh()
        now_s = time.time()
        return any(each.end_s is None and now_s - each.alive_until_s < 0.5 for each in self._executions.values())

    def peak(self, request_ids: Collection[str]) -> int:
        """The most of these executions that computed at the same time."""
        found = [each for each in map(self.of, request_ids) if each is not None]
        edges = [(each.start_s, 1) for each in found] + [(each.alive_until_s, -1) for each in found]
        running = peak = 0
        for _, change in sorted(edges):
            running += change
            peak = max(peak, running)
        return peak

    def _refresh(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as log:
            log.seek(self._read_bytes)
            news = log.read()
        whole = news[: news.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            told = json.loads(line)
            self._take(told["what"], told["id"], told["t"])

    def _take(self, what: str, request_id: str, at_s: float) -> None:
        if what == "start":
            self._executions[request_id] = Execution(at_s)
        elif what == "end":
            self._executions[request_id].end_s = at_s
        else:
            self._executions[request_id].last_beat_s = at_s


async def until(
    condition: Callable[[], bool], what: str | Callable[[], str], *, seconds: float = 15.0, step_s: float = 0.005
) -> None:
    """Waits until a condition holds; fails after so many seconds and says what it waited for."""
    with trio.move_on_after(seconds):
        while not condition():
            await trio.sleep(step_s)
        return
    raise AssertionError(f"waited {seconds} s in vain for {what if isinstance(what, str) else what()}")
