"""Sessions over the whole governor: admission, order, deadlines, cancellation (S1 to S4, S6), as callers see them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from governor.config import ModelConfig
from governor.errors import PromptCancelledError, PromptQueueFullError, SessionNotFoundError
from tests.shell.harness import POLL_S, ask, service, until
from tests.shell.world import MODEL, Break, Plan

MARGIN_S = 0.05


async def test_a_prompt_is_answered_with_its_events_in_order() -> None:
    """The echo, the text as it comes, the terminal event."""
    async with service(model={"kind": "generate_stream"}) as governed:
        governed.world.plans["hello"] = Plan(seconds=3, texts=("one ", "two ", "three"))
        session = governed.session()
        heard = governed.listen(session)
        prompt = ask(session, "hello")
        await trio.sleep(2.5)
        assert heard.types() == ["user_message_chunk", "agent_message_chunk", "agent_message_chunk"], "as it comes"
        await trio.sleep(1)
        assert heard.types()[2:] == ["agent_message_chunk", "agent_message_chunk", "turn_complete"]
        assert heard.text(prompt) == "one two three"
        assert heard.outcome(prompt) == "end_turn"
        assert [event["id"] for event in heard.events] == [1, 2, 3, 4, 5]
        assert session.pending_count == 0


@pytest.mark.parametrize("kind", ["infer", "generate", "generate_stream"])
async def test_every_kind_of_call_carries_text_both_ways(kind: str) -> None:
    """The text that was asked is the text that executes; what the model says comes back."""
    async with service(model={"kind": kind}) as governed:
        if kind == "infer":
            body = b'{"outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [1], "data": ["said"]}]}'
            governed.world.plans["what? \u00e4\u20ac"] = Plan(body=body)
        else:
            governed.world.plans["what? \u00e4\u20ac"] = Plan(texts=("said",))
        session = governed.session()
        heard = governed.listen(session)
        prompt = ask(session, "what? \u00e4\u20ac")
        await trio.sleep(1)
        assert heard.outcome(prompt) == "end_turn"
        assert heard.text(prompt) == "said"
        assert [execution.text for execution in governed.world.executions] == ["what? \u00e4\u20ac"]


async def test_the_sixth_pending_prompt_is_refused_and_leaves_no_trace() -> None:
    """S1, S2: the running one counts; no event, no slot; another session is admitted at once."""
    async with service() as governed:
        session, other = governed.session(), governed.session()
        heard = governed.listen(session)
        for number in range(5):
            ask(session, f"1 number {number}")
        await trio.sleep(0.1)
        before = heard.types()
        with pytest.raises(PromptQueueFullError) as refused:
            session.admit("one too many")
        assert refused.value.details == {"sessionId": session.id, "limit": 5, "pendingCount": 5}
        await trio.sleep(0.1)
        assert heard.types() == before
        assert session.pending_count == 5
        ask(other, "1")
        await trio.sleep(20)
        assert session.pending_count == 0
        ask(session, "1")


async def test_a_cancelled_caller_is_refused_before_the_queue_is_even_looked_at() -> None:
    """S2: a full queue says cancelled, not full, and nothing is counted."""
    async with service(limits={"max_pending_prompts_per_session": 1}) as governed:
        session = governed.session()
        for _ in range(2):
            with pytest.raises(PromptCancelledError):
                session.admit("1", cancelled=True)
            if session.pending_count == 0:
                ask(session, "1")
        assert session.pending_count == 1
        assert len(governed.world.executions) == 0


@pytest.mark.parametrize("limit", [0, float("inf"), "unlimited"])
async def test_an_unlimited_queue_takes_whatever_comes(limit: Any) -> None:
    """S1: 0 and infinity disable the limit."""
    async with service(limits={"max_pending_prompts_per_session": limit}) as governed:
        session = governed.session()
        prompts = [ask(session, f"0.001 number {number}") for number in range(200)]
        assert session.pending_count == 200
        heard = governed.listen(session)
        await trio.sleep(30)
        assert [heard.outcome(prompt) for prompt in prompts] == 200 * ["end_turn"]


async def test_prompts_of_one_session_run_one_at_a_time_in_the_order_of_admission() -> None:
    """S4: even where the model has room for more."""
    async with service(model={"slots": 4}) as governed:
        session = governed.session()
        texts = [f"1 number {number}" for number in range(5)]
        for text in texts:
            ask(session, text)
        await trio.sleep(20)
        assert [execution.text for execution in governed.world.executions] == texts
        assert governed.world.high_water == 1


async def test_sessions_do_not_wait_for_each_other() -> None:
    """S4: as many run at once as there are slots."""
    async with service(model={"slots": 3}) as governed:
        for _ in range(3):
            ask(governed.session(), "1")
        await trio.sleep(1.5)
        assert governed.world.high_water == 3


async def test_turns_over_one_another_keep_the_protocol_s_order() -> None:
    """Terminal, then pending_prompt_completed, then pending_prompt_started of the next, then its echo; and what a
    waiting prompt is told when."""
    async with service() as governed:
        session = governed.session()
        heard = governed.listen(session)
        first, second, third = ask(session, "1 a"), ask(session, "1 b"), ask(session, "1 c")
        await trio.sleep(10)
        told = list(zip(heard.types(), [event.get("promptId") for event in heard.events], strict=True))
        assert told == [
            ("pending_prompt_added", second),
            ("pending_prompt_added", third),
            ("user_message_chunk", first),
            ("agent_message_chunk", first),
            ("turn_complete", first),
            ("pending_prompt_started", second),
            ("user_message_chunk", second),
            ("agent_message_chunk", second),
            ("turn_complete", second),
            ("pending_prompt_completed", second),
            ("pending_prompt_started", third),
            ("user_message_chunk", third),
            ("agent_message_chunk", third),
            ("turn_complete", third),
            ("pending_prompt_completed", third),
        ]
        assert [event["id"] for event in heard.events] == list(range(1, 16))


@pytest.mark.parametrize("kind", ["generate", "generate_stream"])
async def test_a_failure_never_poisons_the_queue(kind: str) -> None:
    """S4: refused by the model, broken, not understood, faulty inside: the next prompt runs all the same."""
    async with service(model={"kind": kind}) as governed:
        world = governed.world
        world.plans |= {
            "refused": Plan(status=500, body=b'{"error": "the model is ill"}', counts=(0, 1)),
            "broken": Plan(seconds=1, breaks=Break.AFTER_DELIVERY),
            "undelivered": Plan(breaks=Break.BEFORE_DELIVERY),
            "garbage": Plan(body=b"data: not JSON\n\n"),
        }
        session = governed.session()
        heard = governed.listen(session)
        expected = {
            "refused": "backend_answered_error",
            "broken": "backend_connection_lost",
            "undelivered": "backend_unavailable",
            "garbage": "backend_protocol_error",
            "\ud800": "invalid_request",
        }
        for text, code in expected.items():
            failed, following = ask(session, text), ask(session, "0.1")
            await trio.sleep(5)
            assert heard.outcome(failed) == code
            assert heard.outcome(following) == "end_turn"


async def test_an_internal_fault_costs_its_own_prompt_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7: a bug in the turn is an ending too."""
    async with service() as governed:
        session = governed.session()
        heard = governed.listen(session)
        with monkeypatch.context() as patched:
            patched.setattr("governor.turn.build_text_request", lambda *_args, **_kwargs: 1 / 0)
            failed = ask(session, "1")
            await trio.sleep(1)
        following = ask(session, "1")
        await trio.sleep(5)
        assert heard.outcome(failed) == "internal_error"
        assert heard.outcome(following) == "end_turn"
        assert governed.free == 1


# The session's own life.


async def test_a_closed_session_admits_nothing() -> None:
    """The route's look-up and the admission may have a close between them."""
    async with service() as governed:
        session = governed.session()
        governed.governor.close_session(session.id)
        with pytest.raises(SessionNotFoundError) as refused:
            session.admit("1")
        assert refused.value.code == "session_closing"
        with pytest.raises(SessionNotFoundError):
            governed.governor.session(session.id)


async def test_idle_sessions_are_closed_and_used_ones_are_not() -> None:
    """A prompt or a subscriber keeps a session alive; the time counts from when it was left alone."""
    async with service(limits={"session_idle_timeout_ms": 60_000}) as governed:
        idle, busy, watched = governed.session(), governed.session(), governed.session()
        ask(busy, "100")
        heard = governed.listen(watched)
        await trio.sleep(70)
        assert set(governed.governor.sessions) == {busy.id, watched.id}
        assert idle.closed
        await trio.sleep(40)  # busy settled at 100
        assert set(governed.governor.sessions) == {busy.id, watched.id}
        assert heard.stream is not None
        heard.stream.close()
        await trio.sleep(40)
        assert watched.id in governed.governor.sessions, "its time counts from when the subscriber left"
        await trio.sleep(30)
        assert governed.governor.sessions == {}


async def test_two_names_for_one_model_share_its_slots() -> None:
    """SPEC vocabulary: one identity; and a session may ask for either."""
    one = ModelConfig(name="one", backend="b", triton_model=MODEL, slots=1, kind="generate")
    models = (one, one.model_copy(update={"name": "two"}))
    async with service(models=models) as governed:
        ask(governed.governor.create_session("one"), "1")
        ask(governed.governor.create_session("two"), "1")
        await trio.sleep(10)
        assert len(governed.governor.identities) == 1
        assert len(governed.world.executions) == 2
        assert governed.world.high_water == 1


async def test_a_stream_longer_than_allowed_ends_with_an_error_that_names_the_limit() -> None:
    """`max_answer_bytes` bounds all of one turn's streamed text, also for a session that takes it as it comes."""
    async with service(model={"kind": "generate_stream"}, limits={"max_answer_bytes": 2_000}) as governed:
        governed.world.plans["long"] = Plan(seconds=10, texts=100 * ("x" * 100,))
        session = governed.session()
        heard = governed.listen(session)
        prompt = ask(session, "long")
        await trio.sleep(11)
        (event,) = heard.terminals(prompt)
        assert event["data"]["code"] == "backend_protocol_error"
        assert "2000 bytes" in event["data"]["message"]
        assert len(heard.text(prompt)) <= 2_000
        await until(lambda: governed.free == 1, POLL_S)


async def test_a_model_s_error_in_mid_stream_is_the_turn_s_error() -> None:
    """What came before it is kept, what comes after is not told."""
    body = b'data: {"text_output": "so far"}\n\ndata: {"error": "out of memory"}\n\n'
    async with service(model={"kind": "generate_stream"}) as governed:
        governed.world.plans["ill"] = Plan(body=body)
        session = governed.session()
        heard = governed.listen(session)
        prompt = ask(session, "ill")
        await trio.sleep(1)
        (event,) = heard.terminals(prompt)
        assert (event["data"]["code"], event["data"]["message"]) == ("backend_answered_error", "out of memory")
        assert heard.text(prompt) == "so far"
