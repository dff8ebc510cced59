"""`/acp`: connections end, with all that is theirs, and nothing else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tests.api.acp import connect, kind_of, responses
from tests.api.harness import Service, service

if TYPE_CHECKING:
    from trio.testing import MockClock


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
