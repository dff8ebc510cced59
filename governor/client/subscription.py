"""A session's events for a caller that listens for long: `async with session.events() as events`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import DaemonUsageError
from .source import STREAM_SILENCE_S, EventSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from .cursor import Cursor
    from .events import DaemonEvent
    from .http import Http


class EventStream:
    """Gives one event after the other until the session ends; connections that break are continued on new ones.

    Events are read as they are asked for, so a caller that is slow slows nobody down but itself: the server drops the
    connection of a reader that is too slow, and the next one goes on where it ended.

    Args:
        http: the server.
        session_id: whose events.
        cursor: where to begin.
        max_queued: how many events may wait at the server for this reader.
        client_id: who reads.
        silence_s: see `STREAM_SILENCE_S`.
        on_enter: called where the block begins; what it raises is raised there.
        on_taken: called with the cursor whenever the caller asks for the event after it, and so has done with it.
        on_exit: called where the block ends.
    """

    def __init__(
        self,
        http: Http,
        session_id: str,
        cursor: Cursor,
        *,
        max_queued: int | None = None,
        client_id: str | None = None,
        silence_s: float = STREAM_SILENCE_S,
        on_enter: Callable[[], None] | None = None,
        on_taken: Callable[[Cursor], None] | None = None,
        on_exit: Callable[[], None] | None = None,
    ) -> None:
        self._source = EventSource(
            http, session_id, cursor, client_id=client_id, max_queued=max_queued, silence_s=silence_s
        )
        self._on_enter = on_enter
        self._on_taken = on_taken
        self._on_exit = on_exit
        self._entered = False

    @property
    def last_event_id(self) -> int | None:
        """The last event that was given out."""
        return self._source.cursor.last_id

    @property
    def event_epoch(self) -> str | None:
        """The life of the event log that it belongs to."""
        return self._source.cursor.epoch

    async def __aenter__(self) -> EventStream:
        if self._on_enter is not None:
            self._on_enter()
        self._entered = True
        try:
            await self._source.start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> DaemonEvent:
        if not self._entered:
            raise DaemonUsageError("Events are read inside of a block: async with session.events() as events")
        if self._on_taken is not None:
            self._on_taken(self._source.cursor)
        event = await self._source.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """Leaves the block before its end; whoever waits for an event gets `DaemonStreamError`. Harmless again."""
        if self._entered:
            self._entered = False
            if self._on_exit is not None:
                self._on_exit()
            await self._source.finish()
