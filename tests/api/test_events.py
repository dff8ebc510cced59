"""`GET /session/:id/events`: protocol 3, A5, D13."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.api.harness import AsgiExchange, Events, Service, kinds, listening, service, streaming

if TYPE_CHECKING:
    from trio.testing import MockClock

    from governor.session import Session


def publish(session: Session, count: int, *, size: int = 1) -> None:
    """Events without a prompt, numbered by the session."""
    for _ in range(count):
        session.log.publish("test", {"text": "x" * size}, timestamp_ms=0)


def ids(events: list[dict[str, object]]) -> list[object]:
    return [event["id"] for event in events if "id" in event]


async def session_of(up: Service) -> Session:
    return up.governor.sessions[await up.new_session()]


async def test_the_head_of_a_stream_is_the_protocols(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await session_of(up)
        async with streaming(up, f"/session/{session.id}/events") as exchange:
            assert await exchange.head() == 200
            head = exchange.sent_headers
            assert head["content-type"] == "text/event-stream"
            assert head["cache-control"] == "no-cache, no-transform"
            assert head["x-accel-buffering"] == "no"
            assert head["x-qwen-event-epoch"] == session.log.epoch
            uuid.UUID(head["x-qwen-sse-stream-id"])
            assert await exchange.piece() == b"retry: 3000\n\n"


async def test_a_frame_has_its_id_its_type_and_one_line_of_data(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await session_of(up)
        async with listening(up, session.id) as events:
            publish(session, 1)
            assert await events.next() == (
                'id: 1\nevent: test\ndata: {"id":1,"v":1,"type":"test","data":{"text":"x"},'
                '"_meta":{"serverTimestamp":0}}'
            )


async def test_an_idle_stream_gets_a_heartbeat_every_interval(autojump_clock: MockClock) -> None:
    async with service(limits={"heartbeat_interval_ms": 15_000}) as up:
        session = await session_of(up)
        async with listening(up, session.id) as events:
            began = trio.current_time()
            for _ in range(3):
                assert await events.next() == ": heartbeat"
            assert trio.current_time() - began == pytest.approx(45, abs=0.1)


async def test_an_event_that_comes_in_the_moment_of_a_heartbeat_is_not_lost(autojump_clock: MockClock) -> None:
    """The reader is woken by the event, and its heartbeat is due before it runs on."""
    async with service(limits={"heartbeat_interval_ms": 15_000}) as up:
        session = await session_of(up)
        async with listening(up, session.id) as events:
            await trio.sleep(14)
            publish(session, 1)
            autojump_clock.jump(2)
            with trio.fail_after(60):
                assert (await events.event() or {})["id"] == 1


async def test_a_stream_of_minutes_is_not_cut(autojump_clock: MockClock) -> None:
    """Quart's own limit on the length of a response does not apply."""
    async with service() as up:
        session = await session_of(up)
        async with listening(up, session.id) as events:
            await trio.sleep(1000)
            publish(session, 1)
            assert (await events.event() or {})["id"] == 1


@pytest.mark.parametrize(
    ("cursor", "replayed"),
    [
        (None, []),
        ("0", [1, 2, 3, 4]),
        ("2", [3, 4]),
        ("4", []),
        ("-1", []),
        ("x", []),
        ("1.0", []),
        ("+1", []),
        ("9007199254740992", []),
        ("²", []),
    ],
)
async def test_a_cursor_of_digits_replays_what_came_after_it(
    cursor: str | None, replayed: list[int], autojump_clock: MockClock
) -> None:
    async with service() as up:
        session = await session_of(up)
        publish(session, 4)
        headers = {"Last_Event_ID": cursor} if cursor is not None else {}
        async with listening(up, session.id, **headers) as events:
            publish(session, 1)
            seen: list[dict[str, Any]] = []
            while not (seen and seen[-1].get("id") == 5):
                event = await events.event()
                assert event is not None
                seen.append(event)
            assert ids(seen) == [*replayed, 5]
            assert ("replay_complete" in kinds(seen)) == (cursor in {"0", "2", "4"})


async def test_a_cursor_of_another_epoch_says_so_and_replays_everything(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await session_of(up)
        publish(session, 2)
        async with listening(up, session.id, Last_Event_ID="1", X_Qwen_Event_Epoch=str(uuid.uuid4())) as events:
            seen = await events.until("replay_complete")
            assert kinds(seen) == ["state_resync_required", "test", "test", "replay_complete"]
            assert seen[0]["data"]["reason"] == "epoch_reset"
            assert "id" not in seen[0]


async def test_an_epoch_that_can_be_none_is_ignored(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await session_of(up)
        publish(session, 1)
        async with listening(up, session.id, Last_Event_ID="0", X_Qwen_Event_Epoch="no epoch!") as events:
            assert kinds(await events.until("replay_complete")) == ["test", "replay_complete"]


@pytest.mark.parametrize("value", ["15", "2049", "x", "-1", "", "16.0", "1e2", "99999999999999999999"])
async def test_max_queued_outside_its_range_is_refused(value: str, autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await session_of(up)
        answer = await up.ask("GET", f"/session/{session.id}/events", query=f"maxQueued={value}".encode())
        assert (answer.status, answer.code) == (400, "invalid_max_queued")
        assert session.log.subscriber_count == 0


async def test_the_subscriber_limit_is_a_429_and_a_closed_stream_makes_room(autojump_clock: MockClock) -> None:
    async with service(limits={"max_subscribers_per_session": 1}) as up:
        session = await session_of(up)
        async with listening(up, session.id):
            answer = await up.ask("GET", f"/session/{session.id}/events")
            assert (answer.status, answer.code) == (429, "subscriber_limit_exceeded")
            assert answer.json["limit"] == 1
            assert answer.json["error"] == "EventBus subscriber limit reached (1)"
            assert answer.headers["retry-after"] == "5"
        assert session.log.subscriber_count == 0
        async with listening(up, session.id):
            assert session.log.subscriber_count == 1


async def test_a_client_that_leaves_before_the_first_byte_leaves_no_subscription(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        session = await session_of(up)
        exchange = AsgiExchange(up.app, "GET", f"/session/{session.id}/events", blocked=trio.Event())
        nursery.start_soon(exchange.run)
        await trio.sleep(1)
        assert session.log.subscriber_count == 1
        exchange.leave()
        await exchange.ended.wait()
        assert session.log.subscriber_count == 0


async def test_a_slow_reader_is_warned_then_evicted_and_its_stream_ends(autojump_clock: MockClock) -> None:
    """The others, the session and its ring are untouched: with its last id the reader misses nothing."""
    async with service() as up, trio.open_nursery() as nursery:
        session = await session_of(up)
        exchange = AsgiExchange(up.app, "GET", f"/session/{session.id}/events", query=b"maxQueued=16")
        nursery.start_soon(exchange.run)
        events = Events(exchange)
        assert await events.next() == "retry: 3000"
        exchange.blocked = trio.Event()
        async with listening(up, session.id) as other:
            for _ in range(30):
                publish(session, 1)
                await other.until("test")
            assert session.log.subscriber_count == 1, "the slow one is out, though its socket is still blocked"
        exchange.blocked.set()
        seen = await events.until("client_evicted")
        assert seen[-1]["data"]["reason"] == "queue_overflow"
        assert await events.event() is None
        assert exchange.complete
        last = max(int(str(number)) for number in ids(seen))
        async with listening(up, session.id, Last_Event_ID=str(last)) as again:
            assert ids(await again.until("replay_complete")) == list(range(last + 1, 31))


async def test_a_drain_ends_every_stream_with_its_reason(autojump_clock: MockClock) -> None:
    """D13, lesson 7: terminal events, then `session_died`, then the end."""
    async with service() as up:
        session = await session_of(up)
        async with listening(up, session.id) as events:
            prompt_id = (await up.prompt(session.id, "60")).json["promptId"]
            await trio.sleep(1)
            up.governor.drain()
            seen = await events.until("session_died")
            assert kinds(seen)[-2:] == ["turn_error", "session_died"]
            assert seen[-2]["data"]["promptId"] == prompt_id
            assert seen[-2]["data"]["code"] == "daemon_shutdown"
            assert seen[-1]["data"]["reason"] == "daemon_shutdown"
            assert await events.event() is None
            assert events.exchange.complete


async def test_head_shows_the_head_and_subscribes_nobody(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await session_of(up)
        answer = await up.ask("HEAD", f"/session/{session.id}/events")
        assert answer.status == 200
        assert answer.headers["x-qwen-event-epoch"] == session.log.epoch
        assert session.log.subscriber_count == 0


async def test_an_unknown_session_has_no_stream(autojump_clock: MockClock) -> None:
    async with service() as up:
        assert (await up.ask("GET", "/session/none/events")).code == "session_not_found"
