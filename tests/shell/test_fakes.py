"""The fake backend keeps to the facts about a real one: what the other tests prove is worth as much as this."""

from __future__ import annotations

import pytest
import trio

from governor.core.counting import Counts
from governor.errors import BackendUnavailableError, ConnectionLostError
from governor.triton.exchange import CallEnd
from tests.shell.fakes import FakeExchange, FakePort
from tests.shell.harness import call_request
from tests.shell.world import Break, Plan, World


async def exchange(world: World, text: str, *, patience_s: float = 100.0) -> FakeExchange:
    """One call on a lane of its own, left after so many seconds; returns what is known of it then."""
    one = world.ports[0].make_lane().exchange(call_request(text).wire)
    with trio.move_on_after(patience_s):
        async with one as answer:
            async for _ in answer.chunks():
                pass
    return one


async def test_what_was_delivered_executes_whoever_left_and_counts_later_than_its_answer() -> None:
    """300 of 300 requests whose connection was closed right after the last byte were executed and counted."""
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        port = FakePort(world)
        assert (await exchange(world, "2", patience_s=0.5)).end is CallEnd.UNKNOWN
        assert len(world.executing) == 1
        await trio.sleep(1.4)
        assert (await port.read()).model == Counts(0, 0)
        await trio.sleep(0.2)
        assert (await port.read()).model == Counts(1, 0)
        world.lag_s = 0.5
        assert (await exchange(world, "1")).end is CallEnd.ANSWERED
        assert (await port.read()).model == Counts(1, 0)
        await trio.sleep(0.5)
        assert (await port.read()).model == Counts(2, 0)


async def test_a_request_that_was_cut_off_never_executes() -> None:
    """It never becomes a request, and nothing counts it."""
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        port = FakePort(world)
        world.plans["sent"] = Plan(seconds=1, deliver_s=1)
        world.plans["cut"] = Plan(seconds=1, breaks=Break.BEFORE_DELIVERY)
        assert (await exchange(world, "sent", patience_s=0.5)).end is CallEnd.NEVER_DELIVERED
        with pytest.raises(BackendUnavailableError):
            await exchange(world, "cut")
        await trio.sleep(5)
        assert world.executions == []
        assert (await port.read()).model == Counts(0, 0)


async def test_a_kill_takes_the_work_with_it_and_a_reload_does_not() -> None:
    """After a reload the old call executes beside the new load; only the process's own counter sees its end."""
    async with trio.open_nursery() as nursery:
        world = World(nursery, metrics=True)
        port = FakePort(world)
        await exchange(world, "2", patience_s=0.5)
        world.reload()
        assert len(world.executing) == 1
        await trio.sleep(2)
        reading = await port.read()
        assert (reading.model, reading.process) == (Counts(0, 0), Counts(1, 0))
        await exchange(world, "2", patience_s=0.5)
        world.restart()
        assert world.executing == set()
        await trio.sleep(5)
        reading = await port.read()
        assert (reading.model, reading.process, reading.boot) == (Counts(0, 0), Counts(0, 0), "boot-2")
        assert world.executions[-1].killed


@pytest.mark.parametrize("breaks", [Break.AFTER_DELIVERY, Break.MID_ANSWER])
async def test_a_broken_connection_stops_no_work(breaks: Break) -> None:
    """It ends when it ends, and counts."""
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        world.plans["broken"] = Plan(seconds=1, breaks=breaks)
        with pytest.raises(ConnectionLostError):
            await exchange(FakePort(world).world, "broken")
        await trio.sleep(1.1)
        (execution,) = world.executions
        assert execution.ended_s == pytest.approx(1.0, abs=0.01)
        assert (await world.ports[0].read()).model == Counts(1, 0)
        nursery.cancel_scope.cancel()
