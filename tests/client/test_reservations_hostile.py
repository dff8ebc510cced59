"""C2, C3 against a server that does everything wrong: whatever happens, the reservation is released, once."""

from __future__ import annotations

import json
import threading
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
    EPOCH,
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
    tell,
)
from tests.client.flavours import FLAVOURS, Flavour

if TYPE_CHECKING:
    from tests.client.fake import Request

each_flavour = pytest.mark.parametrize("flavour", FLAVOURS, ids=lambda flavour: flavour.name)


def refuse(status: int, body: Any, **headers: str) -> Respond:
    return lambda _, wire: wire.json(status, body, **headers)


def reset(_: Request, wire: Wire) -> None:
    wire.reset()


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


@each_flavour
def test_a_terminal_that_comes_before_its_202_is_not_lost(flavour: Flavour) -> None:
    """The stream is open for the first prompt, and everything of the second is told on it before its 202 is sent."""

    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url) as client:
            results: dict[str, Any] = {}

            async def ask(name: str) -> None:
                results[name] = await client.prompt(SESSION, name)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, "first")
                await anyio.to_thread.run_sync(server.wait_seen, "GET .*/events")
                tasks.start_soon(ask, "second")
            assert results["second"].text == "early bird"
            assert results["first"].stop_reason == results["second"].stop_reason == "end_turn"
            assert client.pending_prompts_total == 0
        assert server.count("GET .*/events") == 1

    told, go = threading.Event(), threading.Event()

    def prompt(request: Request, wire: Wire) -> None:
        if b"first" in request.body:
            accept("p1", 0)(request, wire)
        else:
            go.set()
            assert told.wait(10)
            accept("p2", 1)(request, wire)

    def events(_: Request, wire: Wire) -> None:
        wire.stream()
        wire.send(chunk(1, "p1", "…"))
        assert go.wait(10)
        for piece in (chunk(2, "p2", "early "), chunk(3, "p2", "bird"), complete(4, "p2"), complete(5, "p1")):
            wire.send(piece)
        told.set()
        wire.wait_gone()

    with fake_server(prompt=prompt, events=events) as server:
        flavour.run(test, server)


@each_flavour
@pytest.mark.parametrize("seen", [0, 2, 4])
def test_202s_that_come_in_another_order_than_they_were_given_in_lose_nothing(seen: int, flavour: Flavour) -> None:
    """The stream is opened from the place that the second prompt's 202 names, behind events of the first."""

    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url) as client:
            results: dict[str, Any] = {}

            async def ask(name: str) -> None:
                results[name] = await client.prompt(SESSION, name, timeout_s=10)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, "first")
                await anyio.to_thread.run_sync(server.wait_seen, "POST .*/prompt")
                tasks.start_soon(ask, "second")
            assert (results["first"].text, results["second"].text) == ("one", "two")
            assert client.pending_prompts_total == 0

    log = [
        (1, chunk(1, "p1", "o")), (2, chunk(2, "p1", "n")), (3, chunk(3, "p1", "e")), (4, complete(4, "p1")),
        (5, chunk(5, "p2", "two")), (6, complete(6, "p2")),
    ]  # fmt: skip
    opened, behind = threading.Event(), threading.Event()

    def prompt(request: Request, wire: Wire) -> None:
        if b"first" in request.body:
            assert opened.wait(10)
            assert behind.wait(10)
            accept("p1", 0)(request, wire)
        else:
            accept("p2", 4 - seen)(request, wire)

    def events(request: Request, wire: Wire) -> None:
        wire.stream()
        opened.set()
        for event_id, piece in log:
            if event_id > (request.cursor or 0) and (event_id != 6 or behind.is_set()):
                wire.send(piece)
        if not behind.is_set():
            threading.Event().wait(0.05)  # the client reads what there is
            behind.set()
            wire.send(log[-1][1])
        wire.wait_gone()

    with fake_server(prompt=prompt, events=events) as server:
        flavour.run(test, server)


@each_flavour
def test_a_stream_that_breaks_goes_on_without_loss_and_without_repetition(flavour: Flavour) -> None:
    """A5: the cursor and the epoch are sent again; what is told twice is heard once."""

    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url) as client:
            async with client.stream(SESSION, "hello") as turn:
                events = [event async for event in turn]
                result = await turn.result()
            assert client.pending_prompts_total == 0
        assert [event.id for event in events] == [3, 4, 5, 6]
        assert result.text == "abc"
        cursors = [
            (request.cursor, request.headers.get("x-qwen-event-epoch"))
            for request in server.requests
            if "/events" in request.path
        ]
        assert cursors == [(2, EPOCH), (3, EPOCH), (5, EPOCH)]

    script = in_turn(
        tell(chunk(3, "p1", "a"), complete(9, "p1")[:-10], then=Wire.close),  # the last one is cut in the middle
        tell(chunk(3, "p1", "a"), chunk(4, "p1", "b"), chunk(5, "p1", "c"), then=Wire.reset),
        tell(complete(6, "p1")),
    )
    with fake_server(prompt=accept("p1", 2), events=script) as server:
        flavour.run(test, server)


@each_flavour
def test_lost_events_are_made_up_for_by_asking_what_became_of_the_turn(flavour: Flavour) -> None:
    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url) as client:
            result = await client.prompt(SESSION, "hello")
            assert (result.text, result.complete, result.stop_reason) == ("all of it", True, "end_turn")

    ended = {"sessionId": SESSION, "promptId": "p1", "state": "completed", "stopReason": "end_turn"}
    evicted = frame(None, "state_resync_required", reason="ring_evicted", lastDeliveredId=1, earliestAvailableId=9)
    with fake_server(
        events=tell(evicted, chunk(9, "p1", "of it")), turn=refuse(200, {**ended, "resultText": "all of it"})
    ) as server:
        flavour.run(test, server)


@each_flavour
def test_a_turn_that_nobody_knows_any_more_is_an_error_and_not_a_wait(flavour: Flavour) -> None:
    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url) as client:
            with pytest.raises(DaemonStreamError, match="was lost"):
                await client.prompt(SESSION, "hello")
            assert client.pending_prompts_total == 0

    with fake_server(events=tell(frame(None, "state_resync_required", reason="epoch_reset"))) as server:
        flavour.run(test, server)


@each_flavour
def test_what_does_not_fit_into_one_replay_is_asked_for_in_a_second_one(flavour: Flavour) -> None:
    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url) as client:
            assert (await client.prompt(SESSION, "hello")).text == "abc"

    budget = frame(None, "state_resync_required", reason="replay_budget_exceeded")
    script = in_turn(
        tell(chunk(1, "p1", "a"), budget, chunk(9, "p1", "too early"), then=Wire.wait_gone),
        tell(chunk(2, "p1", "b"), chunk(3, "p1", "c"), complete(4, "p1")),
    )
    with fake_server(events=script) as server:
        flavour.run(test, server)


@each_flavour
def test_a_refusal_before_anything_was_done_is_tried_again(flavour: Flavour) -> None:
    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url) as client:
            assert (await client.prompt(SESSION, "hello")).stop_reason == "end_turn"
        assert server.count("POST .*/prompt") == 2

    busy = refuse(429, {"error": "x", "code": "rate_limit_exceeded"}, Retry_After="0")
    with fake_server(prompt=in_turn(busy, accept())) as server:
        flavour.run(test, server)


@each_flavour
def test_a_prompt_that_may_have_arrived_is_never_sent_twice(flavour: Flavour) -> None:
    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url) as client:
            with pytest.raises(DaemonConnectionError):
                await client.prompt(SESSION, "hello")
        assert server.count("POST .*/prompt") == 1

    with fake_server(prompt=in_turn(reset, accept())) as server:
        flavour.run(test, server)


@each_flavour
def test_a_client_id_that_the_server_forgot_is_replaced_once(flavour: Flavour) -> None:
    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url) as client:
            session = await flavour.create(client)
            assert session.client_id == "client_1"
            assert (await session.prompt("hello")).stop_reason == "end_turn"
            assert session.client_id == "client_2"
            with pytest.raises(DaemonHttpError) as caught:
                await session.prompt("hello")
            assert caught.value.code == "invalid_client_id"
            assert client.pending_prompts_total == 0
        ids = [request.headers["x-qwen-client-id"] for request in server.requests if request.path.endswith("/prompt")]
        assert ids[:2] == ["client_1", "client_2"]

    unknown = refuse(400, {"error": "x", "code": "invalid_client_id"})
    with fake_server(prompt=in_turn(unknown, accept(), unknown)) as server:
        flavour.run(test, server)


@each_flavour
@pytest.mark.parametrize("asked", [True, False])
def test_a_caller_that_gives_up_has_its_prompt_cancelled_where_it_asked_for_it(asked: bool, flavour: Flavour) -> None:
    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url) as client:
            session = await flavour.create(client)
            with pytest.raises(TimeoutError):
                await session.prompt("hello", timeout_s=0.1, cancel_on_server=asked)
            assert client.pending_prompts_total == 0
        assert server.count(f"DELETE /session/{SESSION}/pending-prompts/p1") == int(asked)

    with fake_server(events=tell()) as server:
        flavour.run(test, server)


@each_flavour
def test_a_block_that_is_left_early_ends_whoever_reads_in_it(flavour: Flavour) -> None:
    async def test(flavour: Flavour, server: FakeServer) -> None:
        async with flavour.client(server.url) as client:
            ended: list[str] = []

            async def read(stream: Any, name: str) -> None:
                with pytest.raises(DaemonStreamError):
                    async for _ in stream:
                        pass
                ended.append(name)

            async with (
                anyio.create_task_group() as tasks,
                client.stream(SESSION, "hello") as turn,
                client.events(SESSION, last_event_id=0) as events,
            ):
                tasks.start_soon(read, turn, "turn")
                tasks.start_soon(read, events, "events")
                await anyio.to_thread.run_sync(server.wait_seen, "GET .*/events", 2)
                await anyio.sleep(0.05)
            assert sorted(ended) == ["events", "turn"]
        await anyio.to_thread.run_sync(server.wait_connections, 0)

    with fake_server(events=tell()) as server:
        flavour.run(test, server)


def test_what_is_sent_is_what_was_asked_for() -> None:
    async def test(flavour: Flavour, server: FakeServer) -> None:
        from governor.client import PromptRequest

        async with flavour.client(server.url, token="secret") as client:
            request = PromptRequest(prompt="hello", deadline_ms=700, retry=True, extra={"_meta": {"a": 1}})
            await client.prompt("a/b", request, client_id="me")
        (sent,) = (request for request in server.requests if request.path.endswith("/prompt"))
        assert sent.path == "/session/a%2Fb/prompt"
        assert json.loads(sent.body) == {
            "prompt": [{"type": "text", "text": "hello"}],
            "deadlineMs": 700,
            "retry": True,
            "_meta": {"a": 1},
        }
        assert sent.headers["authorization"] == "Bearer secret"
        assert sent.headers["x-qwen-client-id"] == "me"

    with fake_server() as server:
        FLAVOURS[0].run(test, server)
