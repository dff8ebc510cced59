"""Coming back to a session, and branching off: protocol 2.4, 2.10, S5."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import trio

from governor.branch import WAIT_S
from governor.core.events import REPLAY_BYTES_MAX
from governor.journal import replay_of
from tests.api.harness import AsgiExchange, Service, kinds, listening, service
from tests.shell.world import Plan

if TYPE_CHECKING:
    from trio.testing import MockClock


async def restored(up: Service, session: str, action: str = "load", **body: object) -> dict[str, Any]:
    answer = await up.ask("POST", f"/session/{session}/{action}", body=body)
    assert answer.status == 200, answer
    return answer.json


def texts(events: list[dict[str, Any]], kind: str = "agent_message_chunk") -> list[str]:
    updates = [event["data"]["update"] for event in events if event["type"] == "session_update"]
    return [update["content"]["text"] for update in updates if update["sessionUpdate"] == kind]


async def test_a_session_without_a_past(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        told = await restored(up, session)
        assert told == {
            "sessionId": session, "workspaceCwd": "/", "attached": True, "clientId": told["clientId"],
            "createdAt": told["createdAt"], "modelServiceId": "chat", "hasActivePrompt": False,
            "hasRunningBackgroundTasks": False, "lastEventId": 0,
            "eventEpoch": up.governor.sessions[session].log.epoch,
            "state": {
                "models": {"currentModelId": "chat", "availableModels": [{"modelId": "chat", "name": "chat"}]}
            },
            "compactedReplay": [], "liveJournal": [],
        }  # fmt: skip
        plain = await restored(up, session, "resume")
        assert set(told) - set(plain) == {"compactedReplay", "liveJournal"}


async def test_what_was_told_is_told_compact_and_what_goes_on_as_it_was(autojump_clock: MockClock) -> None:
    """Both together with a stream from `lastEventId` are everything, once."""
    async with service(model={"kind": "generate_stream"}) as up:
        up.world.next_plans += [Plan(seconds=1, texts=("a", "b", "c")), Plan(seconds=4, texts=("d", "e"))]
        session = await up.new_session()
        first = (await up.prompt(session, "one")).json["promptId"]
        second = (await up.prompt(session, "two")).json["promptId"]
        await trio.sleep(4)
        told = await restored(up, session, compactedReplayMode="summary", liveReplayMode="full")
        assert told["hasActivePrompt"] is True
        assert kinds(told["compactedReplay"]) == [
            "user_message_chunk", "pending_prompt_added", "agent_message_chunk", "turn_complete"
        ]  # fmt: skip
        assert texts(told["compactedReplay"]) == ["abc"]
        assert [event["id"] for event in told["compactedReplay"]] == [1, 2, 5, 6]
        assert kinds(told["liveJournal"]) == ["pending_prompt_started", "user_message_chunk", "agent_message_chunk"]
        assert texts(told["liveJournal"]) == ["d"]
        assert told["lastEventId"] == 9 == told["liveJournal"][-1]["id"]
        (terminal,) = told["promptTerminals"]
        assert terminal == {
            "v": 1, "promptId": first, "terminal": "completed", "stopReason": "end_turn", "at": terminal["at"]
        }  # fmt: skip
        cursor = {"Last_Event_ID": str(told["lastEventId"]), "X_Qwen_Event_Epoch": told["eventEpoch"]}
        async with listening(up, session, **cursor) as events:
            seen = await events.until("pending_prompt_completed")
        assert seen[0] == {
            "v": 1, "type": "replay_complete", "data": {"replayedCount": 0}
        }  # fmt: skip
        assert kinds(seen[1:]) == ["agent_message_chunk", "turn_complete", "pending_prompt_completed"]
        assert texts(seen) == ["e"]
        assert seen[-1]["data"]["promptId"] == second


async def test_how_prompts_ended_is_told_to_those_who_were_not_there(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(status=500, texts=("ill",)))
        session = await up.new_session()
        await up.prompt(session, "0")
        await trio.sleep(1)
        await up.prompt(session, "10")
        await trio.sleep(1)
        await up.ask("POST", f"/session/{session}/cancel")
        failed, cancelled = (await restored(up, session, "resume"))["promptTerminals"]
        assert (failed["terminal"], failed["code"]) == ("error", "backend_answered_error")
        assert (cancelled["terminal"], cancelled["stopReason"]) == ("cancelled", "cancelled")
        assert failed["at"] < cancelled["at"]


async def test_a_past_that_is_not_kept_whole_says_so(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service(limits={"event_ring_size": 3}) as up:
        session = await up.new_session()
        for _ in range(2):
            await up.prompt(session, "0")
            await trio.sleep(1)
        told = await restored(up, session)
        assert [event["id"] for event in told["compactedReplay"]] == [4, 5, 6]
        assert told["partial"] is True
        assert isinstance(told["replayError"], str)
    monkeypatch.setattr("governor.journal.REPLAY_BYTES_MAX", 700)
    async with service() as up:
        session = await up.new_session()
        await up.prompt(session, "0 " + "x" * 400)
        await trio.sleep(1)
        told = await restored(up, session)
        assert [event["id"] for event in told["compactedReplay"]] == [2, 3], "as much as fits, the newest"
        assert told["partial"] is True
    assert REPLAY_BYTES_MAX == 8 * 2**20


@pytest.mark.parametrize("action", ["load", "resume"])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"cwd": "x"}, "invalid_cwd"),
        ({"liveReplayMode": "x"}, "invalid_live_replay_mode"),
        ({"compactedReplayMode": 1}, "invalid_compacted_replay_mode"),
    ],
)
async def test_a_bad_request_attaches_nobody(
    action: str, body: dict[str, object], code: str, autojump_clock: MockClock
) -> None:
    async with service() as up:
        session = await up.new_session()
        answer = await up.ask("POST", f"/session/{session}/{action}", body=body)
        assert (answer.status, answer.code) == (400, code)
        assert len(up.governor.sessions[session].clients) == 1
        assert (await up.ask("POST", f"/session/none/{action}")).code == "session_not_found"


async def test_a_session_that_is_closed_while_it_is_loaded_is_gone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        await up.prompt(session, "0")
        await trio.sleep(1)
        exchange = AsgiExchange(up.app, "POST", f"/session/{session}/load")
        monkeypatch.setattr(
            import_module("api.routes.restore"), "replay_of", closing(up.governor.close_session, session)
        )
        nursery.start_soon(exchange.run)
        answer = await exchange.whole()
        assert (answer.status, answer.code) == (404, "session_closing")


def closing(close: Any, session: str) -> Any:
    async def replay(kept: Any) -> Any:
        close(session)
        return await replay_of(kept)

    return replay


# Branches.


async def test_a_branch_has_the_model_the_name_and_the_texts(autojump_clock: MockClock) -> None:
    async with service(model={"kind": "generate_stream"}) as up:
        up.world.next_plans.append(Plan(texts=("so ", "said")))
        session = await up.new_session()
        await up.ask("PATCH", f"/session/{session}/metadata", body={"displayName": "first"})
        await up.prompt(session, "asked")
        await trio.sleep(1)
        async with listening(up, session) as events:
            answer = await up.ask("POST", f"/session/{session}/branch", body={})
            assert answer.status == 201
            told = answer.json
            assert told["displayName"] == "first (branch)"
            assert told["forkedFrom"] == {"sessionId": session, "displayName": "first"}
            assert (told["attached"], told["hasActivePrompt"], told["modelServiceId"]) == (False, False, "chat")
            assert told["sessionId"] != session
            assert (await events.until("session_branched"))[-1]["data"] == {
                "sourceSessionId": session, "newSessionId": told["sessionId"], "displayName": "first (branch)",
                "sessionId": session,
            }  # fmt: skip
        replay = told["compactedReplay"] + told["liveJournal"]
        assert kinds(replay) == ["user_message_chunk", "agent_message_chunk"]
        assert (texts(replay, "user_message_chunk"), texts(replay)) == (["asked"], ["so said"])
        assert {event["data"]["sessionId"] for event in replay} == {told["sessionId"]}
        assert told["lastEventId"] == 2
        mine = {"X-Qwen-Client-Id": told["clientId"]}
        body = {"prompt": [{"type": "text", "text": "0"}]}
        path = f"/session/{told['sessionId']}/prompt"
        assert (await up.ask("POST", path, body=body, headers=mine)).status == 202


@pytest.mark.parametrize(
    ("name", "shown"), [("other", "other"), ("a\x00\nb\x9f", "ab"), ("n" * 300, "n" * 200), ("\n", None), (5, None)]
)
async def test_a_branch_is_named(name: object, shown: str | None, autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        told = (await up.ask("POST", f"/session/{session}/branch", body={"name": name})).json
        assert told["displayName"] == (shown if shown is not None else f"{session[:8]} (branch)")
        assert told["forkedFrom"]["displayName"] == session[:8]


async def test_a_branch_comes_after_the_prompts_before_it_and_before_those_after_it(
    autojump_clock: MockClock,
) -> None:
    """S5: it takes no slot, and a full queue does not refuse it."""
    async with service(limits={"max_pending_prompts_per_session": 2}) as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        await up.prompt(session, "1 one")
        await up.prompt(session, "1 two")
        exchange = AsgiExchange(up.app, "POST", f"/session/{session}/branch")
        nursery.start_soon(exchange.run)
        await trio.sleep(1.5)
        assert up.governor.sessions[session].pending_count == 1, "a branch is no prompt"
        assert (await up.prompt(session, "1 three")).status == 202
        assert exchange.status is None
        answer = await exchange.whole()
        assert answer.status == 201
        assert texts(answer.json["liveJournal"], "user_message_chunk") == ["1 one", "1 two"]
        assert up.governor.sessions[session].pending_count == 1


async def test_a_branch_gives_up_in_time_and_makes_nothing(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        await up.prompt(session, "300")
        began = trio.current_time()
        answer = await up.ask("POST", f"/session/{session}/branch")
        assert trio.current_time() - began == pytest.approx(WAIT_S, abs=1)
        assert (answer.status, answer.code) == (409, "branch_while_prompt_active")
        assert (answer.json["sessionId"], answer.headers["retry-after"]) == (session, "5")
        assert set(up.governor.sessions) == {session}
        assert len(up.governor.sessions[session]._places) == 0


async def test_a_branch_whose_caller_has_left_makes_nothing(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        await up.prompt(session, "5")
        waiting = AsgiExchange(up.app, "POST", f"/session/{session}/branch")
        nursery.start_soon(waiting.run)
        await trio.sleep(1)
        waiting.leave()
        await waiting.ended.wait()
        assert len(up.governor.sessions[session]._places) == 0
        await trio.sleep(10)
        late = AsgiExchange(up.app, "POST", f"/session/{session}/branch", blocked=trio.Event())
        nursery.start_soon(late.run)
        await trio.sleep(1)
        assert len(up.governor.sessions) == 2
        late.leave()
        await late.ended.wait()
        assert set(up.governor.sessions) == {session}


async def test_a_branch_of_a_session_that_is_closed_meanwhile_is_refused(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        await up.prompt(session, "5")
        waiting = AsgiExchange(up.app, "POST", f"/session/{session}/branch")
        nursery.start_soon(waiting.run)
        await trio.sleep(1)
        await up.ask("DELETE", f"/session/{session}")
        answer = await waiting.whole()
        assert (answer.status, answer.code) == (404, "session_closing")
        assert not up.governor.sessions


async def test_a_branch_that_cannot_be_is_refused(autojump_clock: MockClock) -> None:
    async with service(limits={"max_sessions": 1}) as up:
        session = await up.new_session()
        past = await up.ask("POST", f"/session/{session}/branch", body={"atRecordId": "x"})
        assert (past.status, past.code) == (400, "branch_point_invalid")
        full = await up.ask("POST", f"/session/{session}/branch")
        assert (full.status, full.code) == (503, "session_limit_exceeded")
        assert (await up.ask("POST", "/session/none/branch")).code == "session_not_found"
