"""One subscriber's view of a session's events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.core.events import EventLog, Frame, SubscriberLimits, Subscription


class EventStream:
    """One subscriber's view of a session's events, to be closed when done.

    Args:
        log: where they are kept.
        limits: the bounds of what may wait for this subscriber.
        after_id: the newest event that it has seen; None for those from now on.
        epoch: the life of the log that `after_id` belongs to, if it is known.
        let_pass: waits until the event of an id may be sent; the ones behind it wait as well.
        on_close: called whenever `close` is.
    """

    def __init__(
        self,
        log: EventLog,
        limits: SubscriberLimits,
        *,
        after_id: int | None,
        epoch: str | None,
        let_pass: Callable[[int], Awaitable[None]],
        on_close: Callable[[], None],
    ) -> None:
        self._log = log
        self._let_pass = let_pass
        self._on_close = on_close
        self._in_hand: Frame | None = None
        self._woken = trio.Event()
        self._subscription: Subscription = log.subscribe(self._wake, limits=limits, after_id=after_id, epoch=epoch)

    @property
    def evicted(self) -> bool:
        """The reader was too slow; after the notice nothing more comes."""
        return self._subscription.evicted

    async def next_frame(self) -> Frame | None:
        """The next frame; None when the session is over or the reader was evicted. Cancelled, it takes none."""
        await trio.lowlevel.checkpoint()
        while self._in_hand is None:
            self._in_hand = self._subscription.take()
            if self._in_hand is None:
                if self._subscription.closed:
                    return None
                self._woken = trio.Event()
                await self._woken.wait()
        if self._in_hand.id is not None:
            await self._let_pass(self._in_hand.id)
        frame, self._in_hand = self._in_hand, None
        return frame

    def close(self) -> None:
        """Ends the subscription. Synchronous, any number of times."""
        self._log.unsubscribe(self._subscription)
        self._on_close()

    def _wake(self) -> None:
        self._woken.set()
