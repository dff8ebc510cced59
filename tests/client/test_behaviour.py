"""What the client promises, against a real governor, for all three ways to use it."""

from __future__ import annotations

import re
import uuid
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import anyio
import pytest

from governor.client import (
    AgentMessageChunk,
    CreateSessionRequest,
    DaemonHttpError,
    DaemonPendingPromptLimitError,
    DaemonSessionIdProtocolError,
    DaemonTurnError,
    DaemonUsageError,
    PendingPromptStarted,
    PromptRequest,
    ReplayComplete,
    RestoredSession,
    RestoreSessionRequest,
    SessionClosed,
    TurnComplete,
    UserMessageChunk,
)
from tests.client.flavours import FLAVOURS, Flavour, each_flavour

QUICK_MODEL, WORDY_MODEL, SLOW_MODEL = "sentiment", "short", "slow"


def of(model: str) -> CreateSessionRequest:
    """A session of its own."""
    return CreateSessionRequest(model_service_id=model, session_scope="thread")


async def metric(client: Any, name: str) -> float:
    """The sum of one of the server's metrics."""
    found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", await client.metrics(), re.MULTILINE)
    return sum(map(float, found))


async def counted(client: Any) -> tuple[float, float]:
    """Prompts that the server has refused, and those that it has accepted."""
    return await metric(client, "vig_prompts_refused_total"), await metric(client, "vig_prompts_admitted_total")


@each_flavour
def test_a_prompt_is_answered_at_once_and_piece_by_piece(flavour: Flavour, governor_url: str) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            session = await flavour.create(client, of(WORDY_MODEL))
            whole = await session.prompt("Alice opened the door")
            assert (whole.stop_reason, whole.complete) == ("end_turn", True)
            assert len(whole.text) > 10
            async with session.stream("Alice opened the door") as turn:
                pieces = [piece async for piece in turn.text]
                result = await turn.result()
            assert len(pieces) > 3
            assert "".join(pieces) == result.text == whole.text
            assert result.prompt_id == turn.prompt_id != whole.prompt_id
            async with session.stream("Alice opened the door") as turn:
                events = [event async for event in turn]
            assert isinstance(events[0], UserMessageChunk)
            assert isinstance(events[-1], TurnComplete)
            assert {type(event) for event in events[1:-1]} == {AgentMessageChunk}
            assert {event.prompt_id for event in events} == {turn.prompt_id}
            numbers = [event.id for event in events]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert client.pending_prompts_total == 0
            await session.close()

    flavour.run(test, governor_url)


@each_flavour
def test_turns_that_are_over_before_their_202_is_read_are_not_missed(flavour: Flavour, governor_url: str) -> None:
    """S7, C2: five at a time, in several sessions, 60 in all."""

    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            sessions = [await flavour.create(client, of(QUICK_MODEL)) for _ in range(4)]
            results: list[Any] = []

            async def ask(session: Any) -> None:
                for _ in range(3):
                    result = await session.prompt("What a day")
                    results.append(result)

            async with anyio.create_task_group() as tasks:
                for session in sessions:
                    for _ in range(5):
                        tasks.start_soon(ask, session)
            assert len(results) == 60
            assert {result.stop_reason for result in results} == {"end_turn"}
            assert {result.complete for result in results} == {True}
            assert len({result.text for result in results}) == 1
            assert client.pending_prompts_total == 0

    flavour.run(test, governor_url)


@each_flavour
def test_the_sixth_prompt_is_refused_here_and_by_the_server_where_nothing_is_counted_here(
    flavour: Flavour, governor_url: str
) -> None:
    """C2, C3, A2."""

    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client, flavour.client(url, max_pending_prompts_per_session=None) as other:
            assert await client.adopt_server_limit() == 5
            session = await flavour.create(client, of(SLOW_MODEL))
            before = await counted(client)
            async with AsyncExitStack() as stack:
                texts = ["0.8 seconds", *["0.01 seconds"] * 4]
                turns = [await stack.enter_async_context(session.stream(text)) for text in texts]
                with pytest.raises(DaemonPendingPromptLimitError, match="nothing was sent") as caught:
                    await session.prompt("0.01 seconds")
                assert (caught.value.limit, caught.value.pending_count, caught.value.sent) == (5, 5, False)
                with pytest.raises(DaemonPendingPromptLimitError, match="the server refused") as caught:
                    await other.prompt(session.session_id, "0.01 seconds")
                assert (caught.value.limit, caught.value.pending_count, caught.value.sent) == (5, 5, True)
                assert caught.value.session_id == session.session_id
                assert other.pending_prompts_total == 0
                assert [(await turn.result()).stop_reason for turn in turns] == ["end_turn"] * 5
            after = await counted(client)
            assert (after[0] - before[0], after[1] - before[1]) == (1, 5)
            assert client.pending_prompts_total == 0

    flavour.run(test, governor_url)


@each_flavour
def test_a_deadline_is_a_turn_error(flavour: Flavour, governor_url: str) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            session = await flavour.create(client, of(SLOW_MODEL))
            with pytest.raises(DaemonTurnError) as caught:
                await session.prompt(PromptRequest(prompt="0.5 seconds", deadline_ms=100))
            assert (caught.value.code, caught.value.status) == ("prompt_deadline_exceeded", 500)
            async with session.stream(PromptRequest(prompt="0.5 seconds", deadline_ms=100)) as turn:
                with pytest.raises(DaemonTurnError):
                    async for _ in turn.text:
                        pass
            assert client.pending_prompts_total == 0

    flavour.run(test, governor_url)


@each_flavour
@pytest.mark.parametrize("asked", [True, False])
def test_a_caller_that_gives_up_cancels_at_the_server_only_if_it_asks_for_it(
    asked: bool, flavour: Flavour, governor_url: str
) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            session = await flavour.create(client, of(SLOW_MODEL))
            then = "cancels it" if asked else "does not end it"
            with pytest.raises(TimeoutError, match=rf"had not ended after 0\.3 s \(timeout_s\).* {then} at the server"):
                async with session.stream("0.6 seconds", timeout_s=0.3, cancel_on_server=asked) as turn:
                    await turn.result()
            assert client.pending_prompts_total == 0
            assert turn.prompt_id is not None
            assert (await session.turn(turn.prompt_id)).state == ("cancelled" if asked else "running")
            with anyio.fail_after(10):
                while (await session.current_turn()).state == "running":
                    await anyio.sleep(0.02)
            assert (await session.turn(turn.prompt_id)).state == ("cancelled" if asked else "completed")

    flavour.run(test, governor_url)


@each_flavour
def test_a_block_that_is_left_early_leaves_the_turn_to_itself(flavour: Flavour, governor_url: str) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            session = await flavour.create(client, of(WORDY_MODEL))
            async with session.stream("Alice opened the door") as turn:
                async for _ in turn.text:
                    break
            assert client.pending_prompts_total == 0
            with anyio.fail_after(10):
                while (await session.turn(turn.prompt_id)).state == "running":
                    await anyio.sleep(0.02)
            assert (await session.turn(turn.prompt_id)).stop_reason == "end_turn"

    flavour.run(test, governor_url)


@each_flavour
def test_the_queue_can_be_looked_at_and_a_prompt_taken_out(flavour: Flavour, governor_url: str) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            session = await flavour.create(client, of(SLOW_MODEL))
            async with session.stream("0.4 seconds") as first, session.stream("0.1 seconds") as second:
                pending = await session.pending_prompts()
                assert [(item.prompt_id, item.state) for item in pending] == [
                    (first.prompt_id, "running"),
                    (second.prompt_id, "queued"),
                ]
                assert {item.originator_client_id for item in pending} == {session.client_id}
                assert await session.remove_pending_prompt(second.prompt_id)
                assert (await second.result()).stop_reason == "cancelled"
                assert session.pending_prompts_here == 1
                assert not await session.remove_pending_prompt(second.prompt_id)
                async with session.stream("0.1 seconds") as third:
                    await session.cancel()
                    assert (await first.result()).stop_reason == "cancelled"
                    kinds = [type(event) async for event in third]
                    assert PendingPromptStarted in kinds
            assert client.pending_prompts_total == 0

    flavour.run(test, governor_url)


@each_flavour
def test_events_are_heard_once_and_in_order_and_an_event_that_failed_comes_again(
    flavour: Flavour, governor_url: str
) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            session = await flavour.create(client, of(QUICK_MODEL))
            for _ in range(3):
                await session.prompt("What a day")
            heard: list[Any] = []
            async with session.events() as events:
                async for event in events:
                    heard.append(event)
                    if len(heard) == 4:
                        break  # as an error in handling it would
            assert session.last_event_id == 3
            async with session.events() as events:
                with pytest.raises(DaemonUsageError, match="subscription is active"):
                    async with session.events():
                        pass
                async for event in events:
                    if isinstance(event, ReplayComplete):
                        break
                    heard.append(event)
                # A prompt inside of the block does not depend on the block's being read.
                assert (await session.prompt("What a day")).stop_reason == "end_turn"
                async for event in events:
                    heard.append(event)
                    if isinstance(event, TurnComplete):
                        break
            numbers = [event.id for event in heard]
            assert numbers == [1, 2, 3, 4, *range(4, numbers[-1] + 1)]
            assert sum(isinstance(event, TurnComplete) for event in heard) == 4
            async with session.events(resume=False) as events:
                await session.close()
                kinds = [type(event) async for event in events]
            assert kinds == [SessionClosed]

    flavour.run(test, governor_url)


@each_flavour
def test_prompts_of_a_session_that_is_closed_end(flavour: Flavour, governor_url: str) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            session = await flavour.create(client, of(SLOW_MODEL))
            async with session.stream("0.4 seconds") as first, session.stream("0.1 seconds") as second:
                await session.close()
                for turn in (first, second):
                    with pytest.raises(DaemonTurnError) as caught:
                        await turn.result()
                    assert caught.value.code == "session_closed"
            assert client.pending_prompts_total == 0
            with pytest.raises(DaemonHttpError) as gone:
                await session.prompt("hello")
            assert (gone.value.status, gone.value.code) == (404, "session_not_found")
            await session.close()

    flavour.run(test, governor_url)


@each_flavour
def test_a_session_is_made_attached_to_chosen_loaded_resumed_and_left(flavour: Flavour, governor_url: str) -> None:
    """C3: with the positions of the parameters as they are."""

    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            first = await flavour.create(client, CreateSessionRequest(model_service_id=WORDY_MODEL))
            second = await flavour.create(client, CreateSessionRequest(model_service_id=WORDY_MODEL), first.client_id)
            assert (second.session_id, second.session.attached) == (first.session_id, True)
            assert second.client_id == first.client_id
            assert second.last_event_id is None
            wanted = str(uuid.uuid4()).upper()
            chosen = await flavour.create(client, CreateSessionRequest(session_id=wanted))
            assert (chosen.session_id, chosen.last_event_id) == (wanted.lower(), 0)
            await chosen.prompt("0.01 seconds")
            loaded = await flavour.load(client, wanted.lower(), RestoreSessionRequest(), None)
            restored = loaded.session
            assert isinstance(restored, RestoredSession)
            assert any(isinstance(event, TurnComplete) for event in restored.compacted_replay)
            resumed = await flavour.resume(client, wanted.lower(), RestoreSessionRequest(), chosen.client_id)
            assert resumed.client_id == chosen.client_id != loaded.client_id
            assert (resumed.last_event_id, resumed.event_epoch) == (restored.last_event_id, restored.event_epoch)
            await resumed.detach()
            await first.close()

    flavour.run(test, governor_url)


@each_flavour
def test_what_a_session_says_of_itself(flavour: Flavour, governor_url: str) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            session = await flavour.create(client, of(QUICK_MODEL))
            await session.update_metadata(display_name="A name")
            await session.prompt("What a day")
            status = await session.status()
            assert (status.display_name, status.model_service_id) == ("A name", QUICK_MODEL)
            assert (status.has_active_prompt, status.turn_error) == (False, None)
            assert session.session_id in {item.session_id for item in (await client.list_sessions(size=5)).sessions}
            assert "lastSeenAt" in await session.heartbeat()
            assert await session.set_model(WORDY_MODEL) == {"modelId": WORDY_MODEL}
            with pytest.raises(DaemonHttpError) as unknown:
                await session.set_model("no such model")
            assert unknown.value.code == "unknown_model"
            branch = await session.branch("Another")
            assert (branch.session.display_name, branch.session_id != session.session_id) == ("Another", True)
            assert (await branch.status()).model_service_id == WORDY_MODEL
            accepted = await branch.submit_prompt("Alice")
            assert client.pending_prompts_total == 0
            assert (await branch.turn(accepted.prompt_id)).prompt_id == accepted.prompt_id

    flavour.run(test, governor_url)


@each_flavour
def test_what_the_server_says_of_itself(flavour: Flavour, governor_url: str) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            assert await client.health() == {"status": "ok"}
            assert "sessions" in await client.health(deep=True)
            assert (await client.ready())["ready"] is True
            told = await client.capabilities()
            assert set(told.models) == {QUICK_MODEL, WORDY_MODEL, SLOW_MODEL, "storyteller"}
            assert told.max_pending_prompts_per_session == 5
            assert "session_prompt" in told.features
            assert "full" in await client.daemon_status(full=True)
            assert await metric(client, "vig_slots") == 4
            with pytest.raises(DaemonHttpError) as caught:
                await client.session_status("no such session")
            assert str(caught.value).startswith("GET /session/no%20such%20session/status: No session with id")

    flavour.run(test, governor_url)


@each_flavour
def test_a_client_id_that_the_server_does_not_know_is_replaced(flavour: Flavour, governor_url: str) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            session = await flavour.create(client, of(QUICK_MODEL))
            stranger = flavour.session(client, replace(session.session, client_id="nobody"))
            results = []

            async def ask() -> None:
                results.append((await stranger.prompt("What a day")).stop_reason)

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(ask)
            assert results == ["end_turn"] * 3
            assert stranger.client_id not in {"nobody", session.client_id}
            assert (await session.status()).client_count == 2

    flavour.run(test, governor_url)


@each_flavour
def test_a_client_is_used_inside_of_its_block_only(flavour: Flavour, governor_url: str) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        client = flavour.client(url)
        async with client:
            with pytest.raises(DaemonUsageError, match="open already"):
                async with client:
                    pass
            session = await flavour.create(client, of(QUICK_MODEL))
            turn = session.stream("What a day")
            with pytest.raises(DaemonUsageError, match="inside of"):
                await turn.result()
        with pytest.raises(DaemonUsageError, match="not open"):
            await client.prompt(session.session_id, "What a day")
        assert client.pending_prompts_total == 0
        async with client:
            assert (await client.prompt(session.session_id, "What a day")).stop_reason == "end_turn"

    flavour.run(test, governor_url)


def test_a_session_that_is_not_the_one_that_was_asked_for() -> None:
    from tests.client.fake import SESSION, fake_server

    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.client(url) as client:
            with pytest.raises(DaemonSessionIdProtocolError) as caught:
                await flavour.resume(client, "another")
            assert (caught.value.requested_session_id, caught.value.actual_session_id) == ("another", SESSION)

    with fake_server() as server:
        FLAVOURS[0].run(test, server.url)
