"""C3 against a server that does everything wrong: no prompt loses its end, is told twice, or is sent twice."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from governor.client import (
    DaemonConnectionError,
    DaemonHttpError,
    DaemonStreamError,
)
from tests.client.fake import (
    EPOCH,
    SESSION,
    FakeServer,
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
from tests.client.flavours import FLAVOURS, Flavour, each_flavour

if TYPE_CHECKING:
    from tests.client.fake import Request


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
