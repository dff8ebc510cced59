"""`/acp`: a prompt is answered once, however its turn ends, and nothing of it comes before its 202 was read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.api.acp import Acp, connect, kind_of, responses
from tests.api.harness import AsgiExchange, service
from tests.shell.world import Break, Plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock


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
