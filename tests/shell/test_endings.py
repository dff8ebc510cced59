"""The end of an identity and of the governor: nothing runs on, nobody waits for ever, nobody is told twice (S7, T1)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import trio

from governor.errors import DrainingError, GovernorError, SessionNotFoundError
from governor.triton.outcomes import CallKind
from tests.shell.harness import (
    Bench,
    Listener,
    Service,
    ask,
    call_request,
    identity_bench,
    service,
    tasks_at_work,
    until,
)
from tests.shell.world import Break, Fault, Plan, decoupled_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.identity import Call


async def in_every_state(bench: Bench) -> list[Call]:
    """Calls connecting, looking first, sending, executing, streaming, left by their callers, broken, waiting."""
    world = bench.world
    world.plans |= {
        "sending": Plan(seconds=1, deliver_s=50),
        "stream": Plan(seconds=100, texts=tuple("abcdefghij")),
        "broken": Plan(seconds=100, breaks=Break.AFTER_DELIVERY),
    }
    stream = bench.submit("stream", kind=CallKind.GENERATE_STREAM)
    calls = [stream, bench.submit("sending"), bench.submit("100"), bench.submit("broken")]
    await stream.next_chunk()
    left = bench.submit("100 left")
    await trio.sleep(0.5)
    left.abandon()
    world.connects_hang = True
    connecting = bench.submit("1 connecting")
    await trio.sleep(0.1)
    world.connects_hang = False
    world.fault = Fault.HANGS
    world.boots = False
    looking = bench.submit("1 looking")
    await trio.sleep(0.1)
    return [*calls, left, connecting, looking, bench.submit("1 waiting"), bench.submit("1 waiting", key="other")]


async def test_a_cancelled_identity_leaves_no_task_no_connection_and_nobody_waiting() -> None:
    """T1: whatever state its calls are in; a cut answer is never taken for a whole one."""
    async with identity_bench(slots=7) as bench:
        before = tasks_at_work()
        calls = await in_every_state(bench)
        ends: list[str] = []

        async def wait_for(call: Call) -> None:
            try:
                await call.started()
                await call.head()
                await call.body()
            except GovernorError as error:
                ends.append(error.code)

        async with trio.open_nursery() as callers:
            for call in calls:
                if not call.abandoned:
                    callers.start_soon(wait_for, call)
            await trio.sleep(0.1)
            bench.stop.cancel()
        assert Counter(ends) == {"daemon_shutdown": 5, "backend_connection_lost": 1, "daemon_draining": 2}
        assert bench.world.open_lanes == 0
        assert not bench.world.ports[0].connected
        executing = sum(execution.ended_s is None for execution in bench.world.executions)
        assert tasks_at_work() == before - 3 + executing, "the identity's three tasks are gone, the world's work is not"
        with pytest.raises(DrainingError):
            bench.submit("1")


async def test_a_drained_identity_ends_the_waiting_and_finishes_the_started() -> None:
    """Those without a credit have sent nothing."""
    async with identity_bench() as bench:
        started, waiting = bench.submit("2"), bench.submit("1")
        await trio.sleep(0.5)
        bench.identity.drain()
        with pytest.raises(DrainingError):
            await waiting.started()
        with pytest.raises(DrainingError):
            bench.submit("1")
        assert await started.body() == b'{"text_output": "ok"}'
        assert bench.free == 1
        assert len(bench.world.executions) == 1


async def test_a_call_submitted_before_the_identity_runs_starts_with_it() -> None:
    """Submitting is synchronous and needs no running nursery."""
    async with identity_bench() as bench, identity_bench() as other:
        other.stop.cancel()
        await trio.sleep(0.1)
        call = bench.submit("1")
        assert await call.body() == b'{"text_output": "ok"}'


# The governor's endings: each accepted prompt has exactly one terminal event, whatever happens when.


async def prompts_in_every_state(governed: Service) -> tuple[list[Listener], dict[str, Listener]]:
    """Three sessions on one slot: running, waiting for the slot, at the gate, queued behind each."""
    heard: dict[str, Listener] = {}
    listeners = []
    for _ in range(3):
        session = governed.session()
        listener = governed.listen(session)
        listeners.append(listener)
        for _ in range(3):
            heard[ask(session, "3")] = listener
    gated = governed.session()
    listener = governed.listen(gated)
    listeners.append(listener)
    heard[gated.admit("3").prompt_id] = listener
    heard[gated.admit("3").prompt_id] = listener
    return listeners, heard


def drain(governed: Service) -> None:
    governed.governor.drain()


def stop(governed: Service) -> None:
    governed.stop.cancel()


def drain_and_stop(governed: Service) -> None:
    governed.governor.drain()
    governed.stop.cancel()


def close_all(governed: Service) -> None:
    for session_id in list(governed.governor.sessions):
        governed.governor.close_session(session_id)


def kill(governed: Service) -> None:
    governed.world.kill()


def cancel_all(governed: Service) -> None:
    for session in governed.governor.sessions.values():
        session.cancel()


def break_all(governed: Service) -> None:
    governed.world.break_connections()


@pytest.mark.parametrize("at_s", [0.0, 0.0015, 0.5, 3.2])
@pytest.mark.parametrize(
    ("end", "codes"),
    [
        (drain, {"daemon_shutdown"}),
        (stop, {"daemon_shutdown", "daemon_draining"}),
        (drain_and_stop, {"daemon_shutdown"}),
        (close_all, {"session_closed"}),
        (kill, {"backend_unavailable", "backend_connection_lost"}),
        (cancel_all, {"cancelled", "end_turn"}),
        (break_all, {"backend_connection_lost", "end_turn"}),
    ],
)
async def test_every_accepted_prompt_has_exactly_one_terminal_event(
    end: Callable[[Service], None], codes: set[str], at_s: float
) -> None:
    """S7: drained, stopped without a drain, closed, the backend lost, cancelled, broken; early and late."""
    async with service() as governed:
        listeners, heard = await prompts_in_every_state(governed)
        await trio.sleep(at_s)
        end(governed)
        await trio.sleep(100)
        outcomes = {listener.outcome(prompt) for prompt, listener in heard.items()}
        assert outcomes <= codes | {"end_turn"}
        assert outcomes & codes
        for listener in listeners:
            ids = [event["id"] for event in listener.events]
            assert ids == list(range(1, len(ids) + 1)), "no gaps"
            assert listener.session.pending_count == 0
        assert governed.world.high_water <= 1


async def test_drain_tells_every_session_and_ends_its_stream() -> None:
    """D6: terminal events, running first, then session_died, then the end; new work is refused."""
    async with service() as governed:
        session = governed.session()
        heard = governed.listen(session)
        running, queued = ask(session, "5"), ask(session, "5")
        await trio.sleep(1)
        plain = governed.identity.submit(call_request("1"), key="plain")
        governed.governor.drain()
        governed.governor.drain()
        await trio.sleep(0.01)
        endings = [(event["type"], event["data"].get("promptId"), event["data"].get("code")) for event in heard.events]
        assert endings[-4:] == [
            ("turn_error", running, "daemon_shutdown"),
            ("turn_error", queued, "daemon_shutdown"),
            ("pending_prompt_completed", queued, None),
            ("session_died", None, None),
        ]
        assert heard.ended
        with pytest.raises(DrainingError):
            await plain.started()
        with pytest.raises(DrainingError):
            governed.governor.create_session()
        with pytest.raises(DrainingError):
            governed.governor.session(session.id)
        with pytest.raises(SessionNotFoundError):
            session.admit("1")
        statistics = governed.governor.statistics()
        assert (statistics.draining, statistics.sessions, statistics.pending_prompts) == (True, 0, 0)
        assert governed.free == 0, "the call that executes keeps its credit to the end"
        await until(lambda: governed.free == 1, 5)


async def test_a_stopped_governor_leaves_no_task_and_no_connection() -> None:
    """T1: sessions, subscribers, deadlines, pollers, health checks."""
    before = tasks_at_work()
    async with service(limits={"prompt_deadline_ms": 60_000}) as governed:
        own = tasks_at_work()
        _, heard = await prompts_in_every_state(governed)
        await trio.sleep(0.5)
        governed.world.break_connections()
        await trio.sleep(0.5)
        assert governed.identity.statistics().polling
        governed.stop.cancel()
        await trio.sleep(10)
        assert all(len(listener.terminals(prompt)) == 1 for prompt, listener in heard.items())
        assert governed.world.open_lanes == 0
        assert not governed.world.ports[0].connected
        assert tasks_at_work() < own
        with pytest.raises(DrainingError):
            governed.session()
    assert tasks_at_work() == before


async def test_a_fault_that_ends_an_identity_ends_the_governor_and_every_prompt() -> None:
    """D12: never a governor that takes prompts over a dead nursery."""
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError), flatten_subgroups=True):
        async with service() as governed:
            session = governed.session()
            heard = governed.listen(session)
            prompt = ask(session, "100")
            await trio.sleep(1)

            def broken(*_args: object) -> None:
                raise ZeroDivisionError

            governed.identity.apply = broken  # type: ignore[method-assign,assignment]  # a bug in the epoch actor
            try:
                governed.world.break_connections()
                await trio.sleep(10)
            finally:
                assert heard.terminals(prompt) or session.pending_count == 0
                assert governed.governor.draining


async def test_quarantined_claims_hold_no_task() -> None:
    """E9: a claim that nothing can prove costs its credit and nothing else."""
    async with identity_bench() as bench:
        bench.world.reload(decoupled_facts())
        before = tasks_at_work()
        bench.world.plans["broken"] = Plan(seconds=1, breaks=Break.AFTER_DELIVERY)
        call = bench.submit("broken")
        with pytest.raises(GovernorError):
            await call.head()
        await trio.sleep(10)
        assert bench.free == 0
        assert tasks_at_work() == before
