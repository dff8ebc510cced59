"""`/acp`: connections end, with all that is theirs, and nothing else does."""

from __future__ import annotations

import re
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


async def test_an_operator_sets_the_limits_and_changes_them_while_connections_live(autojump_clock: MockClock) -> None:
    limits = {
        "max_acp_connections": 2,
        "acp_first_stream_timeout_ms": 5_000,
        "acp_reconnect_timeout_ms": 1_000,
        "max_unread_acp_responses": 3,
    }

    async def opens(up: Service) -> tuple[int, int | None]:
        answer = await up.ask("POST", "/acp", body={"jsonrpc": "2.0", "id": 3, "method": "initialize"})
        return answer.status, answer.json.get("error", {}).get("data", {}).get("limit")

    async with service(limits=limits) as up:
        acp = await connect(up)
        assert await opens(up) == (200, None)
        assert await opens(up) == (503, 2)
        for _ in range(3):
            await acp.send("authenticate")
        assert (await acp.post({"jsonrpc": "2.0", "id": "more", "method": "authenticate"})).status == 503
        await trio.sleep(4.9)
        assert len(up.app.acp) == 2
        await trio.sleep(0.2)
        assert len(up.app.acp) == 0
        acp = await connect(up)
        async with acp.stream():
            pass
        await trio.sleep(0.9)
        assert len(up.app.acp) == 1
        await trio.sleep(0.2)
        assert len(up.app.acp) == 0

        acp = await connect(up)
        config = up.governor.config
        wider = {"max_acp_connections": 1, "acp_reconnect_timeout_ms": 60_000, "max_unread_acp_responses": 4}
        up.governor.reconfigure(config.model_copy(update={"limits": config.limits.model_copy(update=wider)}))
        assert await opens(up) == (503, 1)
        for _ in range(4):
            await acp.send("authenticate")
        await trio.sleep(50)
        assert len(up.app.acp) == 1


async def test_unread_responses_are_bounded_by_their_bytes_too(autojump_clock: MockClock) -> None:
    async with service(limits={"max_unread_acp_bytes": 1_000}) as up:
        acp = await connect(up)
        sent = 0
        while (await acp.post({"jsonrpc": "2.0", "id": f"r{sent}", "method": "session/nothing"})).status == 202:
            sent += 1
        (connection,) = up.app.acp._by_id.values()
        assert 1_000 < connection.unread_bytes < 2_000
        assert 1 < sent < 100


async def test_connections_are_counted(autojump_clock: MockClock) -> None:
    async with service() as up:

        async def count() -> str:
            text = (await up.ask("GET", "/metrics")).body.decode()
            (line,) = re.findall(r"^vig_acp_connections (.*)$", text, re.MULTILINE)
            return str(line)

        assert await count() == "0.0"
        acp = await connect(up)
        await connect(up)
        assert await count() == "2.0"
        await acp.delete()
        assert await count() == "1.0"
