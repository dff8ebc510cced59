"""Cancellation at every moment: after each single step that any task takes in a scenario, somebody leaves, a prompt
is cancelled, or everything is stopped. Whatever the moment, nothing leaks and nothing executes too much."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from governor.errors import GovernorError
from governor.triton.outcomes import CallKind
from tests.shell.harness import (
    Bench,
    Listener,
    Service,
    ask,
    identity_bench,
    run_jumping,
    service,
    tasks_at_work,
    until,
)
from tests.shell.world import Break, Plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

STEPS_MAX = 2_000
"""No scenario takes as many steps; one that does would never be swept to its end."""


class AtStep(trio.abc.Instrument):
    """Does something once, right after the so-many-th step that any task takes."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        self.left = step
        self._act = act

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by trio after each step of each task."""
        del task
        self.left -= 1
        if self.left == 0:
            self._act()

    @property
    def happened(self) -> bool:
        """The moment came before the scenario was over."""
        return self.left <= 0


async def acting_at(step: int, act: Callable[[], None], scenario: Callable[[], Awaitable[None]]) -> bool:
    """Runs a scenario; returns whether it was long enough for the moment to come."""
    instrument = AtStep(step, act)
    trio.lowlevel.add_instrument(instrument)
    try:
        await scenario()
    finally:
        trio.lowlevel.remove_instrument(instrument)
    return instrument.happened


def sweep(attempt: Callable[[int], Awaitable[bool]]) -> int:
    """Attempts it with the moment after step 1, 2, 3, ... until it is over before. Returns how many there were."""
    for step in range(1, STEPS_MAX):
        happened: list[bool] = []

        async def one(step: int = step, happened: list[bool] = happened) -> None:
            happened.append(await attempt(step))

        run_jumping(one)
        if not happened[0]:
            return step - 1
    raise AssertionError("the scenario has no end")


@dataclass(frozen=True)
class Scenario:
    """What a caller does, on an identity with so many slots."""

    text: str
    kind: CallKind = CallKind.GENERATE
    slots: int = 1
    busy: bool = False
    disconnect: bool = False
    warm: bool = False
    plan: Plan = field(default_factory=Plan)


SCENARIOS = {
    "cold": Scenario("0.5"),
    "warm": Scenario("0.5", warm=True),
    "waiting for a credit": Scenario("0.5", busy=True),
    "beside another": Scenario("0.5", busy=True, slots=2),
    "slow to send": Scenario("sent", plan=Plan(seconds=0.5, deliver_s=0.2)),
    "streamed": Scenario("stream", kind=CallKind.GENERATE_STREAM, plan=Plan(seconds=0.5, texts=tuple("abc"))),
    "streamed, disconnecting": Scenario(
        "stream",
        kind=CallKind.GENERATE_STREAM,
        disconnect=True,
        plan=Plan(seconds=2, texts=tuple("abc"), stops_when_left=True),
    ),
    "broken": Scenario("broken", plan=Plan(seconds=0.5, breaks=Break.AFTER_DELIVERY)),
    "broken before it left": Scenario("cut", plan=Plan(breaks=Break.BEFORE_DELIVERY)),
}


async def nothing_is_left(bench: Bench, before: int) -> None:
    """All work ends, all credits come back, nobody waits, the next call is served, no task and no lane remains."""
    await until(lambda: not bench.world.alive, 30)
    await until(lambda: bench.free == bench.identity.settings.slots, 1)
    assert bench.identity.statistics().waiting == 0
    assert bench.identity._calls == {}
    assert await bench.submit("0.1 after").body() == b'{"text_output": "ok"}'
    await trio.sleep(5)
    assert bench.world.open_lanes == 0
    assert not bench.world.ports[0].connected
    assert tasks_at_work() == before
    assert bench.world.high_water <= bench.identity.settings.slots


async def call_once(bench: Bench, scenario: Scenario, caller: trio.CancelScope) -> None:
    """The caller's whole life, then time for everything it set in motion."""
    if scenario.busy:
        bench.submit("0.3", key="other")
    with caller:
        call = bench.submit(scenario.text, kind=scenario.kind, disconnect_on_abandon=scenario.disconnect)
        try:
            await call.started()
            await call.head()
            while await call.next_chunk() is not None:
                pass
        except GovernorError:
            pass
        finally:
            call.abandon()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_caller_may_leave_at_any_moment(name: str) -> None:
    """E2, E3: the credit comes back when the work ends, whenever its caller left."""
    scenario = SCENARIOS[name]

    async def attempt(step: int) -> bool:
        async with identity_bench(slots=scenario.slots) as bench:
            bench.world.plans[scenario.text] = Plan(seconds=0.5) if scenario.plan == Plan() else scenario.plan
            before = tasks_at_work()
            if scenario.warm:
                await bench.submit("0.1").body()
            caller = trio.CancelScope()
            happened = await acting_at(step, caller.cancel, partial(call_once, bench, scenario, caller))
            await nothing_is_left(bench, before)
        return happened

    assert sweep(attempt) > 5


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_identity_may_be_stopped_at_any_moment(name: str) -> None:
    """T1: its caller is told, or has the whole answer; no task and no connection remains."""
    scenario = SCENARIOS[name]
    whole = len(scenario.plan.texts) if scenario.kind is CallKind.GENERATE_STREAM else 1

    async def attempt(step: int) -> bool:
        async with identity_bench(slots=scenario.slots) as bench:
            bench.world.plans[scenario.text] = Plan(seconds=0.5) if scenario.plan == Plan() else scenario.plan
            before = tasks_at_work()
            ends: list[int | str] = []

            async def caller() -> None:
                if scenario.busy:
                    bench.submit("0.3", key="other")
                chunks = 0
                try:
                    call = bench.submit(scenario.text, kind=scenario.kind)
                    await call.head()
                    while await call.next_chunk() is not None:
                        chunks += 1
                    ends.append(chunks)
                except GovernorError as error:
                    ends.append(error.code)

            happened = await acting_at(step, bench.stop.cancel, caller)
            assert len(ends) == 1
            assert ends[0] == whole or isinstance(ends[0], str), "a part of an answer was taken for the whole"
            bench.stop.cancel()
            await trio.sleep(30)
            assert bench.world.open_lanes == 0
            assert not bench.world.ports[0].connected
            assert tasks_at_work() == before - 3
        return happened

    assert sweep(attempt) > 5


# Turns.


async def converse(governed: Service, heard: list[Listener], prompts: list[str]) -> None:
    """Two prompts in one session, one in another, one slot; then time for everything they set in motion."""
    first, second = governed.session(), governed.session()
    heard.extend([governed.listen(first), governed.listen(second)])
    prompts.extend([ask(first, "stream"), ask(first, "0.2"), ask(second, "0.1")])
    await trio.sleep(3)


@pytest.mark.parametrize("deed", ["cancel", "remove the first", "remove the second", "close", "drain", "stop"])
def test_a_prompt_may_be_ended_at_any_moment(deed: str) -> None:
    """S3, S7: exactly one terminal event each, no gap in the ids, nothing after the end; credits come back."""

    async def attempt(step: int) -> bool:
        async with service(model={"kind": "generate_stream"}) as governed:
            governed.world.plans["stream"] = Plan(seconds=0.3, texts=("a", "b", "c"))
            heard: list[Listener] = []
            prompts: list[str] = []

            def act() -> None:
                sessions = list(governed.governor.sessions.values())
                if deed == "stop":
                    governed.stop.cancel()
                elif deed == "drain":
                    governed.governor.drain()
                elif not sessions:
                    return
                elif deed == "close":
                    governed.governor.close_session(sessions[0].id)
                elif deed == "cancel":
                    sessions[0].cancel()
                elif prompts:
                    sessions[0].remove(prompts[deed == "remove the second"])

            happened = await acting_at(step, act, partial(converse, governed, heard, prompts))
            check(
                governed, heard, prompts, untouched=deed in {"cancel", "remove the first", "remove the second", "close"}
            )
        return happened

    assert sweep(attempt) > 5


def check(governed: Service, heard: list[Listener], prompts: list[str], *, untouched: bool) -> None:
    """What holds after any ending."""
    first, second = heard
    outcomes = [first.outcome(prompts[0]), first.outcome(prompts[1]), second.outcome(prompts[2])]
    assert set(outcomes) <= {"end_turn", "cancelled", "session_closed", "daemon_shutdown"}
    if untouched:
        assert outcomes[2] == "end_turn", "another session"
    for listener in heard:
        ids = [event["id"] for event in listener.events]
        assert ids == list(range(1, len(ids) + 1))
        assert listener.session.pending_count == 0
    for listener, prompt in zip((first, first, second), prompts, strict=True):
        types = listener.types(prompt)
        terminal = next(index for index, name in enumerate(types) if name.startswith("turn_"))
        assert set(types[terminal + 1 :]) <= {"pending_prompt_completed"}
    assert governed.world.high_water <= 1
    if not governed.stop.cancel_called:
        assert governed.free == 1
        assert governed.identity.statistics().waiting == 0
        assert governed.world.open_lanes == 0
