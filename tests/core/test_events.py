"""A session's events: ids, replay, slow readers (A5, D6)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from governor.core import events
from governor.core.events import EventLog, Frame, SubscriberLimits, SubscribersFullError, Subscription, encode_frame

if TYPE_CHECKING:
    from governor.errors import JsonValue

WIDE = SubscriberLimits(frames=1000, bytes=10_000_000)


def new_log(ring_size: int = 100, max_subscribers: int = 4) -> EventLog:
    return EventLog("epoch-1", ring_size=ring_size, max_subscribers=max_subscribers)


def publish(log: EventLog, count: int = 1, size: int = 0) -> None:
    for _ in range(count):
        log.publish("tick", {"pad": "x" * size}, timestamp_ms=1)


def subscribe(
    log: EventLog, after_id: int | None = None, *, epoch: str | None = None, limits: SubscriberLimits = WIDE
) -> Subscription:
    return log.subscribe(lambda: None, limits=limits, after_id=after_id, epoch=epoch)


def taken(subscription: Subscription) -> list[Frame]:
    frames: list[Frame] = []
    while (frame := subscription.take()) is not None:
        frames.append(frame)
    return frames


def ids(frames: list[Frame]) -> list[int | None]:
    return [frame.id for frame in frames]


def body(frame: Frame) -> dict[str, JsonValue]:
    data = next(line for line in frame.data.decode().split("\n") if line.startswith("data: "))
    parsed: dict[str, JsonValue] = json.loads(data.removeprefix("data: "))
    return parsed


def notices(frames: list[Frame]) -> list[tuple[JsonValue, JsonValue]]:
    """Type and data of the frames that carry no id."""
    return [(body(frame)["type"], body(frame)["data"]) for frame in frames if frame.id is None]


def test_ids_start_at_one_and_have_no_gaps() -> None:
    log = new_log()
    assert log.last_id == 0
    assert [log.publish("tick", {}, timestamp_ms=1) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert log.last_id == 5


def test_an_event_on_the_wire() -> None:
    log = new_log()
    live = subscribe(log)
    log.publish("session_update", {"text": "a\nb\u2028ä"}, timestamp_ms=7, prompt_id="p", originator="c")
    frame = live.take()
    assert frame is not None
    assert frame.data == (
        b"id: 1\nevent: session_update\n"
        b'data: {"id":1,"v":1,"type":"session_update","promptId":"p","data":{"text":"a\\nb\xe2\x80\xa8\xc3\xa4"},'
        b'"originatorClientId":"c","_meta":{"serverTimestamp":7}}\n\n'
    )


def test_text_that_is_no_unicode_does_not_end_the_log() -> None:
    assert encode_frame(1, "tick", {"text": "\ud800"}).startswith(b"id: 1\n")


def test_every_reader_gets_every_event_in_order() -> None:
    log = new_log()
    first, second = subscribe(log), subscribe(log)
    publish(log, 3)
    assert ids(taken(first)) == ids(taken(second)) == [1, 2, 3]


def test_a_reader_is_woken_by_every_event_and_by_the_end() -> None:
    log, woken = new_log(), list[int]()
    log.subscribe(lambda: woken.append(1), limits=WIDE)
    publish(log, 2)
    log.close()
    assert len(woken) == 3


def test_replay_comes_first_then_its_end_then_what_is_live() -> None:
    log = new_log()
    publish(log, 3)
    reader = subscribe(log, 1)
    publish(log)
    frames = taken(reader)
    assert ids(frames) == [2, 3, None, 4]
    assert notices(frames) == [("replay_complete", {"replayedCount": 2, "lastReplayedEventId": 3, "lastEventId": 3})]


def test_nothing_to_replay_says_so() -> None:
    log = new_log()
    publish(log, 2)
    assert notices(taken(subscribe(log, 2))) == [("replay_complete", {"replayedCount": 0})]
    assert ids(taken(subscribe(log))) == []


def test_a_cursor_that_the_ring_has_lost_is_told_so_and_gets_the_rest() -> None:
    log = new_log(ring_size=3)
    publish(log, 10)
    frames = taken(subscribe(log, 4))
    assert ids(frames) == [None, 8, 9, 10, None]
    assert notices(frames)[0] == (
        "state_resync_required",
        {"reason": "ring_evicted", "lastDeliveredId": 4, "earliestAvailableId": 8},
    )


def test_a_cursor_at_the_edge_of_the_ring_lost_nothing() -> None:
    log = new_log(ring_size=3)
    publish(log, 10)
    assert ids(taken(subscribe(log, 7))) == [8, 9, 10, None]


@pytest.mark.parametrize(
    ("after_id", "epoch", "detail"),
    [(2, "epoch-0", "epoch_mismatch"), (99, None, "cursor_ahead"), (99, "epoch-1", "cursor_ahead")],
)
def test_a_cursor_of_another_life_gets_everything_that_is_kept(after_id: int, epoch: str | None, detail: str) -> None:
    log = new_log()
    publish(log, 3)
    frames = taken(subscribe(log, after_id, epoch=epoch))
    assert ids(frames) == [None, 1, 2, 3, None]
    assert notices(frames)[0] == (
        "state_resync_required",
        {"reason": "epoch_reset", "lastDeliveredId": after_id, "earliestAvailableId": 1, "detail": detail},
    )


def test_a_cursor_of_this_life_is_taken_as_it_is() -> None:
    log = new_log()
    publish(log, 3)
    assert ids(taken(subscribe(log, 2, epoch="epoch-1"))) == [3, None]


def test_replay_stops_at_its_budget_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log()
    publish(log, 4, size=1000)
    monkeypatch.setattr(events, "REPLAY_BYTES_MAX", 2500)
    frames = taken(subscribe(log, 0))
    assert ids(frames) == [1, 2, None, None]
    assert notices(frames) == [
        ("state_resync_required", {"reason": "replay_budget_exceeded", "lastDeliveredId": 2, "earliestAvailableId": 1}),
        ("replay_complete", {"replayedCount": 2, "lastReplayedEventId": 2, "lastEventId": 2}),
    ]


def test_one_event_larger_than_the_budget_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a reader would ask for it for ever."""
    log = new_log()
    publish(log, 2, size=1000)
    monkeypatch.setattr(events, "REPLAY_BYTES_MAX", 100)
    assert ids(taken(subscribe(log, 0))) == [1, None, None]


def test_what_is_replayed_does_not_count_in_the_bounds() -> None:
    log = new_log()
    publish(log, 50)
    reader = subscribe(log, 0, limits=SubscriberLimits(frames=4, bytes=10_000_000))
    publish(log, 2)
    assert not reader.evicted
    assert len([frame for frame in taken(reader) if frame.id]) == 52


def test_a_slow_reader_is_warned_once_per_episode() -> None:
    log = new_log()
    reader = subscribe(log, limits=SubscriberLimits(frames=8, bytes=10_000_000))
    publish(log, 6)
    assert [kind for kind, _ in notices(taken(reader))] == ["slow_client_warning"]
    publish(log, 6)
    assert [kind for kind, _ in notices(taken(reader))] == ["slow_client_warning"], "armed again once it caught up"


def test_a_reader_between_the_marks_is_not_warned_again() -> None:
    log = new_log()
    reader = subscribe(log, limits=SubscriberLimits(frames=8, bytes=10_000_000))
    publish(log, 6)  # six events and the warning
    frames = [reader.take() for _ in range(3)]  # four are left: more than three eighths
    publish(log, 2)
    frames += taken(reader)
    assert len(notices([frame for frame in frames if frame])) == 1


def test_the_warning_says_which_bound_and_how_much() -> None:
    log = new_log()
    reader = subscribe(log, limits=SubscriberLimits(frames=100, bytes=4000))
    publish(log, 3, size=1000)
    [(kind, data)] = notices(taken(reader))
    assert kind == "slow_client_warning"
    assert isinstance(data, dict)
    queued = data.pop("queuedBytes")
    assert isinstance(queued, int)
    assert 3000 < queued < 4000
    assert data == {"threshold": "bytes", "queueSize": 3, "maxQueued": 100, "maxQueuedBytes": 4000, "lastEventId": 3}


def test_a_warning_takes_no_room_of_the_events() -> None:
    log = new_log()
    reader = subscribe(log, limits=SubscriberLimits(frames=4, bytes=10_000_000))
    publish(log, 4)
    assert not reader.evicted
    assert ids(taken(reader)) == [1, 2, 3, None, 4]


def test_warnings_do_not_wear_the_bound_in_bytes_away() -> None:
    log = new_log()
    reader = subscribe(log, limits=SubscriberLimits(frames=1000, bytes=4000))
    warnings = 0
    for _ in range(50):
        publish(log, 3, size=1000)
        warnings += len(notices(taken(reader)))
    assert warnings == 50


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (SubscriberLimits(frames=3, bytes=10_000_000), "queue_overflow"),
        (SubscriberLimits(frames=100, bytes=3500), "queue_bytes_overflow"),
    ],
    ids=["frames", "bytes"],
)
def test_a_reader_that_falls_behind_is_evicted_and_told_why(limits: SubscriberLimits, reason: str) -> None:
    log = new_log()
    slow, quick = subscribe(log, limits=limits), subscribe(log)
    publish(log, 10, size=1000)
    frames = taken(slow)
    assert slow.evicted
    assert slow.closed
    assert log.subscriber_count == 1
    [(kind, data)] = notices(frames)
    assert kind == "client_evicted"
    assert isinstance(data, dict)
    assert data["reason"] == reason
    assert ids(frames) == [None], "its queue is gone: it must come back with a cursor"
    assert ids(taken(quick)) == list(range(1, 11)), "nobody else is held up"


def test_one_event_larger_than_the_bound_reaches_a_reader_that_keeps_up() -> None:
    log = new_log()
    reader = subscribe(log, limits=SubscriberLimits(frames=10, bytes=100))
    publish(log, 1, size=5000)
    assert not reader.evicted
    assert 1 in ids(taken(reader))


def test_there_are_only_so_many_readers() -> None:
    log = new_log(max_subscribers=2)
    first = subscribe(log)
    subscribe(log)
    with pytest.raises(SubscribersFullError):
        subscribe(log)
    log.unsubscribe(first)
    log.unsubscribe(first)
    assert log.subscriber_count == 1
    subscribe(log)


def test_a_closed_log_ends_its_readers_after_what_is_queued_and_drops_later_events() -> None:
    log = new_log()
    reader = subscribe(log)
    publish(log, 2)
    log.close()
    assert reader.closed
    assert log.publish("tick", {}, timestamp_ms=1) is None
    assert ids(taken(reader)) == [1, 2]
    assert log.last_id == 2
    assert log.subscriber_count == 0


def test_a_closed_log_can_still_be_replayed() -> None:
    log = new_log()
    publish(log, 2)
    log.close()
    reader = subscribe(log, 0)
    assert reader.closed
    assert ids(taken(reader)) == [1, 2, None]


def test_a_reader_that_closed_itself_gets_nothing_more() -> None:
    log = new_log()
    reader = subscribe(log)
    publish(log)
    reader.close()
    publish(log)
    assert ids(taken(reader)) == [1]


def test_an_event_that_cannot_be_written_takes_no_id() -> None:
    """Otherwise there would be a gap that no reader can explain."""
    log = new_log()
    reader = subscribe(log)
    publish(log)
    with pytest.raises(TypeError):
        log.publish("tick", {"text": {1, 2}}, timestamp_ms=1)  # type: ignore[dict-item]  # what must not be tried
    publish(log)
    assert ids(taken(reader)) == [1, 2]


def test_a_reader_slow_by_both_bounds_is_told_of_both() -> None:
    log = new_log()
    reader = subscribe(log, limits=SubscriberLimits(frames=4, bytes=4000))
    publish(log, 3, size=1000)
    [(_, data)] = notices(taken(reader))
    assert isinstance(data, dict)
    assert data["threshold"] == "frames_and_bytes"


def test_a_log_that_keeps_nothing_tells_every_cursor_but_the_newest_that_it_lost_something() -> None:
    log = new_log(ring_size=0)
    publish(log, 3)
    assert [kind for kind, _ in notices(taken(subscribe(log, 2)))] == ["state_resync_required", "replay_complete"]
    assert [kind for kind, _ in notices(taken(subscribe(log, 3)))] == ["replay_complete"]


def test_an_eviction_names_the_last_event_that_was_taken() -> None:
    """A5: who resumes from `droppedAfter` misses nothing, though the rest of the queue is gone."""
    log = EventLog("e", ring_size=100, max_subscribers=1)
    log.publish("old", {}, timestamp_ms=0)
    reader = log.subscribe(lambda: None, limits=SubscriberLimits(frames=3))
    for _ in range(3):
        log.publish("new", {}, timestamp_ms=0)
    taken = reader.take()
    assert taken is not None
    while not reader.evicted:
        log.publish("more", {}, timestamp_ms=0)
    notice = reader.take()
    assert notice is not None
    assert json.loads(notice.data.split(b"data: ")[1])["data"]["droppedAfter"] == taken.id == 2


def test_the_ring_is_bounded_in_bytes_and_says_what_it_lost() -> None:
    """A5: large events do not pile up; the newest is kept whatever its size."""
    log = EventLog("e", ring_size=1000, max_subscribers=2, ring_bytes=10_000)
    for _ in range(50):
        log.publish("x", {"text": "y" * 1_000}, timestamp_ms=0)
    kept = replayed(log)
    assert 5 < len(kept) < 10
    assert kept[-1] == 50
    log.publish("x", {"text": "y" * 100_000}, timestamp_ms=0)
    assert replayed(log) == [51]


def replayed(log: EventLog) -> list[int]:
    reader = log.subscribe(lambda: None, limits=SubscriberLimits(), after_id=0)
    log.unsubscribe(reader)
    ids = []
    while (frame := reader.take()) is not None:
        ids += [frame.id] if frame.id is not None else []
    return ids
