"""`/acp`: what each method does, and what becomes of a message that is none (A4, protocol 6)."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from governor.config import ModelConfig
from tests.api.acp import Acp, connect
from tests.api.harness import Service, service
from tests.shell.world import MODEL

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.api.harness import Answer

TOKEN = "0123456789abcdef"
PAGE = (Path(__file__).parents[2] / "docs" / "acp.md").read_text()
NOT_OFFERED = PAGE.split("\n## Not offered\n", 1)[1].splitlines()
OTHER = ModelConfig(name="other", triton_model=MODEL, backend="b", slots=1, kind="generate")


async def result(acp: Acp, method: str, params: object = None) -> dict[str, Any]:
    """What a request is answered with on the connection's own stream."""
    async with acp.stream() as own:
        request_id = await acp.send(method, params)
        return await own.response(request_id)


async def result_of(acp: Acp, session_id: str, method: str, **params: object) -> dict[str, Any]:
    """The same on the session's stream."""
    async with acp.stream(session_id) as stream:
        request_id = await acp.send(method, {"sessionId": session_id, **params})
        return await stream.response(request_id)


def rpc_error(answer: Answer) -> tuple[int, int, str]:
    """Status, code and kind of a refusal that comes at once."""
    error = answer.json["error"]
    assert answer.json["jsonrpc"] == "2.0"
    assert isinstance(error["message"], str)
    return answer.status, error["code"], error["data"]["errorKind"]


@pytest.mark.parametrize("wanted", [1, 0, 2, None, "new"])
async def test_initialize_opens_a_connection(wanted: object, autojump_clock: MockClock) -> None:
    async with service() as up:
        message = {"jsonrpc": "2.0", "id": "a", "method": "initialize", "params": {"protocolVersion": wanted}}
        answer = await up.ask("POST", "/acp", body=message)
        assert answer.status == 200
        connection = answer.headers["acp-connection-id"]
        uuid.UUID(connection)
        assert answer.json["id"] == "a"
        told = answer.json["result"]
        assert told["protocolVersion"] == 1
        assert told["agentCapabilities"]["loadSession"] is True
        assert told["agentCapabilities"]["promptCapabilities"] == {
            "image": False, "audio": False, "embeddedContext": False,
        }  # fmt: skip
        meta = told["agentCapabilities"]["_meta"]["qwen"]
        assert meta == {"connectionId": connection, "workspaceCwd": "/", "methods": ["_qwen/session/heartbeat"]}


async def test_authenticate_has_nothing_to_do(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        assert (await result(acp, "authenticate", {"methodId": "x"}))["result"] == {}


async def test_a_new_session_is_the_connections_own(autojump_clock: MockClock) -> None:
    async with service(more_models=(OTHER,)) as up:
        acp = await connect(up)
        first = (await result(acp, "session/new", {"cwd": "/tmp", "mcpServers": []}))["result"]
        second = (await result(acp, "session/new", {"modelServiceId": "other"}))["result"]
        assert first["sessionId"] != second["sessionId"]
        session = up.governor.sessions[second["sessionId"]]
        assert session.served.config.name == "other"
        assert second["models"] == {
            "currentModelId": "other",
            "availableModels": [{"modelId": "chat", "name": "chat"}, {"modelId": "other", "name": "other"}],
        }
        assert second["clientId"] in session.clients
        assert (second["attached"], second["lastEventId"]) == (False, 0)
        assert second["eventEpoch"] == session.log.epoch


async def test_a_new_session_may_have_an_id_of_the_clients_choice(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp, wanted = await connect(up), str(uuid.uuid4())
        params = {"_meta": {"qwen-code/sessionId": wanted.upper()}}
        assert (await result(acp, "session/new", params))["result"]["sessionId"] == wanted
        error = (await result(acp, "session/new", params))["error"]
        assert (error["code"], error["data"]["errorKind"]) == (-32602, "session_id_conflict")


async def test_load_attaches_and_tells_everything_again_and_resume_what_follows(autojump_clock: MockClock) -> None:
    async with service() as up:
        session_id = await up.new_session()
        await up.prompt(session_id, "0.1 before")
        loading, resuming = await connect(up), await connect(up)
        async with up_and_quiet(up, session_id):
            loaded = (await result(loading, "session/load", {"sessionId": session_id, "cwd": "/"}))["result"]
            resumed = (await result(resuming, "session/resume", {"sessionId": session_id}))["result"]
        assert (loaded["attached"], loaded["lastEventId"]) == (True, 0)
        assert (resumed["attached"], resumed["lastEventId"]) == (True, 3)
        assert loaded["models"]["currentModelId"] == "chat"
        await up.prompt(session_id, "0.1 after")
        async with loading.stream(session_id) as stream:
            texts: list[str] = []
            while len(texts) < 2:
                update = (await stream.notified("user_message_chunk"))["update"]
                texts.append(update["content"]["text"])
            assert texts == ["0.1 before", "0.1 after"]
        async with resuming.stream(session_id) as stream:
            assert (await stream.notified("user_message_chunk"))["update"]["content"]["text"] == "0.1 after"


class up_and_quiet:  # noqa: N801  # reads like the function that it could be
    """Waits until nothing is pending in a session."""

    def __init__(self, up: Service, session_id: str) -> None:
        self.session = up.governor.sessions[session_id]

    async def __aenter__(self) -> None:
        await self.session.after_pending()

    async def __aexit__(self, *_: object) -> None:
        pass


async def test_list_pages_through_all_sessions_the_newest_first(autojump_clock: MockClock) -> None:
    async with service() as up:
        ids = [await up.new_session() for _ in range(3)]
        acp = await connect(up)
        page = (await result(acp, "session/list", {"cwd": "/", "_meta": {"size": 2}}))["result"]
        assert [line["sessionId"] for line in page["sessions"]] == [ids[2], ids[1]]
        assert {"cwd", "title", "hasActivePrompt", "clientCount"} <= set(page["sessions"][0])
        rest = (await result(acp, "session/list", {"cursor": page["nextCursor"]}))["result"]
        assert [line["sessionId"] for line in rest["sessions"]] == [ids[0]]
        assert "nextCursor" not in rest


@pytest.mark.parametrize("params", [{"cursor": "x"}, {"cursor": 1}, {"cwd": "not absolute"}, {"cwd": 1}])
async def test_a_list_by_something_that_is_none_is_refused(params: object, autojump_clock: MockClock) -> None:
    async with service() as up:
        error = (await result(await connect(up), "session/list", params))["error"]
        assert error["code"] == -32602
        assert error["data"]["errorKind"] in {"invalid_cursor", "invalid_cwd"}


async def test_close_ends_a_session_for_everybody(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream(session_id) as stream:
            assert (await result(acp, "session/close", {"sessionId": session_id}))["result"] == {}
            assert (await stream.notified("session_closed"))["data"]["reason"] == "client_close"
            assert await stream.next() is None
        assert session_id not in up.governor.sessions
        error = (await result(acp, "session/close", {"sessionId": session_id}))["error"]
        assert (error["code"], error["data"]["errorKind"]) == (-32602, "session_not_found")


async def test_the_model_is_switched_or_the_failure_told(autojump_clock: MockClock) -> None:
    async with service(more_models=(OTHER,)) as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        told = await result_of(acp, session_id, "session/set_model", modelId="other")
        assert told["result"] == {"modelId": "other"}
        assert up.governor.sessions[session_id].served.config.name == "other"
        error = (await result_of(acp, session_id, "session/set_model", modelId="none"))["error"]
        assert (error["code"], error["data"]["errorKind"]) == (-32602, "unknown_model")
        assert error["data"]["httpStatus"] == 404
        error = (await result_of(acp, session_id, "session/set_model"))["error"]
        assert (error["code"], error["data"]["errorKind"]) == (-32602, "invalid_model_id")


async def test_a_heartbeat_keeps_a_session(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        told = (await result(acp, "_qwen/session/heartbeat", {"sessionId": session_id}))["result"]
        assert told["sessionId"] == session_id
        assert told["clientId"] in up.governor.sessions[session_id].clients
        assert isinstance(told["lastSeenAt"], int)


@pytest.mark.parametrize(
    "method", ["session/close", "session/prompt", "session/cancel", "session/set_model", "_qwen/session/heartbeat"]
)
async def test_a_session_must_be_owned(method: str, autojump_clock: MockClock) -> None:
    """One connection neither drives nor hears what another one has, until it loads it."""
    async with service() as up:
        acp, session_id = await connect(up), await up.new_session()
        body = {"prompt": [{"type": "text", "text": "0"}], "modelId": "chat"}
        kinds = []
        for sent in (session_id, "none", 1, None):
            error = (await result(acp, method, {"sessionId": sent, **body}))["error"]
            assert error["code"] == -32602
            kinds.append(error["data"]["errorKind"])
        assert kinds == ["session_not_owned", "session_not_found", "invalid_session_id", "invalid_session_id"]
        session = up.governor.sessions[session_id]
        assert (session.pending_count, session.log.last_id, session.closed) == (0, 0, False)


async def test_the_header_must_name_the_same_session(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream() as own:
            sent = await acp.send("session/close", {"sessionId": session_id}, Acp_Session_Id="another")
            error = (await own.response(sent))["error"]
        assert (error["code"], error["data"]["errorKind"]) == (-32602, "session_mismatch")
        assert session_id in up.governor.sessions


async def test_an_unknown_method_is_told(autojump_clock: MockClock) -> None:
    """Also those of which docs/acp.md says that they are not offered."""
    not_offered = [name for row in NOT_OFFERED for name in re.findall(r"`(session/\w+)`", row.split(" | ")[0])]
    assert len(not_offered) == 3
    async with service() as up:
        acp = await connect(up)
        for method in (*not_offered, "_qwen/workspace", "nothing", "initialise"):
            error = (await result(acp, method))["error"]
            assert (error["code"], error["data"]["errorKind"]) == (-32601, "method_not_found")


RPC = {"jsonrpc": "2.0"}
MALFORMED: list[tuple[bytes | object, tuple[int, int, str], object]] = [
    (b"{", (400, -32700, "invalid_json"), None),
    (b"", (400, -32700, "invalid_json"), None),
    (b"\xff", (400, -32700, "invalid_json"), None),
    (b'{"jsonrpc": "2.0", "id": NaN, "method": "x"}', (400, -32700, "invalid_json"), None),
    (b"[" * 100_000, (400, -32700, "invalid_json"), None),
    ([{**RPC, "id": 1, "method": "session/list"}], (501, -32600, "batch_not_supported"), None),
    ([], (501, -32600, "batch_not_supported"), None),
    (1, (400, -32600, "invalid_message"), None),
    ({}, (400, -32600, "invalid_message"), None),
    ({"jsonrpc": "1.0", "id": 1, "method": "session/list"}, (400, -32600, "invalid_message"), 1),
    ({**RPC, "id": 1}, (400, -32600, "invalid_message"), 1),
    ({**RPC, "id": 1, "method": 2}, (400, -32600, "invalid_message"), 1),
    ({**RPC, "id": None, "method": "session/list"}, (400, -32600, "invalid_message"), None),
    ({**RPC, "id": True, "method": "session/list"}, (400, -32600, "invalid_message"), None),
    ({**RPC, "id": 1.5, "method": "session/list"}, (400, -32600, "invalid_message"), None),
    ({**RPC, "id": {}, "method": "session/list"}, (400, -32600, "invalid_message"), None),
    ({**RPC, "id": "x" * 129, "method": "session/list"}, (400, -32600, "invalid_message"), None),
    ({**RPC, "id": 2**53, "method": "session/list"}, (400, -32600, "invalid_message"), None),
    ({**RPC, "id": 1, "result": {}, "error": {}}, (400, -32600, "invalid_message"), 1),
    ({**RPC, "id": 1, "method": "session/list", "params": []}, (400, -32602, "invalid_params"), 1),
    ({**RPC, "id": 1, "method": "session/list", "params": None}, (400, -32602, "invalid_params"), 1),
    ({**RPC, "method": "session/prompt"}, (400, -32602, "request_id_required"), None),
    ({**RPC, "method": "session/new"}, (400, -32602, "request_id_required"), None),
    ({**RPC, "method": "initialize"}, (400, -32602, "request_id_required"), None),
    ({**RPC, "method": "session/cancel"}, (400, -32602, "invalid_session_id"), None),
    ({**RPC, "method": "session/cancel", "params": {"sessionId": "x"}}, (404, -32602, "session_not_found"), None),
]


@pytest.mark.parametrize(("sent", "expected", "told_id"), MALFORMED)
async def test_what_is_no_proper_message_is_refused_at_once(
    sent: object, expected: tuple[int, int, str], told_id: object, autojump_clock: MockClock
) -> None:
    async with service() as up:
        acp = await connect(up)
        if isinstance(sent, bytes):
            headers = {**acp.headers, "Content-Type": "application/json"}
            answer = await up.ask("POST", "/acp", data=sent, headers=headers)
        else:
            answer = await acp.post(sent)
        assert rpc_error(answer) == expected
        assert answer.json["id"] == told_id
        assert up.app.acp.statistics()["pendingRequests"] == 0


@pytest.mark.parametrize(
    "message",
    [
        {**RPC, "method": "notifications/unknown"},
        {**RPC, "id": "x", "result": {}},
        {**RPC, "id": 5, "error": {"code": 1, "message": "x"}},
    ],
)
async def test_what_means_nothing_here_is_passed_over(message: object, autojump_clock: MockClock) -> None:
    """A notification that is not known, and responses to requests that were never sent."""
    async with service() as up:
        acp = await connect(up)
        answer = await acp.post(message)
        assert (answer.status, answer.body) == (202, b"")


async def test_an_id_that_is_pending_cannot_be_used_again(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        message = {
            **RPC, "id": "same", "method": "session/prompt",
            "params": {"sessionId": session_id, "prompt": [{"type": "text", "text": "1"}]},
        }  # fmt: skip
        assert (await acp.post(message)).status == 202
        answer = await acp.post(message)
        assert rpc_error(answer) == (400, -32600, "duplicate_request_id")
        assert up.governor.sessions[session_id].pending_count == 1
        async with acp.stream(session_id) as stream:
            assert (await stream.response("same"))["result"]["stopReason"] == "end_turn"
            await stream.notified("turn_complete")
            stream.seen.clear()
            assert (await acp.post(message)).status == 202, "it has had its response, so its id is free"
            assert (await stream.response("same"))["result"]["stopReason"] == "end_turn"


@pytest.mark.parametrize(
    ("method", "headers", "expected"),
    [
        ("GET", {"Accept": "application/json"}, (406, "not_acceptable")),
        ("GET", {"Accept": "text/event-stream"}, (400, "missing_connection_id")),
        ("GET", {"Accept": "text/event-stream", "Acp-Connection-Id": "x"}, (404, "connection_not_found")),
        ("DELETE", {}, (400, "missing_connection_id")),
    ],
)
async def test_a_stream_that_cannot_be_has_a_plain_error(
    method: str, headers: dict[str, str], expected: tuple[int, str], autojump_clock: MockClock
) -> None:
    async with service() as up:
        answer = await up.ask(method, "/acp", headers=headers)
        assert (answer.status, answer.code) == expected


async def test_a_session_stream_needs_the_session(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp, foreign = await connect(up), await up.new_session()
        for session_id, expected in ((foreign, (403, "session_not_owned")), ("none", (404, "session_not_found"))):
            headers = {**acp.headers, "Accept": "text/event-stream", "Acp-Session-Id": session_id}
            answer = await up.ask("GET", "/acp", headers=headers)
            assert (answer.status, answer.code) == expected
        assert up.governor.sessions[foreign].log.subscriber_count == 0


async def test_a_message_needs_its_connection_and_its_type(autojump_clock: MockClock) -> None:
    async with service() as up:
        message = {**RPC, "id": 7, "method": "session/list"}
        assert rpc_error(await up.ask("POST", "/acp", body=message)) == (400, -32600, "missing_connection_id")
        unknown = await up.ask("POST", "/acp", body=message, headers={"Acp-Connection-Id": "x"})
        assert rpc_error(unknown) == (404, -32600, "connection_not_found")
        assert unknown.json["id"] == 7
        for content_type in ("text/plain", ""):
            answer = await up.ask("POST", "/acp", body=message, headers={"Content-Type": content_type})
            assert rpc_error(answer) == (415, -32600, "unsupported_media_type")
        packed = await up.ask("POST", "/acp", body=message, headers={"Content-Encoding": "gzip"})
        assert rpc_error(packed) == (415, -32600, "unsupported_content_encoding")


async def test_the_gates_are_those_of_every_route(autojump_clock: MockClock) -> None:
    message = {**RPC, "id": 1, "method": "initialize"}
    limits = {"max_body_bytes": 2000, "max_prompt_bytes": 1000}
    async with service(tokens={"api": TOKEN}, limits=limits) as up:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert (await up.ask("POST", "/acp", body=message)).code == "unauthorized"
        assert (await up.ask("DELETE", "/acp")).code == "unauthorized"
        assert (await up.ask("GET", "/acp")).code == "unauthorized"
        assert (await up.ask("POST", "/acp", body=message, headers=bearer, host="evil:4170")).code == "invalid_host"
        foreign = {**bearer, "Origin": "http://evil.example"}
        assert (await up.ask("POST", "/acp", body=message, headers=foreign)).code == "origin_not_allowed"
        large = await up.ask("POST", "/acp", data=b"x" * 3000, headers=bearer)
        assert (large.status, large.code) == (413, "body_too_large")
        acp = await connect(up, **bearer)
        session_id = await acp.new_session()
        error = (await result_of(acp, session_id, "session/prompt", prompt=[{"type": "text", "text": "x" * 1001}]))[
            "error"
        ]
        assert (error["code"], error["data"]) == (
            -32602, {"errorKind": "prompt_too_large", "limit": 1000, "size": 1001, "httpStatus": 413},
        )  # fmt: skip
        assert len(up.app.acp) == 1


async def test_each_kind_of_method_has_its_rate(autojump_clock: MockClock) -> None:
    limits = {"prompts_per_minute": 1, "mutations_per_minute": 3, "reads_per_minute": 1}
    async with service(limits=limits) as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        prompt = {"sessionId": session_id, "prompt": [{"type": "text", "text": "0"}]}
        refused = []
        for method, params in (
            ("session/prompt", prompt), ("session/prompt", prompt), ("session/list", {}), ("session/list", {}),
            ("session/set_model", {}), ("session/set_model", {}), ("_qwen/session/heartbeat", {}),
        ):  # fmt: skip
            answer = await acp.post({**RPC, "id": str(uuid.uuid4()), "method": method, "params": params})
            if answer.status != 202:
                assert rpc_error(answer) == (429, -32603, "rate_limit_exceeded")
                assert int(answer.headers["retry-after"]) > 0
                refused.append(answer.json["error"]["data"]["tier"])
        assert refused == ["prompt", "read", "mutation"]
        assert up.governor.sessions[session_id].pending_count <= 1


async def test_the_number_of_connections_is_bounded(autojump_clock: MockClock) -> None:
    async with service() as up:
        opened = [await connect(up) for _ in range(64)]
        answer = await up.ask("POST", "/acp", body={**RPC, "id": 3, "method": "initialize"})
        assert rpc_error(answer) == (503, -32603, "connection_limit_exceeded")
        assert (answer.headers["retry-after"], answer.json["error"]["data"]["retryable"]) == ("5", True)
        assert (await opened[0].delete()).status == 202
        await connect(up)


async def test_whoever_reads_nothing_can_ask_only_so_much(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        for _ in range(256):
            await acp.send("authenticate")
        answer = await acp.post({**RPC, "id": "more", "method": "authenticate"})
        assert rpc_error(answer) == (503, -32603, "unread_responses_exceeded")
        async with acp.stream() as own:
            for number in range(1, 257):
                await own.response(number)
            await own.response(await acp.send("authenticate"))


async def test_a_full_house_of_sessions_is_told_as_the_protocol_does(autojump_clock: MockClock) -> None:
    async with service(limits={"max_sessions": 1}) as up:
        acp = await connect(up)
        await acp.new_session()
        error = (await result(acp, "session/new"))["error"]
        assert error["code"] == -32603
        assert error["data"] == {
            "errorKind": "session_limit_exceeded", "limit": 1, "scope": "total", "retryable": True,
        }  # fmt: skip
        metrics = (await up.ask("GET", "/metrics")).body.decode()
        assert 'vig_refusals_total{reason="session_limit_exceeded"} 1.0' in metrics, "it is counted as on REST"


async def test_a_fault_in_a_method_is_one_response_and_no_500(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service() as up:
        acp = await connect(up)
        monkeypatch.setattr(up.app.shared_sessions, "open", lambda _wanted: 1 / 0)
        error = (await result(acp, "session/new"))["error"]
        assert error == {"code": -32603, "message": "Internal error", "data": {"errorKind": "internal_error"}}
        assert (await result(acp, "authenticate"))["result"] == {}


async def test_the_daemons_status_counts_connections_and_streams(autojump_clock: MockClock) -> None:
    async with service() as up:
        acp = await connect(up)
        session_id = await acp.new_session()
        async with acp.stream(), acp.stream(session_id):
            transport = (await up.ask("GET", "/daemon/status")).json["runtime"]["transport"]
            assert transport["restSseActive"] == 0
            acp_told = transport["acp"]
            assert (acp_told["enabled"], acp_told["connections"]) == (True, 1)
            assert (acp_told["connectionStreams"], acp_told["sessionStreams"], acp_told["sseStreams"]) == (1, 1, 2)
