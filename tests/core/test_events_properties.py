"""What holds of a session's events in every order of publishing, reading, leaving and coming back (A5, D6)."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.events import EventLog, Frame, SubscriberLimits, Subscription, encode_frame

if TYPE_CHECKING:
    from governor.errors import JsonValue

NOTICES_OF_LOSS = {"state_resync_required", "client_evicted"}


def kind_of(frame: Frame) -> str:
    line = frame.data.split(b"\n")[0 if frame.id is None else 1]
    return line.decode().removeprefix("event: ")


@dataclass
class Reader:
    """A client: it remembers the last id it saw, and whether it was told that something is missing."""

    subscription: Subscription
    last_seen: int = 0
    told: bool = False

    def take(self) -> bool:
        """Takes one frame and holds it against what came before. Returns False when there is none."""
        frame = self.subscription.take()
        if frame is None:
            return False
        if frame.id is None:
            self.told |= kind_of(frame) in NOTICES_OF_LOSS
            return True
        assert frame.id > self.last_seen
        assert self.told or frame.id == self.last_seen + 1, "a gap that nobody told of"
        self.last_seen, self.told = frame.id, False
        return True


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 400)),
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(st.just("come back"), st.just(0)),
        st.tuples(st.just("publish many"), st.integers(1, 8)),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(ACTIONS, st.integers(1, 12), st.builds(SubscriberLimits, frames=st.integers(1, 8), bytes=st.integers(100, 2000)))
def test_a_reader_gets_a_gapless_sequence_or_is_told_that_it_does_not(
    actions: list[tuple[str, int]], ring_size: int, limits: SubscriberLimits
) -> None:
    log, woken = EventLog("epoch-1", ring_size=ring_size, max_subscribers=2), [0]

    def wake() -> None:
        woken[0] += 1

    reader = Reader(log.subscribe(wake, limits=limits))
    for action, argument in actions:
        if action == "take":
            for _ in range(argument):
                reader.take()
        elif action == "come back":
            log.unsubscribe(reader.subscription)
            subscription = log.subscribe(wake, limits=limits, after_id=reader.last_seen, epoch="epoch-1")
            reader = Reader(subscription, reader.last_seen)
        else:
            for _ in range(argument if action == "publish many" else 1):
                before = woken[0], reader.subscription.closed
                log.publish("tick", {"pad": "x" * (argument if action == "publish" else 0)}, timestamp_ms=1)
                assert woken[0] == before[0] + (not before[1]), "who has something to take is woken"
        assert log.subscriber_count == (not reader.subscription.evicted)
    log.close()
    while reader.take():
        pass
    assert reader.subscription.closed
    assert reader.told or reader.last_seen == log.last_id, "everything came, or it was told that it did not"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 20, 150, 300, 2000]), st.sampled_from([0, 0, 0, 0, 1, 1, 2, 8])), max_size=60
    )
)
def test_a_readers_queue_stays_within_its_bounds_and_a_warning_comes_once_per_episode(
    steps: list[tuple[int, int]],
) -> None:
    """Against a plain list of the sizes that wait; None stands for a warning."""
    limits = SubscriberLimits(frames=8, bytes=1500)
    log = EventLog("epoch-1", ring_size=1, max_subscribers=1)
    subscription = log.subscribe(lambda: None, limits=limits)
    waiting, armed = deque[int | None](), True

    def load() -> float:
        sizes = [size for size in waiting if size is not None]
        return max(len(sizes) / limits.frames, sum(sizes) / limits.bytes)

    for size, takes in steps:
        log.publish("tick", {"pad": "x" * size}, timestamp_ms=1)
        sizes = [each for each in waiting if each is not None]
        frame_size = len(encode_frame(log.last_id, "tick", _envelope(log.last_id, size)))
        fits = len(sizes) < limits.frames and (not sizes or sum(sizes) + frame_size <= limits.bytes)
        assert subscription.evicted == (not fits)
        if subscription.evicted:
            assert log.subscriber_count == 0
            return
        waiting.append(frame_size)
        if armed and load() >= 0.75:
            armed = False
            waiting.append(None)
        for _ in range(takes):
            frame = subscription.take()
            assert (frame is None) == (not waiting)
            if frame is not None:
                expected = waiting.popleft()
                assert (frame.id is None) == (expected is None)
                armed |= load() <= 0.375


def _envelope(event_id: int, size: int) -> dict[str, JsonValue]:
    return {"id": event_id, "v": 1, "type": "tick", "data": {"pad": "x" * size}, "_meta": {"serverTimestamp": 1}}


TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["\n\ndata: {}\n\n", "\r\r", "\r\nid: 9\r\n", "a\x00b", "\u2028\u2029\x85\x0b\x0c", ": comment", '"\\'],
)


@settings(deadline=None)
@given(TEXT, TEXT)
def test_no_text_breaks_out_of_its_frame(key: str, value: str) -> None:
    """A frame is three lines and a blank one whatever is in it, and a client reads back what was published."""
    envelope: dict[str, JsonValue] = {"id": 7, "type": "tick", "data": {key: [value, {"deep": value}]}}
    data = encode_frame(7, "tick", envelope)
    assert b"\r" not in data
    head, kind, body, *blank = data.split(b"\n")
    assert (head, kind, blank) == (b"id: 7", b"event: tick", [b"", b""])
    assert body.startswith(b"data: ")
    assert json.loads(body.removeprefix(b"data: ")) == envelope


def test_a_notice_has_no_id() -> None:
    assert encode_frame(None, "notice", {}) == b"event: notice\ndata: {}\n\n"
