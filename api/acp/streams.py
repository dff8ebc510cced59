"""The readers' ends of a connection: what `EventBody` sends.

What was handed out counts as taken when the next frame is asked for, as the one before was sent by then. Responses
that were handed out and not taken when a reader leaves go back to where they came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from governor.core.events import Frame
from governor.journal import envelope_of

from .messages import notification_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.core.events import Subscription

    from .calls import Call, Outbox


class ResponseStream:
    """A connection's own stream: responses, in the order in which they came.

    Args:
        outbox: what is read.
        taken: called with responses that were sent.
        on_close: called once, when nobody reads any more.
    """

    def __init__(
        self, outbox: Outbox, taken: Callable[[list[Call]], None], on_close: Callable[[ResponseStream], None]
    ) -> None:
        self._outbox = outbox
        self._taken = taken
        self._on_close = on_close
        self._in_hand: list[Call] = []
        self._woken = trio.Event()
        self._ending = False
        self._closed = False
        outbox.wake = self._wake

    async def next_frame(self) -> Frame | None:
        """The next frame; None at the end. Cancelled, it takes none."""
        self._confirm()
        await trio.lowlevel.checkpoint()
        while not self._closed:
            frame = self._take()
            if frame is not None:
                return frame
            if self._is_over():
                return None
            self._woken = trio.Event()
            await self._woken.wait()
        return None

    def end(self) -> None:
        """Lets the reader have what there is, and then its end."""
        self._ending = True
        self._wake()

    def close(self) -> None:
        """Nobody reads any more, or somebody else does. Synchronous, any number of times."""
        if self._closed:
            return
        self._closed = True
        in_hand, self._in_hand = self._in_hand, []
        self._outbox.put_back(in_hand)
        self._on_close(self)
        self._wake()

    def _take(self) -> Frame | None:
        self._in_hand = self._outbox.take()
        return Frame(None, _joined(self._in_hand)) if self._in_hand else None

    def _is_over(self) -> bool:
        return self._ending

    def _confirm(self) -> None:
        in_hand, self._in_hand = self._in_hand, []
        self._taken(in_hand)

    def _wake(self) -> None:
        self._woken.set()


class SessionStream(ResponseStream):
    """A stream of one session: its events as notifications, and the responses that belong to it.

    A prompt's response goes out in one piece with the event that ends its turn, before it: whoever comes back with that
    event's id has had the response, and whoever comes back with an older one gets both.

    Args:
        subscribe: subscribes to the session's events; gets what wakes this stream.
        unsubscribe: takes the subscription back.
        outbox, taken, on_close: as of `ResponseStream`.

    Attributes:
        taken_id: id of the newest event that was sent.
    """

    def __init__(
        self,
        subscribe: Callable[[Callable[[], None]], Subscription],
        unsubscribe: Callable[[Subscription], None],
        outbox: Outbox,
        taken: Callable[[list[Call]], None],
        on_close: Callable[[ResponseStream], None],
    ) -> None:
        super().__init__(outbox, taken, on_close)
        self._subscription = subscribe(self._wake)
        self._unsubscribe = unsubscribe
        self._id_in_hand: int | None = None
        self._handed_id = 0
        self.taken_id: int | None = None

    def end(self) -> None:
        """Lets the reader have what there is, and then its end."""
        self._subscription.close()
        super().end()

    def close(self) -> None:
        """Nobody reads any more, or somebody else does. Synchronous, any number of times."""
        self._unsubscribe(self._subscription)
        super().close()

    def _take(self) -> Frame | None:
        frame = self._subscription.take()
        if frame is None:
            # Who was too slow has not seen the ends of these turns; the responses come with them on its next stream.
            return None if self._subscription.evicted else self._take_responses()
        told = notification_of(envelope_of(frame), frame.id)
        if frame.id is None:
            return told
        self._id_in_hand = frame.id
        self._handed_id = frame.id
        self._in_hand = self._outbox.take(before=frame.id)
        for call in self._in_hand:
            call.sure = True
        return Frame(frame.id, _joined(self._in_hand) + told.data)

    def _take_responses(self) -> Frame | None:
        taken = super()._take()
        for call in self._in_hand:
            call.sure = self._handed_id > call.anchor
        return taken

    def _is_over(self) -> bool:
        return self._subscription.closed

    def _confirm(self) -> None:
        if self._id_in_hand is not None:
            self.taken_id, self._id_in_hand = self._id_in_hand, None
        super()._confirm()


def _joined(calls: list[Call]) -> bytes:
    return b"".join(call.frame for call in calls)
