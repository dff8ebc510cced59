"""What a session says about itself, and how its clients come and go: protocol 1.4, 2.1, 2.8, 2.9, A1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from governor.config import ModelConfig
from tests.api.harness import AsgiExchange, Events, Service, kinds, listening, service
from tests.shell.world import Plan

if TYPE_CHECKING:
    from trio.testing import MockClock

SECOND = ModelConfig(name="other", triton_model="m2", backend="b", slots=1, kind="generate")


async def made(up: Service, **body: object) -> dict[str, Any]:
    return (await up.ask("POST", "/session", body={"sessionScope": "thread", **body})).json


# Clients.


async def test_an_id_is_known_until_every_registration_of_it_was_taken_back(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await made(up)
        path, mine = f"/session/{session['sessionId']}", {"X-Qwen-Client-Id": session["clientId"]}
        for route in ("load", "resume"):
            again = (await up.ask("POST", f"{path}/{route}", headers=mine)).json
            assert again["clientId"] == session["clientId"]
        for left in (2, 1):
            assert (await up.ask("POST", f"{path}/detach", headers=mine)).status == 204
            assert (await up.ask("GET", f"{path}/pending-prompts", headers=mine)).status == 200, left
        await up.ask("POST", f"{path}/detach", headers=mine)
        refused = await up.ask("GET", f"{path}/pending-prompts", headers=mine)
        assert (refused.status, refused.code) == (400, "invalid_client_id")
        assert (await up.ask("POST", f"{path}/detach", headers=mine)).status == 204, "a second time is no error"
        assert (await up.ask("POST", f"{path}/detach")).status == 204
        renewed = (await up.ask("POST", f"{path}/resume", headers=mine)).json["clientId"]
        assert renewed != session["clientId"]


@pytest.mark.parametrize(
    ("method", "route", "body"),
    [
        ("POST", "prompt", {"prompt": [{"type": "text", "text": "0"}]}),
        ("POST", "cancel", None),
        ("GET", "pending-prompts", None),
        ("DELETE", "pending-prompts/x", None),
        ("GET", "turns/current", None),
        ("GET", "turns/x", None),
        ("POST", "heartbeat", None),
        ("PATCH", "metadata", {"displayName": "x"}),
        ("POST", "model", {"modelId": "chat"}),
        ("POST", "branch", None),
        ("DELETE", "", None),
    ],
)
async def test_an_id_of_another_session_is_refused_and_nothing_is_done(
    method: str, route: str, body: object, autojump_clock: MockClock
) -> None:
    async with service() as up:
        session, stranger = await made(up), await made(up)
        path = f"/session/{session['sessionId']}/{route}".rstrip("/")
        answer = await up.ask(method, path, body=body, headers={"X-Qwen-Client-Id": stranger["clientId"]})
        assert (answer.status, answer.code) == (400, "invalid_client_id")
        assert answer.json["sessionId"] == session["sessionId"]
        malformed = await up.ask(method, path, body=body, headers={"X-Qwen-Client-Id": "no id"})
        assert malformed.code == "invalid_client_id"
        kept = up.governor.sessions[session["sessionId"]]
        assert (kept.log.last_id, kept.pending_count, kept.display_name) == (0, 0, None)
        assert len(up.governor.sessions) == 2
        anonymous = await up.ask(method, path, body=body)
        assert anonymous.status < 300 or anonymous.code == "prompt_not_found"


async def test_an_event_stream_ignores_the_client_id(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await made(up)
        async with listening(up, session["sessionId"], X_Qwen_Client_Id="nobody") as events:
            await up.prompt(session["sessionId"], "0")
            await events.until("turn_complete")


async def test_a_caller_that_is_gone_before_its_answer_leaves_no_session(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        exchange = AsgiExchange(up.app, "POST", "/session", blocked=trio.Event())
        nursery.start_soon(exchange.run)
        await trio.sleep(1)
        assert len(up.governor.sessions) == 1
        exchange.leave()
        await exchange.ended.wait()
        assert not up.governor.sessions


async def test_a_caller_that_is_gone_leaves_the_session_to_whoever_attached_meanwhile(
    autojump_clock: MockClock,
) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        exchange = AsgiExchange(up.app, "POST", "/session", blocked=trio.Event())
        nursery.start_soon(exchange.run)
        await trio.sleep(1)
        attached = (await up.ask("POST", "/session")).json
        assert attached["attached"] is True
        exchange.leave()
        await exchange.ended.wait()
        session = up.governor.sessions[attached["sessionId"]]
        assert len(session.clients) == 1
        assert attached["clientId"] in session.clients


async def test_an_attachment_whose_answer_was_lost_is_taken_back(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        session = up.governor.sessions[(await up.ask("POST", "/session")).json["sessionId"]]
        for path in ("/session", f"/session/{session.id}/load", f"/session/{session.id}/resume"):
            exchange = AsgiExchange(up.app, "POST", path, blocked=trio.Event())
            nursery.start_soon(exchange.run)
            await trio.sleep(1)
            assert len(session.clients) == 2
            exchange.leave()
            await exchange.ended.wait()
            assert len(session.clients) == 1
            assert not session.closed


async def test_a_session_that_everybody_has_left_is_closed_after_a_while(autojump_clock: MockClock) -> None:
    """Not while a prompt or a reader is there, and not if somebody comes back."""
    async with service(limits={"session_detached_timeout_ms": 60_000}) as up:
        left, busy, returned, kept = [await made(up) for _ in range(4)]
        await up.prompt(busy["sessionId"], "100")
        for session in (left, busy, returned):
            path, mine = f"/session/{session['sessionId']}", {"X-Qwen-Client-Id": session["clientId"]}
            await up.ask("POST", f"{path}/detach", headers=mine)
        await trio.sleep(30)
        await up.ask("POST", f"/session/{returned['sessionId']}/resume")
        async with listening(up, left["sessionId"]):
            await trio.sleep(60)
            assert {session["sessionId"] for session in (left, busy, returned, kept)} == set(up.governor.sessions)
        await trio.sleep(65)
        assert {session["sessionId"] for session in (returned, kept, busy)} == set(up.governor.sessions)
        await trio.sleep(65)
        assert {session["sessionId"] for session in (returned, kept)} == set(up.governor.sessions)


async def test_who_closed_a_session_is_told(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await made(up)
        async with listening(up, session["sessionId"]) as events:
            mine = {"X-Qwen-Client-Id": session["clientId"]}
            await up.ask("DELETE", f"/session/{session['sessionId']}", headers=mine)
            told = (await events.until("session_closed"))[-1]["data"]
            assert told == {
                "sessionId": session["sessionId"], "reason": "client_close", "closedBy": session["clientId"]
            }  # fmt: skip


# What it says about itself.


async def test_the_status_of_a_session_over_its_turns(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(seconds=2, status=500, texts=("ill",)))
        session = await made(up)
        path = f"/session/{session['sessionId']}/status"
        fresh = (await up.ask("GET", path)).json
        assert fresh == {
            "sessionId": session["sessionId"], "workspaceCwd": "/", "createdAt": session["createdAt"],
            "modelServiceId": "chat", "clientCount": 1, "hasActivePrompt": False, "activeWorkState": "idle",
            "hasRunningBackgroundTasks": False, "isWaitingForPermission": False, "isWaitingForUserQuestion": False,
            "pendingInteractionCount": 0, "hasTurnError": False, "pendingInteractions": [],
        }  # fmt: skip
        await up.prompt(session["sessionId"], "0")
        await up.prompt(session["sessionId"], "1")
        await trio.sleep(1)
        busy = (await up.ask("GET", path)).json
        assert (busy["hasActivePrompt"], busy["activeWorkState"], busy["hasTurnError"]) == (True, "active", False)
        assert "updatedAt" not in busy
        await trio.sleep(1.5)
        assert (await up.ask("GET", path)).json["hasTurnError"] is False, "the next turn has begun"
        up.world.next_plans.append(Plan(status=500, texts=("ill",)))
        await up.prompt(session["sessionId"], "0")
        await trio.sleep(5)
        failed = (await up.ask("GET", path)).json
        assert failed["turnError"] == {"message": "ill", "code": "backend_answered_error"}
        assert failed["updatedAt"] > failed["createdAt"]


async def test_a_queued_prompt_that_fails_is_no_error_of_a_turn(autojump_clock: MockClock) -> None:
    """Protocol 2.8."""
    async with service(limits={"prompt_deadline_ms": 60_000}) as up:
        session = await made(up)
        await up.prompt(session["sessionId"], "3")
        await up.prompt(session["sessionId"], "3", deadlineMs=1000)
        await trio.sleep(10)
        assert (await up.ask("GET", f"/session/{session['sessionId']}/status")).json["hasTurnError"] is False


async def test_a_session_is_named(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await made(up)
        path = f"/session/{session['sessionId']}"
        async with listening(up, session["sessionId"]) as events:
            answer = await up.ask("PATCH", f"{path}/metadata", body={"displayName": "n" * 300})
            assert answer.json == {"sessionId": session["sessionId"], "displayName": "n" * 256}
            told = (await events.until("session_metadata_updated"))[-1]["data"]
            assert told == {
                "sessionId": session["sessionId"], "displayName": "n" * 256, "titleSource": "manual"
            }  # fmt: skip
        again = await up.ask("PATCH", f"{path}/metadata", body={"displayName": "n" * 256})
        assert again.status == 200
        assert up.governor.sessions[session["sessionId"]].log.last_id == 1, "nothing has changed"
        assert (await up.ask("PATCH", f"{path}/metadata", body={})).json["displayName"] == "n" * 256
        assert (await up.ask("GET", f"{path}/status")).json["displayName"] == "n" * 256


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "\x7f", "\x9f", "a\ud800", 5, ["x"]])
async def test_a_name_that_is_none_is_refused(name: object, autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await made(up)
        answer = await up.ask("PATCH", f"/session/{session['sessionId']}/metadata", body={"displayName": name})
        assert (answer.status, answer.code, answer.json["field"]) == (400, "invalid_metadata", "displayName")


async def test_a_heartbeat_keeps_a_session(autojump_clock: MockClock) -> None:
    async with service(limits={"session_idle_timeout_ms": 60_000}) as up:
        session = await made(up)
        path, mine = f"/session/{session['sessionId']}/heartbeat", {"X-Qwen-Client-Id": session["clientId"]}
        for _ in range(5):
            await trio.sleep(50)
            answer = await up.ask("POST", path, body={}, headers=mine)
            assert answer.json["clientId"] == session["clientId"]
            assert answer.json["sessionId"] == session["sessionId"]
        anonymous = (await up.ask("POST", path)).json
        assert set(anonymous) == {"sessionId", "lastSeenAt"}
        assert anonymous["lastSeenAt"] >= answer.json["lastSeenAt"]
        await trio.sleep(70)
        assert (await up.ask("POST", path)).code == "session_not_found"


async def test_the_list_of_sessions_comes_in_pages_the_newest_first(autojump_clock: MockClock) -> None:
    async with service() as up:
        sessions = [(await made(up))["sessionId"] for _ in range(5)]
        listed: list[str] = []
        query = b"size=2"
        for pages_left in (2, 1, 0):
            page = (await up.ask("GET", "/workspace///sessions", query=query)).json
            listed += [session["sessionId"] for session in page["sessions"]]
            assert ("nextCursor" in page) == bool(pages_left)
            query = f"size=2&cursor={page.get('nextCursor')}".encode()
            if pages_left == 2:
                await made(up)  # newer than what was seen: not on the pages that follow
                await up.ask("DELETE", f"/session/{listed[-1]}")
        assert listed == sessions[::-1]
        whole = (await up.ask("GET", "/workspace//any/folder/sessions")).json
        assert len(whole["sessions"]) == 5
        assert "nextCursor" not in whole


@pytest.mark.parametrize(
    ("path", "query", "code"),
    [
        ("/workspace/relative/sessions", b"", "invalid_cwd"),
        ("/workspace///sessions", b"cursor=x", "invalid_cursor"),
        ("/workspace//sessions", b"", "not_found"),
    ],
)
async def test_a_list_of_nowhere_is_refused(path: str, query: bytes, code: str, autojump_clock: MockClock) -> None:
    async with service() as up:
        assert (await up.ask("GET", path, query=query)).code == code


@pytest.mark.parametrize("size", [b"0", b"-1", b"x", b"100000"])
async def test_a_size_of_a_page_that_is_none_is_the_nearest_or_the_default(
    size: bytes, autojump_clock: MockClock
) -> None:
    async with service() as up:
        await made(up)
        answer = await up.ask("GET", "/workspace///sessions", query=b"size=" + size)
        assert len(answer.json["sessions"]) == 1


# Its model.


async def test_a_switch_of_the_model_is_for_the_turns_that_begin_after_it(autojump_clock: MockClock) -> None:
    async with service(more_models=(SECOND,)) as up:
        session = await made(up)
        async with listening(up, session["sessionId"]) as events:
            await up.prompt(session["sessionId"], "2 running")
            await up.prompt(session["sessionId"], "1 waiting")
            await trio.sleep(1)
            answer = await up.ask("POST", f"/session/{session['sessionId']}/model", body={"modelId": "other"})
            assert (answer.status, answer.json) == (200, {"modelId": "other"})
            seen = await events.until("pending_prompt_completed")
        assert kinds(seen)[-8:] == [
            "model_switched", "agent_message_chunk", "turn_complete", "pending_prompt_started", "user_message_chunk",
            "agent_message_chunk", "turn_complete", "pending_prompt_completed",
        ]  # fmt: skip
        assert [wire.path.split("/")[3] for wire in up.world.wires] == ["m", "m2"]
        told = next(event for event in seen if event["type"] == "model_switched")
        assert told["data"] == {"sessionId": session["sessionId"], "modelId": "other"}


async def test_a_switch_to_no_model_is_refused_and_told(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await made(up)
        path = f"/session/{session['sessionId']}/model"
        async with listening(up, session["sessionId"]) as events:
            answer = await up.ask("POST", path, body={"modelId": "nothing"})
            assert (answer.status, answer.code) == (404, "unknown_model")
            told = (await events.until("model_switch_failed"))[-1]["data"]
            assert told["requestedModelId"] == "nothing"
            assert isinstance(told["error"], str)
        for body in ({}, {"modelId": ""}, {"modelId": 5}):
            answer = await up.ask("POST", path, body=body)
            assert (answer.status, answer.code) == (400, "invalid_model_id")


async def test_a_shared_session_that_has_switched_is_no_longer_its_first_models(autojump_clock: MockClock) -> None:
    async with service(more_models=(SECOND,)) as up:
        first = (await up.ask("POST", "/session", body={"modelServiceId": "chat"})).json
        await up.ask("POST", f"/session/{first['sessionId']}/model", body={"modelId": "other"})
        again = (await up.ask("POST", "/session", body={"modelServiceId": "chat"})).json
        assert again["sessionId"] != first["sessionId"]
        assert again["attached"] is False


# The daemon.


async def test_the_status_of_the_daemon_counts_what_goes_on(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await made(up)
        for _ in range(3):
            await up.prompt(session["sessionId"], "10")
        async with listening(up, session["sessionId"]):
            await trio.sleep(2)
            told = (await up.ask("GET", "/daemon/status")).json
            assert (told["v"], told["detail"], told["status"], told["issues"]) == (1, "summary", "ok", [])
            activity = told["runtime"]["activity"]
            assert (activity["activePrompts"], activity["pendingPrompts"], activity["queuedPrompts"]) == (1, 3, 2)
            assert activity["idleSinceMs"] == pytest.approx(2000, abs=100)
            assert told["runtime"]["sessions"]["active"] == 1
            assert told["runtime"]["transport"]["restSseActive"] == 1
            assert told["runtime"]["rateLimit"]["enabled"] is False
            assert told["limits"]["maxPendingPromptsPerSession"] == 5
            assert "full" not in told
            (one,) = (await up.ask("GET", "/daemon/status", query=b"detail=full")).json["full"]["sessions"]
            assert (one["pendingPromptCount"], one["subscriberCount"], one["lastEventId"]) == (3, 1, 3)
            deep = (await up.ask("GET", "/health", query=b"deep=1")).json
            assert (deep["status"], deep["sessions"], deep["activePrompts"], deep["connectedClients"]) == (
                "ok",
                1,
                1,
                1,
            )
            assert deep["channelAlive"] is True


async def test_the_status_of_the_daemon_names_a_model_that_cannot_be_used(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.health.not_ready = True
        await trio.sleep(5)
        told = (await up.ask("GET", "/daemon/status")).json
        assert told["status"] == "warning"
        assert [issue["code"] for issue in told["issues"]] == ["model_unavailable"]
        deep = (await up.ask("GET", "/health", query=b"deep=true")).json
        assert (deep["channelAlive"], deep["lastActivityAt"], deep["idleSinceMs"]) == (False, None, None)


async def test_a_snapshot_comes_between_what_is_replayed_and_what_happens(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await made(up)
        path = f"/session/{session['sessionId']}/events"
        await up.prompt(session["sessionId"], "0")
        await trio.sleep(1)
        for headers, before in (({}, 0), ({"Last-Event-ID": "0"}, 4)):
            exchange = AsgiExchange(up.app, "GET", path, headers=headers, query=b"snapshot=1")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(exchange.run)
                seen = await Events(exchange).until("session_snapshot")
                nursery.cancel_scope.cancel()
            assert len(seen) == before + 1
            assert "id" not in seen[-1]
            assert seen[-1]["data"] == {
                "sessionId": session["sessionId"], "currentModelId": "chat", "currentApprovalMode": None,
                "recordingDegraded": False,
            }  # fmt: skip
