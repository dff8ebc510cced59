"""Every error of the protocol's routes, the rows of its own table (4.9) and of its generic errors (1.5) first: status,
code, fields, Retry-After."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import trio

from api.openapi import OPERATIONS
from api.openapi.failures import BELOW
from tests.api.harness import AsgiExchange, Service, listening, service
from tests.shell.world import Break, Plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from trio.testing import MockClock

    from tests.api.harness import Answer

TEXT = {"type": "text", "text": "0"}
TOKEN = "0123456789abcdef"
TAKEN = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Row:
    """A refusal.

    Attributes:
        status: of the answer.
        code: of the answer.
        get: brings it about.
        fields: what else the answer has; `S` stands for the session's id.
        retry_after: the header; None for no such header.
        options: of the service.
    """

    status: int
    code: str
    get: Callable[[Service, str], Awaitable[Answer]]
    fields: Mapping[str, object] = field(default_factory=dict)
    retry_after: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.status} {self.code}"


def prompt(**body: object) -> Callable[[Service, str], Awaitable[Answer]]:
    async def get(up: Service, session: str) -> Answer:
        return await up.ask("POST", f"/session/{session}/prompt", body={"prompt": [TEXT], **body})

    return get


def request(method: str, path: str, **options: Any) -> Callable[[Service, str], Awaitable[Answer]]:
    async def get(up: Service, session: str) -> Answer:
        return await up.ask(method, path.replace("S", session), **options)

    return get


async def full_queue(up: Service, session: str) -> Answer:
    for _ in range(2):
        await up.prompt(session, "60")
    return await up.prompt(session, "60")


async def draining(up: Service, session: str) -> Answer:
    up.governor.drain()
    return await up.prompt(session, "0")


async def too_many_readers(up: Service, session: str) -> Answer:
    async with listening(up, session):
        return await up.ask("GET", f"/session/{session}/events")


async def too_often(up: Service, session: str) -> Answer:
    await up.prompt(session, "0")
    return await up.prompt(session, "0")


async def closing(up: Service, session: str) -> Answer:
    await up.prompt(session, "60")
    async with trio.open_nursery() as nursery:
        branch = AsgiExchange(up.app, "POST", f"/session/{session}/branch")
        nursery.start_soon(branch.run)
        await trio.sleep(1)
        await up.ask("DELETE", f"/session/{session}")
        answer = await branch.whole()
        nursery.cancel_scope.cancel()
    return answer


async def taken_id(up: Service, session: str) -> Answer:
    assert (await up.ask("POST", "/session", body={"sessionId": TAKEN})).status == 200
    return await up.ask("POST", "/session", body={"sessionId": TAKEN})


async def branch_behind_a_long_prompt(up: Service, session: str) -> Answer:
    await up.prompt(session, "300")
    return await up.ask("POST", f"/session/{session}/branch")


async def too_many_at_once(up: Service, session: str) -> Answer:
    async with listening(up, session):
        return await up.ask("GET", f"/session/{session}/status")


async def our_own_fault(up: Service, session: str) -> Answer:
    up.governor.now_ms = lambda: 1 // 0
    return await up.ask("GET", "/daemon/status")


CLIENT = {"sessionId": "S", "clientId": "stranger"}
ROWS = [
    Row(400, "invalid_prompt", prompt(prompt=None)),
    Row(400, "invalid_prompt", prompt(prompt=[])),
    Row(400, "invalid_prompt", prompt(prompt=["text"])),
    Row(400, "unsupported_content_block", prompt(prompt=[{"type": "image", "data": "", "mimeType": "image/png"}])),
    Row(400, "invalid_deadline_ms", prompt(deadlineMs=0)),
    Row(400, "invalid_event_detail_mode", prompt(eventDetailMode="some")),
    Row(
        400,
        "invalid_client_id",
        request("POST", "/session/S/prompt", body={"prompt": [TEXT]}, headers={"X-Qwen-Client-Id": "stranger"}),
        CLIENT,
    ),
    Row(
        400, "invalid_client_id", request("POST", "/session/S/cancel", headers={"X-Qwen-Client-Id": "stranger"}), CLIENT
    ),
    Row(400, "invalid_client_id", request("POST", "/session/S/cancel", headers={"X-Qwen-Client-Id": "no id"})),
    Row(
        400,
        "invalid_json",
        request("POST", "/session/S/prompt", data=b"{", headers={"Content-Type": "application/json"}),
    ),
    Row(400, "invalid_request", request("GET", "/session/x/status", raw_path=b"/session/%zz/status")),
    Row(401, "unauthorized", request("POST", "/session"), options={"tokens": {"api": TOKEN}}),
    Row(
        403,
        "invalid_host",
        request("POST", "/session", host="evil.example:4170"),
        {
            "received": ["evil.example:4170"],
            "expected": ["127.0.0.1:4170", "[::1]:4170", "host.docker.internal:4170", "localhost:4170"],
        },
    ),
    Row(403, "origin_not_allowed", request("POST", "/session", headers={"Origin": "http://evil.example"})),
    Row(403, "origin_not_allowed", request("POST", "/session", headers={"Origin": "null"})),
    Row(404, "session_not_found", request("POST", "/session/none/prompt", body={}), {"sessionId": "none"}),
    Row(404, "session_closing", closing, {"sessionId": "S"}),
    Row(404, "prompt_not_found", request("GET", "/session/S/turns/none"), {"sessionId": "S", "promptId": "none"}),
    Row(404, "not_found", request("GET", "/nowhere")),
    Row(
        413,
        "body_too_large",
        request("POST", "/session", data=b"x" * 3000),
        {"limit": 2000},
        options={"limits": {"max_body_bytes": 2000, "max_prompt_bytes": 1000}},
    ),
    Row(
        429,
        "rate_limit_exceeded",
        too_often,
        {"tier": "prompt", "retryAfterMs": 60_000},
        "60",
        options={"limits": {"prompts_per_minute": 1}},
    ),
    Row(
        429,
        "subscriber_limit_exceeded",
        too_many_readers,
        {"limit": 1},
        "5",
        options={"limits": {"max_subscribers_per_session": 1}},
    ),
    Row(
        503,
        "prompt_queue_full",
        full_queue,
        {"sessionId": "S", "limit": 2, "pendingCount": 2},
        "5",
        options={"limits": {"max_pending_prompts_per_session": 2}},
    ),
    Row(
        503,
        "session_limit_exceeded",
        request("POST", "/session", body={"sessionScope": "thread"}),
        {"limit": 1, "scope": "total"},
        "5",
        options={"limits": {"max_sessions": 1}},
    ),
    Row(503, "daemon_draining", draining, {"errorKind": "daemon_draining"}, "5"),
    # The protocol's generic errors, and those of its other routes
    Row(400, "invalid_content_length", request("POST", "/session", headers={"Content-Length": "x"})),
    Row(
        415,
        "unsupported_content_encoding",
        request("POST", "/session", data=b"x", headers={"Content-Encoding": "gzip"}),
    ),
    Row(405, "method_not_allowed", request("PUT", "/session")),
    Row(500, "internal_error", our_own_fault),
    Row(
        503,
        "too_many_requests_in_flight",
        too_many_at_once,
        {"limit": 1},
        "1",
        options={"server": {"max_in_flight": 1}},
    ),
    Row(400, "invalid_session_scope", request("POST", "/session", body={"sessionScope": "both"})),
    Row(400, "invalid_session_id", request("POST", "/session", body={"sessionId": "none"})),
    Row(400, "invalid_cwd", request("POST", "/session", body={"cwd": "here"})),
    Row(400, "invalid_model_service_id", request("POST", "/session", body={"modelServiceId": 1})),
    Row(
        404,
        "unknown_model",
        request("POST", "/session", body={"modelServiceId": "none"}),
        {"model": "none", "models": ["chat"]},
    ),
    Row(
        409,
        "session_id_conflict",
        taken_id,
        {"sessionId": TAKEN, "conflict": "live", "liveWorkspaceCwd": "/"},
    ),
    Row(400, "invalid_live_replay_mode", request("POST", "/session/S/load", body={"liveReplayMode": "some"})),
    Row(
        400, "invalid_compacted_replay_mode", request("POST", "/session/S/resume", body={"compactedReplayMode": "some"})
    ),
    Row(
        400,
        "invalid_transcript_limit",
        request("POST", "/session/S/load", body={"historyPageSize": 501}),
        {"maxLimit": 500},
    ),
    Row(400, "branch_point_invalid", request("POST", "/session/S/branch", body={"atRecordId": "r"})),
    Row(409, "branch_while_prompt_active", branch_behind_a_long_prompt, {"sessionId": "S"}, "5"),
    Row(
        400,
        "invalid_metadata",
        request("PATCH", "/session/S/metadata", body={"displayName": ""}),
        {"field": "displayName"},
    ),
    Row(400, "invalid_model_id", request("POST", "/session/S/model", body={})),
    Row(400, "invalid_cursor", request("GET", "/workspace///sessions", query=b"cursor=x")),
    Row(400, "invalid_max_queued", request("GET", "/session/S/events", query=b"maxQueued=15")),
    Row(400, "invalid_prompt_text", prompt(prompt=[{"type": "text", "text": "\0"}])),
    Row(
        413,
        "prompt_too_large",
        prompt(prompt=[{"type": "text", "text": "x" * 1001}]),
        {"limit": 1000, "size": 1001},
        options={"limits": {"max_prompt_bytes": 1000}},
    ),
]
ELSEWHERE = {"governor_not_running"}
"""Under another server only: test_process."""


def test_every_code_of_these_routes_has_a_row() -> None:
    """By the OpenAPI document; what the server refuses before the application is asked is of tests/serving."""
    tags = {"sessions", "prompts", "service"}
    codes = {code for operation in OPERATIONS if operation.tag in tags for code in operation.codes()}
    assert codes - set(BELOW) - ELSEWHERE == {row.code for row in ROWS} - {"method_not_allowed"}


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_a_refusal(row: Row, autojump_clock: MockClock) -> None:
    async with service(**row.options) as up:
        session = up.governor.create_session().id
        answer = await row.get(up, session)
        assert (answer.status, answer.code) == (row.status, row.code)
        shown = {name: session if value == "S" else value for name, value in row.fields.items()}
        got = {name: value for name, value in answer.json.items() if name not in {"error", "code"}}
        assert got == shown
        assert answer.headers.get("retry-after") == row.retry_after


async def end_by_close(up: Service, session: str) -> None:
    await up.ask("DELETE", f"/session/{session}")


async def end_by_drain(up: Service, session: str) -> None:
    up.governor.drain()


async def end_by_nothing(up: Service, session: str) -> None:
    pass


@pytest.mark.parametrize(
    ("code", "plan", "end"),
    [
        ("prompt_deadline_exceeded", Plan(seconds=60), end_by_nothing),
        ("session_closed", Plan(seconds=60), end_by_close),
        ("daemon_shutdown", Plan(seconds=60), end_by_drain),
        ("backend_answered_error", Plan(status=500, texts=("ill",)), end_by_nothing),
        ("backend_connection_lost", Plan(seconds=1, breaks=Break.AFTER_DELIVERY), end_by_nothing),
        ("backend_unavailable", Plan(breaks=Break.BEFORE_DELIVERY), end_by_nothing),
        ("backend_protocol_error", Plan(body=b"no JSON"), end_by_nothing),
        ("backend_timeout", Plan(seconds=8), end_by_nothing),
    ],
)
async def test_an_accepted_prompt_that_fails(
    code: str, plan: Plan, end: Callable[[Service, str], Awaitable[None]], autojump_clock: MockClock
) -> None:
    """(202 then) `turn_error`, its code a string; running and waiting prompts alike where the session ends."""
    async with service(limits={"prompt_deadline_ms": 10_000}, model={"timeout_ms": 5_000}) as up:
        up.world.next_plans += [plan]
        session = await up.new_session()
        async with listening(up, session) as events:
            deadline = {"deadlineMs": 3_000} if code == "prompt_deadline_exceeded" else {}
            running = (await up.prompt(session, "60", **deadline)).json["promptId"]
            waiting = (await up.prompt(session, "0")).json["promptId"]
            await trio.sleep(2)
            await end(up, session)
            told = (await events.until("turn_error"))[-1]["data"]
            assert (told["promptId"], told["code"]) == (running, code)
            assert isinstance(told["message"], str)
            assert told["sessionId"] == session
            if end is not end_by_nothing:
                told = (await events.until("turn_error"))[-1]["data"]
                assert (told["promptId"], told["code"]) == (waiting, code)
