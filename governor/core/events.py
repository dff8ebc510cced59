"""A session's numbered events, kept in a ring for replay, and its bounded subscribers. Pure (A5, D6).

Ids start at 1 and have no gaps. A subscriber has a queue bounded in frames and in bytes: a reader that falls
behind is warned once per episode at three quarters of either bound, and evicted when a frame does not fit. What
is replayed from the ring does not count in the bounds. Nobody ever waits for a slow reader.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.errors import JsonValue

RING_BYTES = 16 * 1024 * 1024
"""The most bytes of events that are kept for replay, unless the log is told otherwise."""
REPLAY_BYTES_MAX = 8 * 1024 * 1024
"""The most bytes that one subscription is sent from the ring."""
_WARN_AT, _REARM_AT = 0.75, 0.375


class SubscribersFullError(Exception):
    """The log already has its limit of subscribers."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it goes over the wire.

    Attributes:
        id: its number; None for a notice to one subscriber, which never moves a cursor.
        data: the complete SSE frame, encoded once for all subscribers.
    """

    id: int | None
    data: bytes


def encode_frame(event_id: int | None, event_type: str, envelope: dict[str, JsonValue]) -> bytes:
    """The SSE frame of one event: `id` (if it has one), `event`, one line of `data`, a blank line."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    body = json.dumps(envelope, ensure_ascii=False, separators=(",", ":"))
    return f"{head}event: {event_type}\ndata: {body}\n\n".encode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class SubscriberLimits:
    """The most that may wait for one subscriber."""

    frames: int = 256
    bytes: int = 2 * 1024 * 1024


class Subscription:
    """One reader's queue. Made by `EventLog.subscribe`, ended by `EventLog.unsubscribe`.

    Attributes:
        closed: nothing more will be queued; what is queued may still be taken.
        evicted: the reader was too slow and its queue is gone.
    """

    def __init__(self, limits: SubscriberLimits, wake: Callable[[], None], *, after_id: int) -> None:
        self.limits = limits
        self.closed = False
        self.evicted = False
        self._wake = wake
        self._replay: deque[Frame] = deque()
        self._live: deque[Frame] = deque()
        # Of events alone: a warning among them must neither take their room nor give back bytes it never took.
        self._live_events = 0
        self._live_bytes = 0
        self._warned = False
        self._last_id = self._taken_id = after_id

    @property
    def pressed(self) -> bool:
        """The reader is behind by three quarters of a bound, and was warned."""
        return self._warned

    def take(self) -> Frame | None:
        """The next frame in order; None if there is none now."""
        if self._replay:
            frame = self._replay.popleft()
            self._taken_id = frame.id if frame.id is not None else self._taken_id
            return frame
        if not self._live:
            return None
        frame = self._live.popleft()
        self._taken_id = frame.id if frame.id is not None else self._taken_id
        if frame.id is not None:
            self._live_events -= 1
            self._live_bytes -= len(frame.data)
        if self._load() <= _REARM_AT:
            self._warned = False
        return frame

    def close(self) -> None:
        """Lets the reader finish what is queued and then end."""
        self.closed = True
        self._wake()

    def _load(self) -> float:
        return max(self._live_events / self.limits.frames, self._live_bytes / self.limits.bytes)

    def _push_replay(self, frame: Frame) -> None:
        self._replay.append(frame)

    def _push(self, frame: Frame) -> None:
        if self.closed:
            return
        fits = self._live_events < self.limits.frames and (
            not self._live_events or self._live_bytes + len(frame.data) <= self.limits.bytes
        )
        if not fits:
            self._evict(frame)
            return
        self._live.append(frame)
        self._live_events += 1
        self._live_bytes += len(frame.data)
        self._last_id = frame.id if frame.id is not None else self._last_id
        if self._load() >= _WARN_AT and not self._warned:
            self._warned = True
            self._live.append(self._notice("slow_client_warning", threshold=self._threshold()))
        self._wake()

    def _threshold(self) -> str:
        by_frames = self._live_events >= _WARN_AT * self.limits.frames
        by_bytes = self._live_bytes >= _WARN_AT * self.limits.bytes
        if by_frames and by_bytes:
            return "frames_and_bytes"
        return "frames" if by_frames else "bytes"

    def _evict(self, frame: Frame) -> None:
        by_frames = self._live_events >= self.limits.frames
        notice = self._notice(
            "client_evicted",
            reason="queue_overflow" if by_frames else "queue_bytes_overflow",
            droppedAfter=self._taken_id,
            eventBytes=len(frame.data),
        )
        self._replay.clear()
        self._live.clear()
        self._live_events = self._live_bytes = 0
        self._live.append(notice)
        self.evicted = self.closed = True
        self._wake()

    def _notice(self, event_type: str, **data: JsonValue) -> Frame:
        body: dict[str, JsonValue] = {
            **data,
            "queueSize": self._live_events,
            "maxQueued": self.limits.frames,
            "queuedBytes": self._live_bytes,
            "maxQueuedBytes": self.limits.bytes,
            "lastEventId": self._last_id,
        }
        return notice_frame(event_type, body)


def notice_frame(event_type: str, data: dict[str, JsonValue]) -> Frame:
    """A frame for one subscriber: it has no id and so never moves a cursor."""
    return Frame(None, encode_frame(None, event_type, {"v": 1, "type": event_type, "data": data}))


def _nobody_cares() -> None:
    pass


class EventLog:
    """The events of one session.

    Args:
        epoch: a token that changes with every life of the log; a cursor is valid in its own epoch only.
        ring_size: how many events are kept for replay, at the most.
        ring_bytes: how many bytes they may have together; the newest event is kept whatever its size.
        max_subscribers: how many readers there may be.
        on_evict: called for each reader that was too slow; must not block.
    """

    def __init__(
        self,
        epoch: str,
        *,
        ring_size: int,
        max_subscribers: int,
        ring_bytes: int = RING_BYTES,
        on_evict: Callable[[], None] = _nobody_cares,
    ) -> None:
        self.epoch = epoch
        self.closed = False
        self._ring: deque[Frame] = deque(maxlen=ring_size)
        self._ring_bytes = 0
        self._ring_bytes_max = ring_bytes
        self._last_id = 0
        self._max_subscribers = max_subscribers
        self._on_evict = on_evict
        self._subscriptions: dict[Subscription, None] = {}

    @property
    def last_id(self) -> int:
        """Id of the newest event; 0 before the first. A prompt's cursor is taken before it is queued."""
        return self._last_id

    @property
    def subscriber_count(self) -> int:
        """How many readers are subscribed."""
        return len(self._subscriptions)

    def publish(
        self,
        event_type: str,
        data: dict[str, JsonValue],
        *,
        timestamp_ms: int,
        prompt_id: str | None = None,
        originator: str | None = None,
    ) -> int | None:
        """Numbers an event, keeps it and hands it to every reader. Returns its id; None once the log is closed."""
        if self.closed:
            return None
        event_id = self._last_id + 1
        envelope: dict[str, JsonValue] = {"id": event_id, "v": 1, "type": event_type}
        if prompt_id is not None:
            envelope["promptId"] = prompt_id
        envelope["data"] = data
        if originator is not None:
            envelope["originatorClientId"] = originator
        envelope["_meta"] = {"serverTimestamp": timestamp_ms}
        frame = Frame(event_id, encode_frame(event_id, event_type, envelope))
        self._last_id = event_id
        self._keep(frame)
        for subscription in list(self._subscriptions):
            subscription._push(frame)  # noqa: SLF001  # one module, one mechanism: only the log feeds a queue
            if subscription.evicted:
                self.unsubscribe(subscription)
                self._on_evict()
        return event_id

    def subscribe(
        self,
        wake: Callable[[], None],
        *,
        limits: SubscriberLimits,
        after_id: int | None = None,
        epoch: str | None = None,
    ) -> Subscription:
        """Adds a reader.

        Args:
            wake: called whenever there is something to take or the end was reached; must not block.
            limits: the bounds of its queue.
            after_id: replay everything kept with a higher id first; None for live events only.
            epoch: the epoch the cursor belongs to, if the reader knows it.

        Raises:
            SubscribersFullError: there are as many readers as may be; nothing has changed.
        """
        if len(self._subscriptions) >= self._max_subscribers:
            raise SubscribersFullError
        subscription = Subscription(limits, wake, after_id=self._last_id if after_id is None else after_id)
        if after_id is not None:
            for frame in self._replay_frames(after_id, epoch):
                subscription._push_replay(frame)  # noqa: SLF001  # see publish
        if self.closed:
            subscription.close()
        else:
            self._subscriptions[subscription] = None
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Takes a reader out; nothing happens if it is out already."""
        self._subscriptions.pop(subscription, None)

    def close(self) -> None:
        """Ends the log: readers get what is queued and then their end; later events are dropped."""
        self.closed = True
        for subscription in list(self._subscriptions):
            subscription.close()
        self._subscriptions.clear()
        # Nobody can be evicted any more. Holding on to whoever would be told is a cycle: all that was kept for replay
        # would lie in memory until Python's collector of cycles comes by, which can be hours.
        self._on_evict = _nobody_cares

    def _keep(self, frame: Frame) -> None:
        if self._ring and len(self._ring) == self._ring.maxlen:
            self._ring_bytes -= len(self._ring[0].data)
        self._ring.append(frame)
        self._ring_bytes += len(frame.data) if self._ring else 0
        while self._ring_bytes > self._ring_bytes_max and len(self._ring) > 1:
            self._ring_bytes -= len(self._ring.popleft().data)

    def _replay_frames(self, after_id: int, epoch: str | None) -> list[Frame]:
        frames: list[Frame] = []
        earliest = self._last_id - len(self._ring) + 1
        mismatch = epoch is not None and epoch != self.epoch
        if mismatch or after_id > self._last_id:
            detail = "epoch_mismatch" if mismatch else "cursor_ahead"
            frames.append(self._resync("epoch_reset", after_id, earliest, detail))
            after_id = 0
        elif after_id + 1 < earliest:
            frames.append(self._resync("ring_evicted", after_id, earliest))
        sent, sent_bytes, last_sent = 0, 0, after_id
        for frame in self._ring:
            if frame.id is None or frame.id <= after_id:
                continue
            if sent and sent_bytes + len(frame.data) > REPLAY_BYTES_MAX:
                frames.append(self._resync("replay_budget_exceeded", last_sent, earliest))
                break
            frames.append(frame)
            sent, sent_bytes, last_sent = sent + 1, sent_bytes + len(frame.data), frame.id
        done: dict[str, JsonValue] = {"replayedCount": sent}
        if sent:
            done |= {"lastReplayedEventId": last_sent, "lastEventId": last_sent}
        frames.append(notice_frame("replay_complete", done))
        return frames

    @staticmethod
    def _resync(reason: str, last_delivered: int, earliest: int, detail: str | None = None) -> Frame:
        data: dict[str, JsonValue] = {
            "reason": reason,
            "lastDeliveredId": last_delivered,
            "earliestAvailableId": earliest,
        }
        if detail is not None:
            data["detail"] = detail
        return notice_frame("state_resync_required", data)
