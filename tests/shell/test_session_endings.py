"""How prompts end for their callers, and when the events of a turn may be told (S3, S6, S7, D6)."""

from __future__ import annotations

import pytest
import trio

from governor.core.claims import ClaimState
from tests.shell.harness import ask, service, tasks_at_work
from tests.shell.world import Plan

MARGIN_S = 0.05


# Deadlines.


async def test_a_deadline_frees_the_prompt_s_slot_and_not_the_credit() -> None:
    """S6: a 1 s deadline on a 3 s call: the error at 1 s, the next prompt admitted and started, executing only when
    the first call's work is over."""
    async with service(limits={"prompt_deadline_ms": 10_000, "max_pending_prompts_per_session": 1}) as governed:
        session = governed.session()
        heard = governed.listen(session)
        late = ask(session, "3", deadline_ms=1_000)
        await trio.sleep(1.01)
        (event,) = heard.terminals(late)
        assert event["data"]["code"] == "prompt_deadline_exceeded"
        assert event["data"]["message"] == "prompt exceeded the 1000ms deadline"
        assert session.pending_count == 0
        assert governed.identity.statistics().ledger.states[ClaimState.TIMED_OUT] == 1
        following = ask(session, "1")
        await trio.sleep(10)
        assert heard.outcome(following) == "end_turn"
        first, second = governed.world.executions
        assert first.ended_s is not None
        assert second.started_s is not None
        assert 0 <= second.started_s - first.ended_s <= MARGIN_S
        assert governed.world.high_water == 1


async def test_a_deadline_counts_from_admission_and_frees_a_waiting_prompt_at_once() -> None:
    """S3, S6: the waiting one never reaches the model."""
    async with service(limits={"prompt_deadline_ms": 2_000}) as governed:
        session = governed.session()
        heard = governed.listen(session)
        ask(session, "1.9 first")
        waiting = ask(session, "5 second", deadline_ms=500)
        await trio.sleep(0.6)
        assert heard.outcome(waiting) == "prompt_deadline_exceeded"
        assert session.pending_count == 1
        await trio.sleep(10)
        assert [execution.text for execution in governed.world.executions] == ["1.9 first"]


async def test_the_operator_s_deadline_bounds_the_caller_s_and_without_it_there_is_none() -> None:
    """S6: the smaller of the two; the caller's alone counts for nothing (as the daemon it stands in for)."""
    async with service(limits={"prompt_deadline_ms": 1_000}) as governed:
        session = governed.session()
        heard = governed.listen(session)
        bounded = ask(session, "3", deadline_ms=60_000)
        await trio.sleep(1.1)
        assert heard.outcome(bounded) == "prompt_deadline_exceeded"
    async with service() as governed:
        session = governed.session()
        heard = governed.listen(session)
        unbounded = ask(session, "3", deadline_ms=100)
        await trio.sleep(4)
        assert heard.outcome(unbounded) == "end_turn"


async def test_the_backend_s_timeout_is_no_deadline_but_ends_the_wait_the_same_way() -> None:
    """E2: `timeout_ms` counts from the credit; the call keeps its credit."""
    async with service(model={"timeout_ms": 1_000}) as governed:
        session, other = governed.session(), governed.session()
        heard = governed.listen(session)
        slow = ask(session, "3")
        await trio.sleep(1.1)
        assert heard.outcome(slow) == "backend_timeout"
        other_heard = governed.listen(other)
        waits = ask(other, "0.5")  # waits two seconds for its credit, which is not the backend's fault
        await trio.sleep(4)
        assert other_heard.outcome(waits) == "end_turn"
        assert governed.world.high_water == 1


async def test_a_settled_prompt_leaves_no_task_that_waits_for_its_deadline() -> None:
    """T1: a day-long deadline must not keep a task for a day."""
    async with service(limits={"prompt_deadline_ms": 86_400_000}) as governed:
        session = governed.session()
        before = tasks_at_work()
        for _ in range(20):
            ask(session, "0.1")
            await trio.sleep(0.2)
        assert tasks_at_work() == before


# Cancelling, removing.


async def test_cancel_ends_the_running_prompt_and_keeps_the_credit() -> None:
    """S3: prompt_cancelled, its terminal, the next prompt starts; it executes after the cancelled call's work."""
    async with service() as governed:
        session = governed.session()
        heard = governed.listen(session)
        cancelled, following = ask(session, "3"), ask(session, "1")
        await trio.sleep(1)
        session.cancel("client_1")
        await trio.sleep(0.01)
        assert heard.types(cancelled)[-2:] == ["prompt_cancelled", "turn_complete"]
        assert heard.outcome(cancelled) == "cancelled"
        assert session.pending_count == 1
        await trio.sleep(10)
        assert heard.outcome(following) == "end_turn"
        first, second = governed.world.executions
        assert first.ended_s is not None
        assert second.started_s is not None
        assert first.ended_s <= second.started_s
        assert governed.world.high_water == 1


async def test_cancel_without_a_running_prompt_is_told_and_changes_nothing() -> None:
    """A client that cancels too late hears that it was heard."""
    async with service() as governed:
        session = governed.session()
        heard = governed.listen(session)
        session.cancel()
        await trio.sleep(0.1)
        assert heard.types() == ["prompt_cancelled"]


async def test_a_removed_waiting_prompt_frees_its_slot_at_once_and_never_runs() -> None:
    """S3: turn_complete cancelled, pending_prompt_completed removed; a new prompt fits in its place."""
    async with service(limits={"max_pending_prompts_per_session": 2}) as governed:
        session = governed.session()
        heard = governed.listen(session)
        ask(session, "1 first")
        removed = ask(session, "1 removed")
        assert session.remove(removed)
        third = ask(session, "1 third")
        assert not session.remove(removed)
        await trio.sleep(5)
        assert heard.outcome(removed) == "cancelled"
        assert heard.types(removed) == ["pending_prompt_added", "turn_complete", "pending_prompt_completed"]
        assert heard.events[-1]["promptId"] == third
        assert [execution.text for execution in governed.world.executions] == ["1 first", "1 third"]


async def test_a_running_prompt_that_is_removed_is_cancelled() -> None:
    """The remove route on a running prompt."""
    async with service() as governed:
        session = governed.session()
        heard = governed.listen(session)
        prompt = ask(session, "3")
        await trio.sleep(1)
        assert session.remove(prompt)
        await trio.sleep(0.1)
        assert heard.types(prompt)[-2:] == ["prompt_cancelled", "turn_complete"]


async def test_a_prompt_cancelled_before_it_was_sent_is_never_sent() -> None:
    """While it waits for a slot of the model."""
    async with service() as governed:
        ask(governed.session(), "2")
        await trio.sleep(0.5)
        session = governed.session()
        ask(session, "1 cancelled")
        await trio.sleep(0.5)
        session.cancel()
        await trio.sleep(10)
        assert [execution.text for execution in governed.world.executions] == ["2"]
        assert governed.identity.statistics().waiting == 0


# The gate.


async def test_no_event_of_a_turn_precedes_let_start() -> None:
    """S7, D6: the caller must have its 202 first; the prompt waits for that, not for ever."""
    async with service() as governed:
        session = governed.session()
        heard = governed.listen(session)
        admission = session.admit("0.1")
        await trio.sleep(1)
        assert heard.events == []
        assert governed.world.executions == []
        session.let_start(admission.prompt_id)
        await trio.sleep(1)
        assert heard.outcome(admission.prompt_id) == "end_turn"
        forgotten = session.admit("0.1")
        await trio.sleep(5.5)
        assert heard.outcome(forgotten.prompt_id) == "end_turn"


async def test_the_admission_s_cursor_misses_nothing_of_the_turn() -> None:
    """A client that subscribes with it after the whole turn hears all of it."""
    async with service() as governed:
        session = governed.session()
        ask(session, "0.1 before")
        await trio.sleep(1)
        admission = session.admit("0.1")
        session.let_start(admission.prompt_id)
        await trio.sleep(1)
        stream = session.subscribe(after_id=admission.last_event_id, epoch=admission.event_epoch)
        frames = [await stream.next_frame() for _ in range(4)]
        stream.close()
        ids = [frame.id for frame in frames if frame is not None]
        assert ids == [admission.last_event_id + 1, admission.last_event_id + 2, admission.last_event_id + 3, None]


@pytest.mark.parametrize("ending", ["cancel", "remove", "close"])
async def test_nothing_of_a_turn_follows_its_terminal_event_even_in_the_same_moment(ending: str) -> None:
    """The turn's task has been woken by `let_start` and is cancelled before it runs."""
    async with service() as governed:
        session = governed.session()
        heard = governed.listen(session)
        ask(session, "1 before")
        prompt = session.admit("1").prompt_id
        await trio.sleep(1.5)  # the first is over; the second waits at its gate
        session.let_start(prompt)
        if ending == "cancel":
            session.cancel()
        elif ending == "remove":
            session.remove(prompt)
        else:
            session.close()
        await trio.sleep(10)
        types = heard.types(prompt)
        assert types[-2:] == [types[-2], "pending_prompt_completed"]
        assert "user_message_chunk" not in types
        assert "pending_prompt_started" not in types
        assert len(heard.terminals(prompt)) == 1
        assert [execution.text for execution in governed.world.executions] == ["1 before"]


async def test_no_text_follows_the_terminal_event_when_both_come_in_the_same_moment() -> None:
    """S7: the turn's task has been woken by a piece of text and its prompt ends before it runs."""
    async with service(model={"kind": "generate_stream"}) as governed:
        governed.world.plans["many"] = Plan(seconds=3, texts=("a", "b", "c"))
        session = governed.session()
        heard = governed.listen(session)
        prompt = ask(session, "many")
        await trio.sleep(1.5)
        (call,) = governed.identity._calls.values()
        call.feed(b'data: {"text_output": "late"}\n\n')
        session.cancel()
        await trio.sleep(10)
        assert heard.types(prompt)[-1] == "turn_complete"
        assert "late" not in heard.text(prompt)


async def test_not_even_a_deadline_is_told_before_let_start() -> None:
    """S7: a client forgets a terminal event for a prompt that it does not know yet; and there is an end to waiting."""
    async with service(limits={"prompt_deadline_ms": 500}) as governed:
        session = governed.session()
        heard = governed.listen(session)
        prompt = session.admit("1").prompt_id
        await trio.sleep(2)
        assert heard.events == []
        session.let_start(prompt)
        await trio.sleep(0.01)
        assert heard.outcome(prompt) == "prompt_deadline_exceeded"
        forgotten = session.admit("1").prompt_id
        await trio.sleep(20)
        assert heard.outcome(forgotten) == "prompt_deadline_exceeded"
        assert session.pending_count == 0


@pytest.mark.parametrize("deed", ["cancel", "remove", "close", "drain"])
async def test_who_ends_a_prompt_does_not_wait_for_let_start(deed: str) -> None:
    """S3: these are synchronous, whoever has or has not read what; the prompt is never sent. Its end is told in 1 s."""
    async with service() as governed:
        session = governed.session()
        heard = governed.listen(session)
        prompt = session.admit("1").prompt_id
        await trio.sleep(0.1)
        if deed == "cancel":
            session.cancel()
        elif deed == "remove":
            session.remove(prompt)
        elif deed == "close":
            session.close()
        else:
            governed.governor.drain()
        assert session.pending_count == 0
        await trio.sleep(0.9)
        assert heard.terminals(prompt) == []
        await trio.sleep(0.2)
        assert heard.outcome(prompt) in {"cancelled", "session_closed", "daemon_shutdown"}
        assert governed.world.executions == []


async def test_who_reads_is_not_evicted_for_what_is_held() -> None:
    """A5, S7: rather than that, it hears of an end before the 202 may have been read."""
    async with service() as governed:
        session = governed.session()
        stream = session.subscribe(after_id=None, epoch=None, max_frames=16)
        prompt = session.admit("1").prompt_id
        session.remove(prompt)
        got: list[int] = []

        async def read() -> None:
            while (frame := await stream.next_frame()) is not None:
                if frame.id is not None:
                    got.append(frame.id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for _ in range(50):
                session.announce("session_metadata_updated", {})
                await trio.sleep(0.001)
            assert not stream.evicted
            await trio.sleep(1)
            session.close()
        assert got == list(range(1, got[-1] + 1))
        assert len(got) > 50
        stream.close()


async def test_a_stream_that_is_cancelled_while_it_waits_loses_no_frame() -> None:
    """Heartbeats cancel it: the frame in its hand comes with the next call."""
    async with service() as governed:
        session = governed.session()
        stream = session.subscribe(after_id=None, epoch=None)
        prompt = session.admit("1").prompt_id
        session.remove(prompt)
        with trio.move_on_after(0.1):
            await stream.next_frame()
        session.let_start(prompt)
        frames = [await stream.next_frame() for _ in range(session.log.last_id)]
        assert [frame.id for frame in frames if frame is not None] == list(range(1, session.log.last_id + 1))
        stream.close()
        assert not session._untold.wakes
