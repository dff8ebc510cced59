"""`/acp`: one response for each request however its turn ends, streams that lose nothing, and connections that end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.api.acp import SSE, Acp, Messages, connect, kind_of
from tests.api.harness import AsgiExchange, Events, Service, listening, service
from tests.shell.world import Break, Plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock


def responses(seen: list[tuple[int | None, dict[str, Any]]], request_id: int) -> list[dict[str, Any]]:
    return [message for _, message in seen if "method" not in message and message["id"] == request_id]


async def end_by_cancel(acp: Acp, session_id: str) -> None:
    assert (await acp.notify("session/cancel", {"sessionId": session_id})).status == 202


async def end_by_close(acp: Acp, session_id: str) -> None:
    await acp.send("session/close", {"sessionId": session_id})


async def end_by_rest(acp: Acp, session_id: str) -> None:
    await acp.up.ask("DELETE", f"/session/{session_id}")


async def end_by_drain(acp: Acp, session_id: str) -> None:
    acp.up.governor.drain()


async def end_by_nothing(acp: Acp, session_id: str) -> None:
    pass


CANCELLED = {"stopReason": "cancelled"}
ENDINGS = [
    pytest.param(Plan(seconds=3), end_by_nothing, {"stopReason": "end_turn"}, id="completed"),
    pytest.param(Plan(seconds=60), end_by_cancel, CANCELLED, id="cancelled"),
    pytest.param(Plan(seconds=60), end_by_nothing, (-32603, "prompt_deadline_exceeded"), id="deadline"),
    pytest.param(Plan(seconds=60), end_by_close, (-32603, "session_closed"), id="closed"),
    pytest.param(Plan(seconds=60), end_by_rest, (-32603, "session_closed"), id="closed by REST"),
    pytest.param(Plan(seconds=60), end_by_drain, (-32603, "daemon_shutdown"), id="shutdown"),
    pytest.param(Plan(status=500, texts=("ill",)), end_by_nothing, (-32603, "backend_answered_error"), id="error"),
    pytest.param(
        Plan(seconds=1, breaks=Break.AFTER_DELIVERY), end_by_nothing, (-32603, "backend_connection_lost"), id="lost"
    ),
    pytest.param(Plan(breaks=Break.BEFORE_DELIVERY), end_by_nothing, (-32603, "backend_unavailable"), id="away"),
    pytest.param(Plan(body=b"no JSON"), end_by_nothing, (-32603, "backend_protocol_error"), id="no answer"),
]


@pytest.mark.parametrize("streaming_before", [True, False])
@pytest.mark.parametrize(("plan", "end", "expected"), ENDINGS)
async def test_every_ending_is_one_response(
    plan: Plan,
    end: Callable[[Acp, str], Awaitable[None]],
    expected: object,
    streaming_before: bool,
    autojump_clock: MockClock,
) -> None:
    """S7: on the session's stream; if the session is gone and nobody reads that, on the connection's own."""
    async with service(limits={"prompt_deadline_ms": 10_000}) as up:
        up.world.next_plans += [plan]
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream() as own:
            told: list[tuple[int | None, dict[str, Any]]] = []
            if streaming_before:
                async with acp.stream(session_id) as stream:
                    asked = await acp.prompt(session_id, "planned")
                    await trio.sleep(2)
                    await end(acp, session_id)
                    await stream.response(asked)
                    with trio.move_on_after(30):
                        await stream.rest()
                told += stream.seen
            else:
                asked = await acp.prompt(session_id, "planned")
                await trio.sleep(2)
                await end(acp, session_id)
                await trio.sleep(20)
                if session_id in up.governor.sessions:
                    async with acp.stream(session_id) as stream:
                        await stream.response(asked)
                        with trio.move_on_after(30):
                            await stream.rest()
                    told += stream.seen
            with trio.move_on_after(30):
                await own.rest()
        (response,) = responses(told + own.seen, asked)
        if isinstance(expected, dict):
            assert response["result"]["stopReason"] == expected["stopReason"]
        else:
            error = response["error"]
            assert (error["code"], error["data"]["errorKind"]) == expected


async def test_a_turn_is_told_piece_by_piece_and_then_answered(autojump_clock: MockClock) -> None:
    async with service(model={"kind": "generate_stream"}) as up:
        up.world.next_plans += [Plan(seconds=1, texts=("one ", "two"))]
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream(session_id) as stream:
            asked = await acp.prompt(session_id, "tell")
            told = (await stream.response(asked))["result"]
            ending = await stream.next()
            assert ending is not None
        assert told["stopReason"] == "end_turn"
        kinds = [kind_of(message) for _, message in stream.seen]
        assert kinds[1:] == ["user_message_chunk", "agent_message_chunk", "agent_message_chunk", None, "turn_complete"]
        assert told["_meta"]["qwen"]["promptId"] == ending["params"]["data"]["promptId"]
        numbers = [number for number, _ in stream.seen]
        assert numbers == [None, 1, 2, 3, None, 4], "events have their ids, and nothing else has one"


async def test_prompts_of_all_clients_are_in_one_queue_and_a_full_one_is_told_as_the_protocol_does(
    autojump_clock: MockClock,
) -> None:
    """A4: `data` to the letter. The first is not aborted by the second, as both surfaces share one FIFO (S4)."""
    async with service(limits={"max_pending_prompts_per_session": 3}) as up:
        acp, other = await connect(up), await connect(up)
        session_id = await acp.new_session()
        async with acp.stream(session_id) as stream, other.stream() as own:
            await own.response(await other.send("session/load", {"sessionId": session_id}))
            first = await acp.prompt(session_id, "1 first")
            await up.prompt(session_id, "1 by REST")
            async with other.stream(session_id) as others:
                third = await other.prompt(session_id, "1 third")
                refused = await acp.prompt(session_id, "1 fourth")
                error = (await stream.response(refused))["error"]
                assert error["code"] == -32603
                assert error["message"].startswith("Prompt queue full")
                assert error["data"] == {
                    "errorKind": "prompt_queue_full", "sessionId": session_id, "limit": 3, "pendingCount": 3,
                }  # fmt: skip
                answer = await up.prompt(session_id, "1")
                assert answer.code == "prompt_queue_full"
                assert (await stream.response(first))["result"]["stopReason"] == "end_turn"
                assert (await others.response(third))["result"]["stopReason"] == "end_turn"
        totals = up.governor.statistics().totals
        assert (totals.prompts_admitted, totals.prompts_refused) == (3, 2)


async def test_cancel_ends_the_running_prompt_and_the_connections_own_that_wait(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp, other = await connect(up), await connect(up)
        session_id = await acp.new_session()
        async with acp.stream(session_id) as stream, other.stream() as own:
            await own.response(await other.send("session/load", {"sessionId": session_id}))
            async with other.stream(session_id) as others:
                mine = [await acp.prompt(session_id, "60") for _ in range(2)]
                theirs = await other.prompt(session_id, "1")
                await trio.sleep(1)
                sent = await acp.send("session/cancel", {"sessionId": session_id})
                for asked in mine:
                    assert (await stream.response(asked))["result"]["stopReason"] == "cancelled"
                assert (await stream.response(sent))["result"] == {}
                assert (await others.response(theirs))["result"]["stopReason"] == "end_turn"


async def test_a_deadline_of_the_clients_own_shortens_the_operators(autojump_clock: MockClock) -> None:
    async with service(limits={"prompt_deadline_ms": 10_000}) as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream(session_id) as stream:
            began = trio.current_time()
            asked = await acp.prompt(session_id, "60", deadlineMs=2_000)
            error = (await stream.response(asked))["error"]
            assert error["data"]["errorKind"] == "prompt_deadline_exceeded"
            assert trio.current_time() - began == pytest.approx(2, abs=0.1)


async def test_a_prompt_that_cannot_be_one_is_told_on_the_sessions_stream(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream(session_id) as stream:
            for body, kind in (
                ({}, "invalid_prompt"),
                ({"prompt": []}, "invalid_prompt"),
                ({"prompt": [{"type": "image", "data": "", "mimeType": "image/png"}]}, "unsupported_content_block"),
                ({"prompt": [{"type": "text", "text": "\x00"}]}, "invalid_prompt_text"),
                ({"prompt": [{"type": "text", "text": "x"}], "deadlineMs": 0}, "invalid_deadline_ms"),
            ):
                sent = await acp.send("session/prompt", {"sessionId": session_id, **body})
                error = (await stream.response(sent))["error"]
                assert (error["code"], error["data"]["errorKind"]) == (-32602, kind)
        assert up.governor.sessions[session_id].log.last_id == 0


async def test_nothing_of_a_turn_comes_before_its_202_was_read(autojump_clock: MockClock) -> None:
    """S7: the client that has not noticed that its request was sent would not know the response."""
    async with service() as up, trio.open_nursery() as nursery:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream(session_id) as stream:
            body = b'{"jsonrpc":"2.0","id":"x","method":"session/prompt","params":{"sessionId":"%s","prompt":[%s]}}'
            data = body % (session_id.encode(), b'{"type":"text","text":"0"}')
            headers = {**acp.headers, "Content-Type": "application/json"}
            post = AsgiExchange(up.app, "POST", "/acp", data=data, headers=headers, closes_when_read=False)
            nursery.start_soon(post.run)
            assert await post.head() == 202
            with trio.move_on_after(0.5):
                while True:
                    message = await stream.next()
                    assert message is not None
                    assert kind_of(message) == "replay_complete"
            post.leave()
            assert (await stream.response("x"))["result"]["stopReason"] == "end_turn"


async def test_a_session_that_ends_before_the_202_was_read_tells_its_responses_all_the_same(
    autojump_clock: MockClock,
) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream(session_id) as stream:
            params = {"sessionId": session_id, "prompt": [{"type": "text", "text": "1"}]}
            message = {"jsonrpc": "2.0", "id": "x", "method": "session/prompt", "params": params}
            headers = {**acp.headers, "Content-Type": "application/json"}
            post = AsgiExchange(
                up.app, "POST", "/acp", data=json.dumps(message).encode(), headers=headers, closes_when_read=False
            )
            nursery.start_soon(post.run)
            assert await post.head() == 202
            up.governor.close_session(session_id)
            assert (await stream.response("x"))["error"]["data"]["errorKind"] == "session_closed"
            post.leave()


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


async def test_a_prompt_whose_202_is_lost_is_never_sent_to_the_model(autojump_clock: MockClock) -> None:
    """Its client has gone wrong and waits for nothing; whoever still listens is told that it was cancelled."""
    async with service() as up, trio.open_nursery() as nursery:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream(session_id) as stream:
            params = {"sessionId": session_id, "prompt": [{"type": "text", "text": "1"}]}
            message = {"jsonrpc": "2.0", "id": "x", "method": "session/prompt", "params": params}
            headers = {**acp.headers, "Content-Type": "application/json"}
            post = AsgiExchange(
                up.app, "POST", "/acp", data=json.dumps(message).encode(), headers=headers, blocked=trio.Event()
            )
            nursery.start_soon(post.run)
            await trio.sleep(0.1)
            post.leave()
            assert (await stream.response("x"))["result"]["stopReason"] == "cancelled"
            assert up.world.executions == []


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


# Life


async def nothing_is_left(up: Service) -> None:
    """Long after, the sessions of a client that went away are gone, and all that it had."""
    assert len(up.app.acp) == 0
    for session in up.governor.sessions.values():
        assert (len(session.clients), session.pending_count, session.log.subscriber_count) == (0, 0, 0)
    await trio.sleep(200)
    assert up.governor.sessions == {}
    assert up.free == 1


async def test_a_connection_without_a_stream_ends_after_a_while(autojump_clock: MockClock) -> None:
    async with service() as up:
        await connect(up)
        await trio.sleep(59)
        assert len(up.app.acp) == 1
        await trio.sleep(2)
        await nothing_is_left(up)


async def test_a_connection_that_loses_its_streams_waits_ten_seconds_for_its_client(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        await trio.sleep(9)
        assert len(up.app.acp) == 1
        await trio.sleep(2)
        assert len(up.app.acp) == 0
        acp = await connect(up)
        async with acp.stream() as own:
            await own.response(await acp.send("session/load", {"sessionId": session_id}))
            async with acp.stream(session_id):
                asked = await acp.prompt(session_id, "40")
            await trio.sleep(100)
        await trio.sleep(9)
        async with acp.stream(session_id) as stream:
            assert (await stream.response(asked))["result"]["stopReason"] == "end_turn"
        asked = await acp.prompt(session_id, "60")
        session = up.governor.sessions[session_id]
        await trio.sleep(9)
        assert session.pending_count == 1
        await trio.sleep(2)
        assert session.history.settled[-1].stop_reason == "cancelled"
        await trio.sleep(60)
        await nothing_is_left(up)


async def test_delete_cancels_what_is_pending_tells_it_and_ends_the_streams(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream() as own, acp.stream(session_id) as stream:
            running, waiting = await acp.prompt(session_id, "60"), await acp.prompt(session_id, "60")
            await trio.sleep(1)
            assert (await acp.delete()).status == 202
            await stream.rest()
            for asked in (running, waiting):
                (response,) = responses(stream.seen, asked)
                assert response["result"]["stopReason"] == "cancelled"
            assert await own.rest() == []
        assert (await acp.delete()).status == 202
        await trio.sleep(60)
        await nothing_is_left(up)


async def test_a_session_whose_making_was_never_read_goes_with_its_connection(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        await acp.send("session/new")
        assert len(up.governor.sessions) == 1
        await acp.delete()
        assert up.governor.sessions == {}


async def test_a_shutdown_answers_everything_and_ends_every_stream(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream() as own, acp.stream(session_id) as stream:
            asked = [await acp.prompt(session_id, "60") for _ in range(2)]
            await trio.sleep(1)
            up.governor.drain()
            await stream.rest()
            for each in asked:
                (response,) = responses(stream.seen, each)
                assert response["error"]["data"] == {"errorKind": "daemon_shutdown"}
            assert kind_of(stream.seen[-1][1]) == "session_died"
            assert await own.rest() == []
        for message in (
            {"jsonrpc": "2.0", "id": 9, "method": "initialize"},
            {"jsonrpc": "2.0", "id": 9, "method": "session/list"},
        ):
            answer = await acp.post(message)
            assert answer.status == 503
            assert answer.headers["retry-after"] == "5"
            assert answer.json["error"]["code"] == -32603
            assert answer.json["error"]["data"] == {"errorKind": "daemon_draining"}
        assert len(up.app.acp) == 0
