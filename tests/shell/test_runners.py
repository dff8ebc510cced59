"""The tasks in which calls run: one scope serves many calls, and no call hears of what befell another (D1, E2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import trio

from governor.identity.runners import CallRunners

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Deed = Callable[[trio.CancelScope], Awaitable[None]]


class Runs:
    """Runners whose calls are functions; one waits behind another as in a queue for credits."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self.tasks: set[trio.lowlevel.Task] = set()
        self.waiting: list[tuple[int, Deed]] = []
        self._nursery = nursery
        self._deeds: dict[int, Deed] = {}
        self._runners = CallRunners(self._run, self._hand_out, name="calls")

    def start(self, number: int, deed: Deed) -> None:
        self._deeds[number] = deed
        self._runners.start(self._nursery, cast("Any", None), number)

    def _hand_out(self) -> None:
        if self.waiting:
            self.start(*self.waiting.pop(0))

    async def _run(self, _call: object, number: int, scope: trio.CancelScope) -> None:
        self.tasks.add(trio.lowlevel.current_task())
        try:
            await self._deeds[number](scope)
        except trio.Cancelled:
            self.cancelled.append(number)
            raise
        self.ended.append(number)


async def is_given_up_while_it_waits(scope: trio.CancelScope) -> None:
    scope.cancel()
    await trio.sleep(1)


async def is_given_up_too_late(scope: trio.CancelScope) -> None:
    """Its end is here already, and nothing of it waits any more."""
    scope.cancel()


async def has_a_limit(scope: trio.CancelScope) -> None:
    scope.deadline = trio.current_time() + 1


async def waits(_scope: trio.CancelScope) -> None:
    await trio.sleep(5)


async def test_a_call_that_is_given_up_takes_the_next_one_with_it_in_no_case() -> None:
    for given_up in (is_given_up_while_it_waits, is_given_up_too_late):
        async with trio.open_nursery() as nursery:
            runs = Runs(nursery)
            runs.waiting.append((2, waits))
            runs.start(1, given_up)
            await trio.sleep(10)
            assert 2 in runs.ended
            assert runs.cancelled == ([1] if given_up is is_given_up_while_it_waits else [])
            assert len(runs.tasks) == 1, "its task goes on"
            nursery.cancel_scope.cancel()


async def test_a_call_s_limit_ends_with_it() -> None:
    """Also where the next call comes in the very moment in which it would have been reached."""
    for _ in range(20):  # who of the two runs first is left to chance
        async with trio.open_nursery() as nursery:
            runs = Runs(nursery)
            runs.start(1, has_a_limit)
            await trio.sleep(1)
            runs.start(2, waits)
            await trio.sleep(6)
            assert runs.ended == [1, 2]
            assert len(runs.tasks) == 1
            nursery.cancel_scope.cancel()
