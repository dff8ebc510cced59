"""What a caller sends never decides whom the governor calls, nor what it says there (docs/security.md)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import h11
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.hardened.request import path_of
from api.inference import _TO_BACKEND
from governor.errors import GovernorError
from governor.triton.wire import WireRequest
from tests.api.harness import AsgiExchange, Service, service
from tests.shell.world import Plan
from tests.triton.peer import open_peer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ALLOWED = {name.decode() for name in _TO_BACKEND}
TARGET = re.compile(r"/v2/models/m(/versions/[0-9]+)?/(infer|generate|generate_stream)(\?[!-~]*)?")
HOSTILE = (
    "..", ".", "chat/../../x", "chat\r\nX: y", "chat HTTP/1.1\r\nHost: evil\r\n\r\nGET /", "m/infer?x=/../",
    "//evil.example", "http://evil.example/", "chat%0d%0aX: y", "chat;param", "chat#fragment", "chat\x00",
    "@evil.example", "chat?a=b", "chat/versions/1/versions/2", "M", "chat\u2028",
)  # fmt: skip
part = st.one_of(st.text(max_size=30), st.sampled_from(HOSTILE))
requests = st.fixed_dictionaries(
    {
        "model": st.one_of(part, st.sampled_from(["chat", "m"])),
        "version": st.one_of(st.none(), part, st.just("1")),
        "kind": st.sampled_from(["infer", "generate", "generate_stream", "../load", "infer/../x", "infer\r\nX: y"]),
        "query": st.binary(max_size=40),
        "value": st.text(st.characters(max_codepoint=255), max_size=40),
    }
)


def run(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(hostile=st.lists(requests, min_size=20, max_size=30))
def test_whatever_the_path_the_query_and_the_headers_only_a_configured_model_is_called(
    hostile: list[dict[str, Any]],
) -> None:
    """Either nothing is sent, or one request to the configured model with nothing in it that could be another one."""

    async def ask() -> None:
        async with service() as up:
            for number, sent in enumerate([*hostile, INNOCENT]):
                await ask_one(up, **sent)
                assert len(up.world.wires) <= number + 1
            assert up.world.wires, "the innocent one came through"
            for wire in up.world.wires:
                assert TARGET.fullmatch(wire.path), wire.path
                assert {name.lower() for name, _ in wire.headers} <= ALLOWED
                for name, value in wire.headers:
                    assert not set("\r\n\0") & set(name + value), (name, value)

    run(ask)


INNOCENT: dict[str, Any] = {"model": "chat", "version": "1", "kind": "infer", "query": b"a=b", "value": "x"}


async def ask_one(up: Service, model: str, version: str | None, kind: str, query: bytes, value: str) -> None:
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version is not None else "") + f"/{kind}"
    names = (
        "X-Request-Id", "traceparent", "tracestate", "X-Forwarded-Host", "Connection", "Transfer-Encoding",
        "Content-Encoding", "X-Evil", "Accept",
    )  # fmt: skip
    up.world.next_plans.append(Plan(body=b"{}"))
    raw = quote(path, safe="/%", errors="replace").encode()
    headers = dict.fromkeys(names, value)
    await AsgiExchange(up.app, "POST", path, data=b"{}", headers=headers, query=query, raw_path=raw).run()


@settings(max_examples=20, deadline=None)
@given(text=st.text(max_size=200))
def test_a_prompts_text_is_data_and_nothing_else(text: str) -> None:
    async def ask() -> None:
        async with service() as up:
            session = await up.new_session()
            up.world.next_plans.append(Plan())
            answer = await up.prompt(session, text)
            await trio.sleep(1)
            if answer.status != 202:
                assert not up.world.wires
                return
            [wire] = up.world.wires
            assert wire.path == "/v2/models/m/generate"
            sent = json.loads(bytes(wire.body))
            assert sent["text_input"] == text
            assert set(sent) <= {"text_input", "id", "parameters"}

    run(ask)


@settings(max_examples=60, deadline=None)
@given(path=st.text(max_size=60), name=st.text(max_size=20), value=st.text(max_size=40), body=st.binary(max_size=100))
def test_what_reaches_the_socket_is_one_request(path: str, name: str, value: str, body: bytes) -> None:
    """Request smuggling: the bytes are parsed by somebody else's parser and must be exactly one request."""

    async def send() -> None:
        try:
            wire = WireRequest(method="POST", path=f"/{path}", headers=((name, value),), body=body)
        except GovernorError:
            return
        async with open_peer() as peer, trio.open_nursery() as nursery:
            nursery.start_soon(_ask, peer.lane(), wire)
            connection = await peer.accept()
            raw = await connection.read_request()
            parser = h11.Connection(h11.SERVER)
            parser.receive_data(raw)
            events: list[Any] = []
            while not isinstance(events[-1] if events else None, h11.EndOfMessage):
                event = parser.next_event()
                assert event is not h11.NEED_DATA, "the request has no end"
                events.append(event)
            [request] = [event for event in events if isinstance(event, h11.Request)]
            assert request.target == f"/{path}".encode()
            assert b"".join(bytes(event.data) for event in events if isinstance(event, h11.Data)) == body
            assert parser.trailing_data[0] == b""
            nursery.cancel_scope.cancel()

    trio.run(send)


async def _ask(lane: Any, wire: WireRequest) -> None:
    try:
        await lane.fetch(wire, max_bytes=1000, timeout_ms=5_000)
    except GovernorError:
        pass
    finally:
        lane.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_and_is_not_followed(status: int) -> None:
    """SSRF: whoever answers for Triton cannot send the governor anywhere else."""
    async with open_peer() as evil, open_peer() as peer, trio.open_nursery() as nursery:
        called = trio.Event()

        async def watch() -> None:
            await evil.accept()
            called.set()

        async def answer() -> None:
            connection = await peer.accept()
            await connection.read_request()
            head = f"HTTP/1.1 {status} Elsewhere\r\nLocation: {evil.url}/v2\r\nContent-Length: 0\r\n\r\n"
            await connection.send(head.encode())

        nursery.start_soon(watch)
        nursery.start_soon(answer)
        lane = peer.lane()
        fetched = await lane.fetch(WireRequest(method="GET", path="/v2"), max_bytes=1000, timeout_ms=5_000)
        assert fetched.status == status
        with trio.move_on_after(0.2):
            await called.wait()
        assert not called.is_set()
        lane.close()
        nursery.cancel_scope.cancel()


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """SSRF: whom it calls is in its configuration alone."""
    async with open_peer() as proxy, open_peer() as peer, trio.open_nursery() as nursery:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)

        async def answer() -> None:
            connection = await peer.accept()
            await connection.read_request()
            await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        nursery.start_soon(answer)
        lane = peer.lane()
        assert (await lane.fetch(WireRequest(method="GET", path="/v2"), max_bytes=10, timeout_ms=5_000)).status == 200
        lane.close()


def test_the_raw_path_of_an_absolute_target_names_no_other_host() -> None:
    """`GET http://evil/v2/... HTTP/1.1` is read as its path (RFC 9112, 3.2.2); the host in it decides nothing."""
    assert path_of(b"GET", b"http://evil.example/v2/models/m/infer?a=b") == b"/v2/models/m/infer?a=b"
    for target in (b"//evil.example/v2", b"evil.example:80", b"ftp://evil.example/v2", b"http://"):
        path = path_of(b"GET", target)
        assert path is None or path.startswith(b"/"), target


async def test_a_query_that_is_no_text_is_the_callers_fault(autojump_clock: trio.testing.MockClock) -> None:
    """The server lets none through; under another one it would be a 500 with a traceback for each."""
    async with service() as up:
        for path in ("/v2/models/chat/infer", "/session", "/no/such/route"):
            answer = await up.ask("POST", path, data=b"{}", query=b"a=\xdc\xb2")
            assert (answer.status, answer.code) == (400, "invalid_request")
        assert not up.world.wires
