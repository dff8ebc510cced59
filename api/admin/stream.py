"""The live state for operators: a snapshot at once, then what changes, as server-sent events (A7, D13).

Nothing is computed while nobody listens, and what several listen to is computed once. Each listener gets the newest
state when it is ready for it and none in between, so a slow one costs no memory.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import trio
from quart.wrappers.response import ResponseBody

from governor.errors import RefusedError

from ..sse import GREETING, HEARTBEAT
from .views import recent_event, state, without_ages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from governor.errors import JsonValue
    from governor.service import Governor

LISTENERS_MAX: Final = 16
INTERVAL_S: Final = 0.25
"""No listener gets more states than one in this time."""
_LONG_READING_S: Final = 0.5


class AdminListenersFullError(RefusedError):
    """As many operators listen as may."""

    code = "subscriber_limit_exceeded"
    status = 429

    def __init__(self) -> None:
        super().__init__(f"{LISTENERS_MAX} streams of /admin/events are open, which is the limit", limit=LISTENERS_MAX)


class StateFeed:
    """What is streamed, for all listeners of one governor.

    Attributes:
        listeners: open streams.
    """

    def __init__(self, governor: Governor) -> None:
        self.governor = governor
        self.listeners = 0
        self._looked_at_s = float("-inf")
        self._version = 0
        self._compared: JsonValue = None
        self._frame = b""

    def look(self) -> tuple[int, bytes]:
        """The newest state as a frame, and a number that grows whenever more than ages has changed."""
        now_s = trio.current_time()
        if now_s - self._looked_at_s >= INTERVAL_S or self.governor.stopped.is_set():
            self._looked_at_s = now_s
            told: JsonValue = state(self.governor)
            compared: JsonValue = [without_ages(told), [*self._readings(now_s)]]
            if compared != self._compared:
                self._version += 1
                self._compared = compared
                self._frame = _frame("state", told)
        return self._version, self._frame

    def _readings(self, now_s: float) -> Iterator[JsonValue]:
        """Ages make no new state, but a reading that came does, once a second, and one that is long in coming."""
        for identity in self.governor.identities.values():
            at_s, asked_at_s = identity.watch.reading_at_s, identity.watch.asked_at_s
            yield int(at_s) if at_s is not None else None
            yield asked_at_s is not None and now_s - asked_at_s >= _LONG_READING_S


class FeedBody(ResponseBody):
    """The frames of one listener.

    Args:
        feed: what is told.
        heartbeat_s: a comment after so many seconds without a frame.
        after_id: the newest event that the listener knows already.

    Raises:
        AdminListenersFullError: as many listen as may.
    """

    def __init__(self, feed: StateFeed, *, heartbeat_s: float, after_id: int) -> None:
        if feed.listeners >= LISTENERS_MAX:
            raise AdminListenersFullError
        feed.listeners += 1
        self._feed = feed
        self._heartbeat_s = heartbeat_s
        self._open = True
        self._greeted = False
        self._version = -1
        recent = feed.governor.recent
        # Events are numbered anew in each process.
        self._event_id = after_id if after_id <= recent.last_id else 0
        self._newest = (self._event_id, 1)
        self._changes = -1
        self._next_look_s = float("-inf")

    def close(self) -> None:
        """Nobody listens any more. May be called more than once."""
        if self._open:
            self._open = False
            self._feed.listeners -= 1

    async def __aenter__(self) -> FeedBody:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> FeedBody:
        return self

    async def __anext__(self) -> bytes:
        if not self._greeted:
            self._greeted = True
            return GREETING
        stopped = self._feed.governor.stopped
        silent_until_s = trio.current_time() + self._heartbeat_s
        while True:
            with trio.move_on_at(self._next_look_s):
                await stopped.wait()
            told = self._told()
            if told:
                return told
            if stopped.is_set():
                raise StopAsyncIteration
            if trio.current_time() >= silent_until_s:
                return HEARTBEAT

    def _told(self) -> bytes:
        self._next_look_s = trio.current_time() + INTERVAL_S
        told = self._new_events()
        version, frame = self._feed.look()
        if version != self._version:
            self._version = version
            told += frame
        return told

    def _new_events(self) -> bytes:
        recent = self._feed.governor.recent
        if recent.changes == self._changes:
            return b""
        self._changes = recent.changes
        # The newest one that was told may have happened again since.
        events = [event for event in recent.after(self._event_id - 1) if (event.id, event.count) != self._newest]
        if not events:
            return b""
        self._event_id, self._newest = events[-1].id, (events[-1].id, events[-1].count)
        return _frame("recent", {"events": [recent_event(event) for event in events]}, self._event_id)


def _frame(kind: str, data: JsonValue, event_id: int | None = None) -> bytes:
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()
