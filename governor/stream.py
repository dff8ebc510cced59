"""One subscriber's view of a session's events."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.core.events import EventLog, Frame, SubscriberLimits, Subscription
    from governor.untold import Untold


class EventStream:
    """One subscriber's view of a session's events, to be closed when done.

    Args:
        log: where they are kept.
        limits: the bounds of what may wait for this subscriber.
        after_id: the newest event that it has seen; None for those from now on.
        epoch: the life of the log that `after_id` belongs to, if it is known.
        untold: which events are not to be sent yet; the ones behind them wait as well.
        on_close: called whenever `close` is.
    """

    def __init__(
        self,
        log: EventLog,
        limits: SubscriberLimits,
        *,
        after_id: int | None,
        epoch: str | None,
        untold: Untold,
        on_close: Callable[[], None],
    ) -> None:
        self._log = log
        self._untold = untold
        self._on_close = on_close
        self._in_hand: Frame | None = None
        self._woken = trio.Event()
        self._subscription: Subscription = log.subscribe(self._wake, limits=limits, after_id=after_id, epoch=epoch)
        untold.wakes.add(self._wake)

    @property
    def evicted(self) -> bool:
        """The reader was too slow; after the notice nothing more comes."""
        return self._subscription.evicted

    async def next_frame(self) -> Frame | None:
        """The next frame; None when the session is over or the reader was evicted. Cancelled, it takes none."""
        await trio.lowlevel.checkpoint()
        while True:
            self._in_hand = self._in_hand or self._subscription.take()
            if self._in_hand is None and self._subscription.closed:
                return None
            until_s = self._held_until_s(self._in_hand)
            if until_s is None:
                frame, self._in_hand = self._in_hand, None
                return frame
            self._woken = trio.Event()
            with trio.move_on_at(until_s):
                await self._woken.wait()

    def _held_until_s(self, frame: Frame | None) -> float | None:
        """Until when to wait before this frame may be sent; None if it may be now."""
        if frame is None:
            return inf
        # A reader who keeps up must not be evicted for what is held: then it hears of it early.
        return None if frame.id is None or self._subscription.pressed else self._untold.held_until_s(frame.id)

    def close(self) -> None:
        """Ends the subscription. Synchronous, any number of times."""
        self._log.unsubscribe(self._subscription)
        self._untold.wakes.discard(self._wake)
        self._on_close()

    def _wake(self) -> None:
        self._woken.set()
