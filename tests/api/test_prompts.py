"""`POST /session/:id/prompt` and `/cancel`: protocol 2.5, 2.6; S1 to S7, A2, A9."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
import trio

from tests.api.harness import AsgiExchange, kinds, listening, service

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_an_accepted_prompt_gets_202_and_a_cursor_that_misses_nothing(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        answer = await up.prompt(session, "0 hello")
        assert answer.status == 202
        assert set(answer.json) == {"promptId", "lastEventId", "eventEpoch"}
        uuid.UUID(answer.json["promptId"])
        uuid.UUID(answer.json["eventEpoch"])
        cursor = {"Last_Event_ID": str(answer.json["lastEventId"]), "X_Qwen_Event_Epoch": answer.json["eventEpoch"]}
        async with listening(up, session, **cursor) as events:
            seen = await events.until("turn_complete")
            assert [kind for kind in kinds(seen) if kind != "replay_complete"] == [
                "user_message_chunk", "agent_message_chunk", "turn_complete"
            ]  # fmt: skip
            assert seen[-1]["data"]["promptId"] == answer.json["promptId"]
            assert seen[-1]["data"]["stopReason"] == "end_turn"


async def test_no_event_of_a_turn_comes_before_its_202_is_out(autojump_clock: MockClock) -> None:
    """S7: with the 202 held back on its way, nothing of the turn happens; once it is out, everything does."""
    async with service() as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        async with listening(up, session) as events:
            exchange = AsgiExchange(
                up.app, "POST", f"/session/{session}/prompt",
                data=b'{"prompt": [{"type": "text", "text": "0"}]}', headers={"Content-Type": "application/json"},
                blocked=trio.Event(),
            )  # fmt: skip
            nursery.start_soon(exchange.run)
            await trio.sleep(2)
            assert up.governor.sessions[session].pending_count == 1
            assert up.governor.sessions[session].log.last_id == 0
            assert exchange.blocked is not None
            exchange.blocked.set()
            assert (await exchange.whole()).status == 202
            assert kinds(await events.until("turn_complete"))[0] == "user_message_chunk"


async def test_a_prompt_whose_caller_left_before_its_202_ends_before_it_has_begun(autojump_clock: MockClock) -> None:
    """Nobody knows it, so nobody could cancel it; those who listen hear of its end, and its slot is free."""
    async with service() as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        async with listening(up, session) as events:
            exchange = AsgiExchange(
                up.app, "POST", f"/session/{session}/prompt",
                data=b'{"prompt": [{"type": "text", "text": "0"}]}', headers={"Content-Type": "application/json"},
                blocked=trio.Event(),
            )  # fmt: skip
            nursery.start_soon(exchange.run)
            await trio.sleep(1)
            assert up.governor.sessions[session].pending_count == 1
            exchange.leave()
            await exchange.ended.wait()
            assert up.governor.sessions[session].pending_count == 0
            seen = await events.until("turn_complete")
            assert kinds(seen) == ["prompt_cancelled", "turn_complete"]
            assert seen[-1]["data"]["stopReason"] == "cancelled"
        await trio.sleep(10)
        assert not up.world.executions


async def test_the_sixth_pending_prompt_is_refused_and_leaves_no_trace(autojump_clock: MockClock) -> None:
    """A2: exactly this body, `Retry-After: 5`, no promptId; another session is admitted at once."""
    async with service() as up:
        session, other = await up.new_session(), await up.new_session()
        for _ in range(5):
            assert (await up.prompt(session, "60")).status == 202
        last_id = up.governor.sessions[session].log.last_id
        answer = await up.prompt(session, "60")
        assert answer.status == 503
        assert answer.headers["retry-after"] == "5"
        assert answer.json == {
            "error": f'Prompt queue full for session "{session}" (5/5 pending)',
            "code": "prompt_queue_full",
            "sessionId": session,
            "limit": 5,
            "pendingCount": 5,
        }
        assert up.governor.sessions[session].log.last_id == last_id
        assert (await up.prompt(other, "60")).status == 202
        statistics = up.governor.statistics()
        assert (statistics.totals.prompts_admitted, statistics.totals.prompts_refused) == (6, 1)


async def test_text_blocks_are_joined_by_line_breaks(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        blocks = [{"type": "text", "text": "0 one"}, {"type": "text", "text": "two\n"}, {"type": "text", "text": "ü"}]
        async with listening(up, session) as events:
            await up.ask("POST", f"/session/{session}/prompt", body={"prompt": blocks, "_meta": {"x": 1}})
            await events.until("turn_complete")
        assert [execution.text for execution in up.world.executions] == ["0 one\ntwo\n\nü"]


TEXT = {"type": "text", "text": "0"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_prompt"),
        ({"prompt": "hello"}, 400, "invalid_prompt"),
        ({"prompt": []}, 400, "invalid_prompt"),
        ({"prompt": {"0": TEXT}}, 400, "invalid_prompt"),
        ({"prompt": [TEXT, "hello"]}, 400, "invalid_prompt"),
        ({"prompt": [TEXT, {"type": "image", "data": "", "mimeType": "image/png"}]}, 400, "unsupported_content_block"),
        ({"prompt": [{"text": "no type"}]}, 400, "unsupported_content_block"),
        ({"prompt": [{"type": "text"}]}, 400, "invalid_prompt_text"),
        ({"prompt": [{"type": "text", "text": 5}]}, 400, "invalid_prompt_text"),
        ({"prompt": [{"type": "text", "text": "a\x00b"}]}, 400, "invalid_prompt_text"),
        ({"prompt": [{"type": "text", "text": "a\ud800b"}]}, 400, "invalid_prompt_text"),
        ({"prompt": [{"type": "text", "text": "x" * 101}]}, 413, "prompt_too_large"),
        ({"prompt": [{"type": "text", "text": "ü" * 51}]}, 413, "prompt_too_large"),
        ({"prompt": [TEXT], "deadlineMs": 0}, 400, "invalid_deadline_ms"),
        ({"prompt": [TEXT], "deadlineMs": -1}, 400, "invalid_deadline_ms"),
        ({"prompt": [TEXT], "deadlineMs": 1.5}, 400, "invalid_deadline_ms"),
        ({"prompt": [TEXT], "deadlineMs": True}, 400, "invalid_deadline_ms"),
        ({"prompt": [TEXT], "deadlineMs": "100"}, 400, "invalid_deadline_ms"),
        ({"prompt": [TEXT], "eventDetailMode": 7}, 400, "invalid_event_detail_mode"),
    ],
)
async def test_a_bad_prompt_is_refused_with_its_code_and_leaves_no_trace(
    body: dict[str, object], status: int, code: str, autojump_clock: MockClock
) -> None:
    async with service(limits={"max_prompt_bytes": 100}) as up:
        session = await up.new_session()
        answer = await up.ask("POST", f"/session/{session}/prompt", body=body)
        assert (answer.status, answer.code) == (status, code)
        assert up.governor.sessions[session].pending_count == 0
        assert up.governor.sessions[session].log.last_id == 0


async def test_exactly_the_largest_text_is_accepted(autojump_clock: MockClock) -> None:
    async with service(limits={"max_prompt_bytes": 100}) as up:
        assert (await up.prompt(await up.new_session(), "0" + "ü" * 49 + "x")).status == 202


async def test_a_text_of_one_mebibyte_of_escapes_passes_and_one_byte_more_does_not(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        assert (await up.prompt(session, "é" * 2**19)).status == 202
        assert (await up.prompt(session, "é" * 2**19 + ".")).code == "prompt_too_large"


async def test_the_checks_come_in_the_protocols_order(autojump_clock: MockClock) -> None:
    """2.5: JSON, session, detail mode, prompt, deadline, client id, admission; a full queue is looked at last."""
    async with service(limits={"max_pending_prompts_per_session": 1}) as up:
        session = await up.new_session()
        await up.prompt(session, "60")
        path, bad_client = f"/session/{session}/prompt", {"X-Qwen-Client-Id": "not registered"}
        wrong: dict[str, object] = {"eventDetailMode": 1, "prompt": [], "deadlineMs": 0}
        json_headers = {"Content-Type": "application/json", **bad_client}
        assert (await up.ask("POST", "/session/no/prompt", data=b"{", headers=json_headers)).code == "invalid_json"
        assert (await up.ask("POST", "/session/no/prompt", body=wrong)).code == "session_not_found"
        for repaired, code in (
            ({}, "invalid_event_detail_mode"),
            ({"eventDetailMode": "full"}, "invalid_prompt"),
            ({"prompt": [TEXT]}, "invalid_deadline_ms"),
            ({"deadlineMs": 10.0}, "invalid_client_id"),
        ):
            wrong |= repaired
            assert (await up.ask("POST", path, body=wrong, headers=bad_client)).code == code
        assert (await up.ask("POST", path, body=wrong)).code == "prompt_queue_full"


async def test_a_client_id_of_another_session_is_refused_before_anything_is_counted(autojump_clock: MockClock) -> None:
    """1.4: decided before the 202, so that nobody waits for a terminal that goes elsewhere."""
    async with service() as up:
        mine = (await up.ask("POST", "/session", body={"sessionScope": "thread"})).json
        other = await up.new_session()
        headers = {"X-Qwen-Client-Id": mine["clientId"]}
        answer = await up.ask("POST", f"/session/{other}/prompt", body={"prompt": [TEXT]}, headers=headers)
        assert (answer.status, answer.code) == (400, "invalid_client_id")
        assert answer.json["sessionId"] == other
        assert answer.json["clientId"] == mine["clientId"]
        assert up.governor.sessions[other].pending_count == 0
        for path in (f"/session/{other}/cancel",):
            assert (await up.ask("POST", path, headers=headers)).code == "invalid_client_id"
        async with listening(up, mine["sessionId"]) as events:
            own = f"/session/{mine['sessionId']}/prompt"
            assert (await up.ask("POST", own, body={"prompt": [TEXT]}, headers=headers)).status == 202
            seen = await events.until("turn_complete")
            assert {event["originatorClientId"] for event in seen} == {mine["clientId"]}


async def test_a_deadline_is_bounded_by_the_operators_and_frees_the_prompt_slot_alone(
    autojump_clock: MockClock,
) -> None:
    """S6: the caller gets its error, the claim goes on as `timed_out`, its late answer frees the credit."""
    async with service(limits={"prompt_deadline_ms": 1000}) as up:
        session = await up.new_session()
        async with listening(up, session) as events:
            await up.prompt(session, "3", deadlineMs=5000)
            began = trio.current_time()
            terminal = (await events.until("turn_error"))[-1]["data"]
            assert trio.current_time() - began == pytest.approx(1, abs=0.1)
            assert terminal["code"] == "prompt_deadline_exceeded"
            assert (up.governor.sessions[session].pending_count, up.free) == (0, 0)
            await trio.sleep(3)
            assert up.free == 1


async def test_cancel_ends_the_running_prompt_alone_and_is_always_204(autojump_clock: MockClock) -> None:
    async with service(model={"slots": 2}) as up:
        session = await up.new_session()
        async with listening(up, session) as events:
            running = (await up.prompt(session, "60")).json["promptId"]
            waiting = (await up.prompt(session, "0")).json["promptId"]
            await trio.sleep(1)
            answer = await up.ask("POST", f"/session/{session}/cancel", body={})
            assert (answer.status, answer.body) == (204, b"")
            first = (await events.until("turn_complete"))[-1]["data"]
            assert (first["promptId"], first["stopReason"]) == (running, "cancelled")
            second = (await events.until("turn_complete"))[-1]["data"]
            assert (second["promptId"], second["stopReason"]) == (waiting, "end_turn")
        assert (await up.ask("POST", f"/session/{session}/cancel")).status == 204
        assert (await up.ask("POST", "/session/none/cancel")).code == "session_not_found"


async def test_a_draining_governor_accepts_no_prompt(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        up.governor.drain()
        answer = await up.prompt(session, "0")
        assert (answer.status, answer.code) == (503, "daemon_draining")
        assert answer.headers["retry-after"] == "5"
