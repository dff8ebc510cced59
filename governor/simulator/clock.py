"""The scheduler port on trio's clock, whichever clock that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import trio

from governor.simulator.scheduling import Timer, Timetable

if TYPE_CHECKING:
    from collections.abc import Callable


class TrioScheduler:
    """Calls back at trio's time; `run` must be running in some nursery for that."""

    def __init__(self) -> None:
        self._timetable = Timetable()
        self._earlier = trio.Event()

    def now(self) -> float:
        """Trio's time in seconds."""
        return trio.current_time()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back after `delay_s` seconds."""
        timer = self._timetable.add(self.now() + max(0.0, delay_s), callback)
        self._earlier.set()
        return timer

    async def run(self) -> NoReturn:
        """Fire every timer at its time, for ever."""
        while True:
            self._earlier = trio.Event()
            due = self._timetable.next_due()
            with trio.CancelScope() as until_due:
                if due is not None:
                    until_due.deadline = due
                await self._earlier.wait()
            # Each timer may add another that is due at once: they take turns with the other tasks.
            while (timer := self._timetable.pop_due(self.now())) is not None:
                timer.fire()
                await trio.lowlevel.checkpoint()
