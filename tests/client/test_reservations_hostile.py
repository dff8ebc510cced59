"""C2, C3 against a server that does everything wrong: whatever happens, the reservation is released, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from governor.client import (
    DaemonConnectionError,
    DaemonHttpError,
    DaemonPendingPromptLimitError,
    DaemonProtocolError,
    DaemonStreamError,
    DaemonTurnError,
    SseFramingError,
)
from tests.client.fake import (
    SESSION,
    FakeServer,
    Respond,
    Wire,
    accept,
    chunk,
    complete,
    fake_server,
    frame,
    in_turn,
    refuse,
    reset,
    tell,
)
from tests.client.flavours import Flavour, each_flavour

if TYPE_CHECKING:
    from tests.client.fake import Request


def truncated(_: Request, wire: Wire) -> None:
    """A 202 that says it is longer than it is."""
    wire.send(b'HTTP/1.1 202 Accepted\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"promptId": "p')
    wire.close()


def numbered() -> Respond:
    """A 202 for each prompt, each with an id of its own."""
    return in_turn(*(accept(f"p{number}") for number in range(20)))


def text(status: int, content: bytes) -> Respond:
    return lambda _, wire: wire.answer(status, content)


@dataclass(frozen=True)
class Case:
    """What the server does with a prompt and its stream, and what the caller gets of it."""

    name: str
    expected: type[Exception] | str
    prompt: Respond | None = None
    events: Respond | None = None
    fields: tuple[tuple[str, object], ...] = ()
    silence_s: float = 5.0
    timeout_s: float | None = None


FULL = {"error": "full", "code": "prompt_queue_full", "sessionId": SESSION, "limit": 5, "pendingCount": 5}
CASES = (
    Case("connection_reset", DaemonConnectionError, prompt=reset, fields=(("delivered", True),)),
    Case("truncated_202", DaemonConnectionError, prompt=truncated),
    Case("202_that_is_no_json", DaemonProtocolError, prompt=text(202, b'{"promptId": "p1"')),
    Case("202_that_is_nested_too_deeply", DaemonProtocolError, prompt=text(202, b"[" * 100_000)),
    Case("202_without_a_prompt_id", DaemonProtocolError, prompt=refuse(202, {"lastEventId": 0})),
    Case("202_that_is_a_list", DaemonProtocolError, prompt=refuse(202, [])),
    Case("202_without_a_body", DaemonProtocolError, prompt=refuse(202, None)),
    Case("202_without_a_cursor", "end_turn", prompt=accept(last_event_id=None, epoch=None)),
    Case("legacy_200", "end_turn", prompt=refuse(200, {"stopReason": "end_turn"})),
    Case("legacy_200_that_is_no_json", DaemonProtocolError, prompt=text(200, b"<html>")),
    Case("503_queue_full", DaemonPendingPromptLimitError, prompt=refuse(503, FULL, Retry_After="5"),
         fields=(("sent", True), ("limit", 5), ("pending_count", 5), ("session_id", SESSION))),
    Case("503_queue_full_that_says_no_more", DaemonPendingPromptLimitError,
         prompt=refuse(503, {"code": "prompt_queue_full"}),
         fields=(("sent", True), ("limit", 0), ("pending_count", 0), ("session_id", SESSION))),
    Case("503_draining", DaemonHttpError,
         prompt=refuse(503, {"error": "x", "code": "daemon_draining"}, Retry_After="5"),
         fields=(("status", 503), ("code", "daemon_draining"), ("retry_after_s", 5.0))),
    Case("503_that_is_no_json", DaemonHttpError, prompt=text(503, b"<html>busy</html>"),
         fields=(("status", 503), ("code", None), ("body", "<html>busy</html>"))),
    Case("503_busy_again_and_again", DaemonHttpError,
         prompt=refuse(503, {"error": "x", "code": "too_many_requests_in_flight"}), fields=(("status", 503),)),
    Case("404", DaemonHttpError, prompt=refuse(404, {"error": "x", "code": "session_not_found"})),
    Case("redirect", DaemonHttpError, prompt=refuse(307, None, Location="http://127.0.0.1:1/")),
    Case("turn_error", DaemonTurnError, events=tell(frame(1, "turn_error", promptId="p1", message="m", code="c")),
         fields=(("status", 500), ("code", "c"), ("prompt_id", "p1"))),
    Case("turn_error_that_says_nothing", DaemonTurnError, events=tell(frame(1, "turn_error", promptId="p1")),
         fields=(("code", "turn_error"), ("args", ("Prompt failed",)))),
    Case("terminal_without_a_stop_reason", "end_turn", events=tell(frame(1, "turn_complete", promptId="p1"))),
    Case("cancelled", "cancelled", events=tell(complete(1, "p1", "cancelled"))),
    Case("stream_of_another_type", DaemonProtocolError, events=text(200, b"{}")),
    Case("stream_404", DaemonHttpError, events=refuse(404, {"error": "x", "code": "session_not_found"})),
    Case("stream_500", DaemonHttpError, events=refuse(500, {"error": "x"})),
    Case("stream_429_once", "end_turn",
         events=in_turn(refuse(429, {"code": "subscriber_limit_exceeded"}), tell(complete(1, "p1")))),
    Case("stream_that_ends_at_once", DaemonStreamError, events=tell(then=Wire.close)),
    Case("stream_that_is_reset", DaemonStreamError, events=tell(then=Wire.reset)),
    Case("stream_that_is_silent", DaemonStreamError, events=tell(), silence_s=0.05),
    Case("stream_that_is_silent_for_a_caller_who_is_not", TimeoutError, events=tell(), timeout_s=0.1),
    Case("stream_of_one_event_again_and_again", DaemonStreamError, events=tell(chunk(1, "p1", "x"), then=Wire.close)),
    Case("session_that_is_closed_without_a_terminal", DaemonStreamError,
         events=tell(frame(1, "session_closed", reason="client_close"), then=Wire.close)),
    Case("terminal_of_another_prompt", TimeoutError, events=tell(complete(1, "p2")), timeout_s=0.1),
    Case("frames_that_are_none", "end_turn",
         events=tell(b"data: {\n\n", b"data: []\n\n", b'data: {"v":2,"type":"turn_complete"}\n\n',
                     b'data: {"v":1,"id":"7","type":"turn_complete","data":{"promptId":"p1"}}\n\n', complete(1, "p1"))),
    Case("last_frame_without_its_blank_line", "end_turn", events=tell(complete(1, "p1")[:-2], then=Wire.close)),
    Case("event_that_is_too_large", SseFramingError, events=tell(b"data: " + b"x" * (16 * 1024 * 1024 + 1))),
)  # fmt: skip


async def outcome(client: Any, session: Any, case: Case) -> object:
    """What the caller gets, an error or a stop reason."""
    try:
        return (await session.prompt("hello", timeout_s=case.timeout_s)).stop_reason
    except Exception as error:  # noqa: BLE001  # whatever it is, it is looked at by the test
        return error
    finally:
        assert client.pending_prompts_total == 0


@each_flavour
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whatever_the_server_does_the_reservation_is_released(case: Case, flavour: Flavour) -> None:
    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url, stream_silence_s=case.silence_s) as client:
            session = await flavour.create(client)
            got = await outcome(client, session, case)
            if isinstance(case.expected, str):
                assert got == case.expected
            else:
                assert isinstance(got, case.expected), repr(got)
                assert [(name, getattr(got, name)) for name, _ in case.fields] == list(case.fields)
            assert session.pending_prompts_here == 0
        await anyio.to_thread.run_sync(server.wait_connections, 0)

    with fake_server(prompt=case.prompt, events=case.events) as server:
        flavour.run(test, server)


@each_flavour
def test_nobody_listens(flavour: Flavour) -> None:
    async def test(flavour: Flavour) -> None:
        async with flavour.client("http://127.0.0.1:9") as client:
            with pytest.raises(DaemonConnectionError, match="cannot connect") as caught:
                await client.prompt(SESSION, "hello")
            assert not caught.value.delivered
            assert client.pending_prompts_total == 0

    flavour.run(test)


@each_flavour
def test_the_limit_is_held_before_anything_is_sent(flavour: Flavour) -> None:
    """C2: no request for the prompt that is refused; the place of one that ends is free for the next."""

    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url, max_pending_prompts_per_session=2) as client:
            async with client.stream(SESSION, "one"), client.stream(SESSION, "two"):
                with pytest.raises(DaemonPendingPromptLimitError, match="nothing was sent") as caught:
                    await client.prompt(SESSION, "three")
                error = caught.value
                assert (error.session_id, error.limit, error.pending_count, error.sent) == (SESSION, 2, 2, False)
                with pytest.raises(DaemonPendingPromptLimitError):
                    async with client.stream(SESSION, "three"):
                        raise AssertionError("the block must not begin")
                assert client.pending_prompts_of(SESSION) == 2
                async with client.stream("another session", "one"):
                    assert client.pending_prompts_total == 3
            assert client.pending_prompts_total == 0
            async with client.stream(SESSION, "four"):
                assert client.pending_prompts_of(SESSION) == 1
        assert server.count("POST .*/prompt") == 4

    with fake_server(prompt=numbered(), events=tell()) as server:
        flavour.run(test, server)


@each_flavour
def test_session_clients_share_one_count_and_may_have_limits_of_their_own(flavour: Flavour) -> None:
    """C3."""

    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url, max_pending_prompts_per_session=1) as client:
            first = await flavour.create(client)
            second = flavour.session(client, first.session)
            narrow = flavour.session(client, first.session, max_pending_prompts_per_session=2)
            unlimited = flavour.session(client, first.session, max_pending_prompts_per_session=None)
            assert [item.max_pending_prompts_per_session for item in (first, narrow, unlimited)] == [1, 2, None]
            async with first.stream("one"):
                with pytest.raises(DaemonPendingPromptLimitError):
                    await second.prompt("two")
                async with narrow.stream("two"), unlimited.stream("three"), unlimited.stream("four"):
                    assert client.pending_prompts_of(SESSION) == 4
                    with pytest.raises(DaemonPendingPromptLimitError) as caught:
                        await narrow.prompt("five")
                    assert (caught.value.limit, caught.value.pending_count) == (2, 4)
            assert client.pending_prompts_total == 0

    with fake_server(prompt=numbered(), events=tell()) as server:
        flavour.run(test, server)


@each_flavour
def test_the_limit_of_the_capabilities_is_taken_as_it_is(flavour: Flavour) -> None:
    """C3, A3: null disables the local limit."""

    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url) as client:
            assert client.max_pending_prompts_per_session == 5
            told = [await client.adopt_server_limit() for _ in range(3)]
            assert told == [None, 2, 5]
            assert client.max_pending_prompts_per_session == 5

    answers = in_turn(
        refuse(200, {"limits": {"maxPendingPromptsPerSession": None}}),
        refuse(200, {"limits": {"maxPendingPromptsPerSession": 2}}),
        refuse(200, {}),
    )
    with fake_server(more=(("GET /capabilities", answers),)) as server:
        flavour.run(test, server)
