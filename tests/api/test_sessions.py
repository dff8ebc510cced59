"""`POST /session` and `DELETE /session/:id`: protocol 2.3, A9."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import pytest
import trio

from governor.clients import CLIENTS_MAX
from governor.config import ModelConfig
from tests.api.harness import Service, listening, service

if TYPE_CHECKING:
    from trio.testing import MockClock

SECOND = ModelConfig(name="other", triton_model="m2", backend="b", slots=1, kind="generate")


async def test_a_new_session_is_described_as_the_protocol_says(autojump_clock: MockClock) -> None:
    async with service() as up:
        answer = await up.ask("POST", "/session")
        assert answer.status == 200
        assert set(answer.json) == {
            "sessionId", "workspaceCwd", "attached", "clientId", "createdAt", "modelServiceId"
        }  # fmt: skip
        uuid.UUID(answer.json["sessionId"])
        kind, _, minted = answer.json["clientId"].partition("_")
        assert kind == "client"
        uuid.UUID(minted)
        assert answer.json["attached"] is False
        assert answer.json["workspaceCwd"] == "/"
        assert re.fullmatch(r"2023-11-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", answer.json["createdAt"])
        assert answer.json["modelServiceId"] == "chat"


async def test_single_scope_attaches_to_one_live_session_per_model(autojump_clock: MockClock) -> None:
    async with service(more_models=(SECOND,)) as up:
        first = (await up.ask("POST", "/session", body={"sessionScope": "single"})).json
        again = (await up.ask("POST", "/session", body={"modelServiceId": "chat"})).json
        other = (await up.ask("POST", "/session", body={"modelServiceId": "other"})).json
        assert again["sessionId"] == first["sessionId"]
        assert again["attached"] is True
        assert again["hasActivePrompt"] is False
        assert again["hasRunningBackgroundTasks"] is False
        assert again["clientId"] != first["clientId"]
        assert other["sessionId"] != first["sessionId"]
        assert other["attached"] is False
        assert other["modelApplied"] is True


async def test_of_callers_who_come_at_once_exactly_one_makes_the_session(autojump_clock: MockClock) -> None:
    answers = []

    async def come(up: Service) -> None:
        answers.append((await up.ask("POST", "/session")).json)

    async with service() as up, trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(come, up)
    assert sorted(answer["attached"] for answer in answers) == [False] + [True] * 7
    assert len({answer["sessionId"] for answer in answers}) == 1


async def test_a_closed_shared_session_is_replaced(autojump_clock: MockClock) -> None:
    async with service() as up:
        first = (await up.ask("POST", "/session")).json["sessionId"]
        answer = await up.ask("DELETE", f"/session/{first}")
        assert (answer.status, answer.headers, answer.body) == (204, {}, b"")
        second = (await up.ask("POST", "/session")).json
        assert second["attached"] is False
        assert second["sessionId"] != first


async def test_thread_scope_always_makes_a_session(autojump_clock: MockClock) -> None:
    async with service() as up:
        assert await up.new_session() != await up.new_session()


async def test_a_caller_may_choose_the_session_id_once(autojump_clock: MockClock) -> None:
    async with service() as up:
        wanted = str(uuid.uuid4()).upper()
        made = await up.ask("POST", "/session", body={"sessionId": wanted})
        assert made.json["sessionId"] == wanted.lower()
        assert made.json["attached"] is False
        again = await up.ask("POST", "/session", body={"sessionId": wanted})
        assert again.status == 409
        assert again.code == "session_id_conflict"
        assert again.json["sessionId"] == wanted.lower()
        assert again.json["conflict"] == "live"
        assert again.json["liveWorkspaceCwd"] == "/"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"sessionScope": "both"}, 400, "invalid_session_scope"),
        ({"sessionScope": {}}, 400, "invalid_session_scope"),
        ({"sessionId": "x"}, 400, "invalid_session_id"),
        ({"sessionId": 5}, 400, "invalid_session_id"),
        ({"sessionId": "00000000-0000-9000-8000-000000000000"}, 400, "invalid_session_id"),
        ({"cwd": "relative"}, 400, "invalid_cwd"),
        ({"cwd": 1}, 400, "invalid_cwd"),
        ({"modelServiceId": 1}, 400, "invalid_model_service_id"),
        ({"modelServiceId": "nothing"}, 404, "unknown_model"),
    ],
)
async def test_a_bad_request_is_refused_with_its_code_and_makes_nothing(
    body: dict[str, object], status: int, code: str, autojump_clock: MockClock
) -> None:
    async with service() as up:
        answer = await up.ask("POST", "/session", body=body)
        assert (answer.status, answer.code) == (status, code)
        assert not up.governor.sessions


async def test_the_session_limit_is_a_503_that_says_when_to_come_back(autojump_clock: MockClock) -> None:
    async with service(limits={"max_sessions": 1}) as up:
        await up.new_session()
        answer = await up.ask("POST", "/session", body={"sessionScope": "thread"})
        assert (answer.status, answer.code) == (503, "session_limit_exceeded")
        assert answer.headers["retry-after"] == "5"
        assert answer.json["limit"] == 1
        assert answer.json["scope"] == "total"


async def test_a_draining_governor_makes_no_session(autojump_clock: MockClock) -> None:
    async with service() as up:
        await up.ask("POST", "/session")
        up.governor.drain()
        for body in ({}, {"sessionScope": "thread"}):
            answer = await up.ask("POST", "/session", body=body)
            assert (answer.status, answer.code) == (503, "daemon_draining")


async def test_a_known_client_id_is_used_again_and_an_unknown_one_replaced(autojump_clock: MockClock) -> None:
    async with service() as up:
        mine = (await up.ask("POST", "/session")).json["clientId"]
        again = await up.ask("POST", "/session", headers={"X-Qwen-Client-Id": mine})
        assert again.json["clientId"] == mine
        stranger = await up.ask("POST", "/session", headers={"X-Qwen-Client-Id": "client_of_old"})
        assert stranger.json["clientId"] not in {mine, "client_of_old"}
        bad = await up.ask("POST", "/session", headers={"X-Qwen-Client-Id": "with blank"})
        assert (bad.status, bad.code) == (400, "invalid_client_id")


async def test_a_session_remembers_a_bounded_number_of_clients(autojump_clock: MockClock) -> None:
    """Attaching is free, so it may not cost memory without end. Who registers again is remembered longest."""
    async with service() as up:
        mine = (await up.ask("POST", "/session")).json
        session = up.governor.sessions[mine["sessionId"]]
        early = session.clients.register()
        for _ in range(CLIENTS_MAX - 2):
            session.clients.register()
        assert session.clients.register(mine["clientId"]) == mine["clientId"]
        session.clients.register()
        assert len(session.clients) == CLIENTS_MAX
        assert mine["clientId"] in session.clients
        assert early not in session.clients


async def test_closing_a_session_ends_its_prompts_then_its_streams(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        async with listening(up, session) as events:
            prompt_id = (await up.prompt(session, "60")).json["promptId"]
            assert (await up.ask("DELETE", f"/session/{session}")).status == 204
            seen = await events.until("session_closed")
            terminal = next(event for event in seen if event["type"] == "turn_error")
            assert terminal["data"]["promptId"] == prompt_id
            assert terminal["data"]["code"] == "session_closed"
            assert seen[-1]["data"] == {"sessionId": session, "reason": "client_close"}
            assert await events.event() is None
        again = await up.ask("DELETE", f"/session/{session}")
        assert (again.status, again.code) == (404, "session_not_found")
        assert again.json["sessionId"] == session
