"""One subscriber's view of a session's events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.core.events import EventLog, Frame, SubscriberLimits, Subscription


class EventStream:
    """One subscriber's view of a session's events, to be closed when done."""

    def __init__(
        self,
        log: EventLog,
        limits: SubscriberLimits,
        *,
        after_id: int | None,
        epoch: str | None,
        on_close: Callable[[], None],
    ) -> None:
        self._log = log
        self._on_close = on_close
        self._woken = trio.Event()
        self._subscription: Subscription = log.subscribe(self._wake, limits=limits, after_id=after_id, epoch=epoch)

    @property
    def evicted(self) -> bool:
        """The reader was too slow; after the notice nothing more comes."""
        return self._subscription.evicted

    async def next_frame(self) -> Frame | None:
        """The next frame; None when the session is over or the reader was evicted. Cancelled, it takes none."""
        await trio.lowlevel.checkpoint()
        while True:
            frame = self._subscription.take()
            if frame is not None:
                return frame
            if self._subscription.closed:
                return None
            self._woken = trio.Event()
            await self._woken.wait()

    def close(self) -> None:
        """Ends the subscription. Synchronous, any number of times."""
        self._log.unsubscribe(self._subscription)
        self._on_close()

    def _wake(self) -> None:
        self._woken.set()
