"""The tasks in which an identity's calls run: one per call that runs, kept for the next one (D1, E2).

A task that has run a call first says so, so that the credit it gave back can be handed out, and takes the next call
itself where one waits: the backend's slot then stands still for no longer than it takes to write a request. There are
never more tasks than there were calls at one time, and all of them end with their nursery.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.identity.call import Call

    Run = Callable[[Call, int, trio.CancelScope], Awaitable[None]]

IDLE: Final = "waits for a call"
"""Name of a task that holds nothing and waits for the next call."""


class _Idle:
    """A task without a call."""

    def __init__(self) -> None:
        self.work: tuple[Call, int] | None = None
        self.given = trio.Event()


class CallRunners:
    """Runs calls.

    Args:
        run: runs one call under one claim, in a scope that it may have cancelled and whose deadline it may set; raises
            nothing but cancellation.
        ended: called after each, synchronously; may start further ones.
        name: for the tasks.
    """

    def __init__(self, run: Run, ended: Callable[[], None], *, name: str) -> None:
        self._run = run
        self._ended = ended
        self._name = name
        self._idle: list[_Idle] = []

    def start(self, nursery: trio.Nursery, call: Call, claim_id: int) -> None:
        """Has a call run in a task of the nursery. Synchronous."""
        if self._idle:
            idle = self._idle.pop()
            idle.work = (call, claim_id)
            idle.given.set()
        else:
            nursery.start_soon(self._live, call, claim_id, name=self._name)

    def forget(self) -> None:
        """The nursery has ended, and with it every task."""
        self._idle.clear()

    async def _live(self, call: Call, claim_id: int) -> None:
        trio.lowlevel.current_task().name = self._name
        while True:
            # A scope of its own for every call would cost a tenth of the time between an answer and the next request.
            with trio.CancelScope() as scope:
                while True:
                    await self._run(call, claim_id, scope)
                    if scope.cancel_called:  # too late for that call, and not meant for the next one
                        break
                    call, claim_id = await self._next(scope)
            call, claim_id = await self._next(scope)

    async def _next(self, scope: trio.CancelScope) -> tuple[Call, int]:
        """The next call of a task whose last one has ended."""
        task = trio.lowlevel.current_task()
        task.name = IDLE
        idle = _Idle()
        self._idle.append(idle)
        self._ended()
        # An event that is set is not waited for: a call that was given is run, whatever is cancelled meanwhile.
        try:
            if idle.work is None:
                scope.deadline = inf
                await idle.given.wait()
        except trio.Cancelled:
            if idle.work is None:
                self._idle.remove(idle)
                raise
            # What was given to a task that ends is run all the same: at its first checkpoint it learns of the end.
        assert idle.work is not None
        task.name = self._name
        return idle.work
