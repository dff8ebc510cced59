"""`/acp`: streams lose nothing and tell nothing twice, and slow readers cost nobody else anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.api.acp import SSE, Messages, connect, kind_of, responses
from tests.api.harness import AsgiExchange, Events, listening, service
from tests.shell.world import Plan

if TYPE_CHECKING:
    from trio.testing import MockClock


@pytest.mark.parametrize("of_session", [True, False])
async def test_a_response_that_was_not_taken_when_its_stream_broke_comes_on_the_next(
    of_session: bool, autojump_clock: MockClock
) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream(None if of_session else session_id):
            headers = {**acp.headers, **SSE, **({"Acp-Session-Id": session_id} if of_session else {})}
            exchange = AsgiExchange(up.app, "GET", "/acp", headers=headers)
            nursery.start_soon(exchange.run)
            events = Events(exchange)
            assert await events.next() == "retry: 3000"
            exchange.blocked = trio.Event()
            method, params = ("session/cancel", {"sessionId": session_id}) if of_session else ("authenticate", {})
            asked = await acp.send(method, params)
            await trio.sleep(3)
            exchange.leave()
            await exchange.ended.wait()
            async with acp.stream(session_id if of_session else None) as again:
                assert (await again.response(asked))["result"] == {}


@pytest.mark.parametrize("claims", [True, False])
async def test_a_stream_that_breaks_is_continued_without_loss_or_duplicate(
    claims: bool,
    autojump_clock: MockClock,
) -> None:
    """By the client's `Last-Event-ID`, or by what was sent on the stream before."""
    async with service(model={"kind": "generate_stream"}) as up:
        up.world.next_plans += [Plan(seconds=8, texts=tuple(f"{number} " for number in range(8)))]
        acp = await connect(up)
        session_id = await acp.new_session()
        seen: list[tuple[int | None, dict[str, Any]]] = []
        async with acp.stream():
            asked = await acp.prompt(session_id, "tell")
            while not responses(seen, asked):
                last = max((number for number, _ in seen if number is not None), default=0)
                headers = {"Last_Event_ID": str(last)} if claims else {}
                async with acp.stream(session_id, **headers) as stream:
                    with trio.move_on_after(2.5):
                        await stream.response(asked)
                        await stream.notified("turn_complete")
                seen += stream.seen
        numbers = [number for number, _ in seen if number is not None]
        assert numbers == list(range(1, 11))
        assert len(responses(seen, asked)) == 1


async def test_a_response_comes_again_for_a_client_that_has_not_seen_the_end_of_its_turn(
    autojump_clock: MockClock,
) -> None:
    """It was handed to the operating system, and the connection broke: the cursor of the client tells."""
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream():
            async with acp.stream(session_id) as stream:
                asked = await acp.prompt(session_id, "1")
                await stream.response(asked)
            async with acp.stream(session_id, Last_Event_ID="2") as stream:
                await stream.response(asked)
                assert (await stream.next() or {})["params"]["kind"] == "turn_complete"
            async with acp.stream(session_id, Last_Event_ID="3") as stream:
                await stream.notified("replay_complete")
                with trio.move_on_after(30):
                    await stream.next()
                assert responses(stream.seen, asked) == []


async def test_a_response_that_belongs_to_no_event_does_not_come_again(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream():
            async with acp.stream(session_id) as stream:
                sent = await acp.send("session/prompt", {"sessionId": session_id, "prompt": []})
                await stream.response(sent)
            async with acp.stream(session_id, Last_Event_ID="0") as stream:
                with trio.move_on_after(30):
                    await stream.rest()
                assert responses(stream.seen, sent) == []


async def test_a_response_that_waits_for_a_stream_which_cannot_come_any_more_goes_to_the_connections(
    autojump_clock: MockClock,
) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream() as own:
            switched = await acp.send("session/set_model", {"sessionId": session_id, "modelId": "chat"})
            await trio.sleep(5)
            up.governor.close_session(session_id)
            assert (await own.response(switched))["result"] == {"modelId": "chat"}


async def test_a_session_of_the_same_id_is_another_one(autojump_clock: MockClock) -> None:
    """The old one's stream has its end still to tell when the new one is made."""
    wanted = {"_meta": {"qwen-code/sessionId": "2e1c2c84-93a3-4b1f-8d93-0b1b3b4811fc"}}
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session(**wanted)
        async with acp.stream() as own, acp.stream(session_id) as old:
            up.governor.close_session(session_id)
            await own.response(await acp.send("session/new", wanted))
            assert kind_of((await old.rest())[-1]) == "session_closed"
            async with acp.stream(session_id) as new:
                asked = await acp.prompt(session_id, "1")
                assert (await new.response(asked))["result"]["stopReason"] == "end_turn"


async def test_a_second_stream_takes_the_place_of_the_first(autojump_clock: MockClock) -> None:
    async with service(limits={"max_subscribers_per_session": 1}) as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream() as own, acp.stream(session_id) as first, acp.stream(session_id) as second:
            await first.rest()
            async with acp.stream() as own_again:
                assert await own.rest() == []
                sent = await acp.send("authenticate")
                await own_again.response(sent)
            asked = await acp.prompt(session_id, "1")
            assert (await second.response(asked))["result"]["stopReason"] == "end_turn"
            answer = await up.ask("GET", f"/session/{session_id}/events")
            assert answer.code == "subscriber_limit_exceeded"


async def test_the_streams_of_a_session_are_bounded_together(autojump_clock: MockClock) -> None:
    async with service(limits={"max_subscribers_per_session": 1}) as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with listening(up, session_id):
            headers = {**acp.headers, **SSE, "Acp-Session-Id": session_id}
            answer = await up.ask("GET", "/acp", headers=headers)
            assert (answer.status, answer.code) == (429, "subscriber_limit_exceeded")
        async with acp.stream(session_id):
            pass
        assert up.governor.sessions[session_id].log.subscriber_count == 0


async def test_a_slow_reader_is_evicted_and_finds_its_response_when_it_comes_back(autojump_clock: MockClock) -> None:
    async with service(limits={"subscriber_queue_frames": 4}) as up, trio.open_nursery() as nursery:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream():
            headers = {**acp.headers, **SSE, "Acp-Session-Id": session_id}
            exchange = AsgiExchange(up.app, "GET", "/acp", headers=headers)
            nursery.start_soon(exchange.run)
            events = Events(exchange)
            assert await events.next() == "retry: 3000"
            exchange.blocked = trio.Event()
            session = up.governor.sessions[session_id]
            for _ in range(6):
                session.announce("test", {})
            asked = await acp.prompt(session_id, "1")
            await trio.sleep(3)
            exchange.blocked.set()
            slow = Messages(events)
            await slow.rest()
            assert "client_evicted" in [kind_of(message) for _, message in slow.seen]
            assert exchange.complete
            last = max((number for number, _ in slow.seen if number is not None), default=0)
            async with acp.stream(session_id, Last_Event_ID=str(last)) as again:
                await again.notified("turn_complete")
            told = slow.seen + again.seen
            assert responses(slow.seen, asked) == [], "what was not read may be lost with the connection"
            assert len(responses(told, asked)) == 1
            assert [number for number, _ in told if number is not None] == list(range(1, session.log.last_id + 1))


async def test_idle_streams_get_heartbeats(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream() as own, acp.stream(session_id) as stream:
            await stream.notified("replay_complete")
            for each in (own, stream):
                assert await each.events.next() == ": heartbeat"
            await trio.sleep(1000)
            assert len(up.app.acp) == 1, "a connection lives as long as a stream of it is read"


async def test_head_shows_the_head_and_opens_nothing(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        session = up.governor.sessions[session_id]
        for named in ({}, {"Acp-Session-Id": session_id}):
            answer = await up.ask("HEAD", "/acp", headers={**acp.headers, **SSE, **named})
            assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        assert answer.headers["x-qwen-event-epoch"] == session.log.epoch
        statistics = up.app.acp.statistics()
        assert (statistics["sseStreams"], session.log.subscriber_count) == (0, 0)
