"""How a call's request reaches the backend: whole once it has a credit, or all but its end ahead of it (ADR-0018).

The backend executes nothing of a request whose last byte it has not got (E3). So the body of a large one goes straight
through while slots are free: it is neither kept here, nor does its upload, however slow, hold a slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.identity.firstlook import FirstLook
    from governor.identity.lanes import LanePool
    from governor.identity.port import ExchangePort, LanePort
    from governor.triton.wire import Body, WireRequest


class Way(Protocol):
    """How one request is sent."""

    @property
    def lane(self) -> LanePort:
        """What carries it."""

    async def connect(self, first_look: FirstLook) -> None:
        """Leaves nothing to be done before the delivery. Raises BackendUnavailableError; nothing was delivered."""

    def exchange(self, wire: WireRequest, on_delivered: Callable[[], None]) -> ExchangePort:
        """The exchange, to be entered at once."""

    def over(self) -> None:
        """The lane is free again. Works once, also before anything was sent; synchronous."""


class WholeRequest:
    """Sent from head to end once its call has a credit."""

    def __init__(self, pool: LanePool) -> None:
        self.lane = pool.take()
        self._pool = pool

    async def connect(self, first_look: FirstLook) -> None:
        """See `Way`."""
        await first_look.connect(self.lane)

    def exchange(self, wire: WireRequest, on_delivered: Callable[[], None]) -> ExchangePort:
        """See `Way`."""
        return self.lane.exchange(wire, on_delivered=on_delivered)

    def over(self) -> None:
        """See `Way`."""
        self._pool.give_back(self.lane)


class Upload:
    """A request that is sent ahead of its call's credit, but for its end.

    Whoever opened it calls `over`, unless it was given to `Identity.submit`: then its call does.
    """

    def __init__(self, uploads: Uploads, pool: LanePool, first_look: FirstLook) -> None:
        self._uploads = uploads
        self._pool = pool
        self._first_look = first_look
        self._lane: LanePort | None = None
        self._exchange: ExchangePort | None = None
        self._end: Body = b""
        self._has_credit = False
        self._is_over = False

    @property
    def lane(self) -> LanePort:
        """See `Way`."""
        assert self._lane is not None, "the head comes first"
        return self._lane

    async def send_head(self, wire: WireRequest, length: int) -> None:
        """Connects and sends the head.

        Args:
            wire: the request without its body.
            length: of the body, at least one byte.

        Raises:
            BackendUnavailableError: the backend cannot be reached, or did not take it.
        """
        self._lane = lane = self._pool.take()
        await self._first_look.connect(lane)
        self._pool.goes_ahead(lane)
        self._exchange = lane.exchange(wire)
        await self._exchange.begin(length)

    async def send(self, piece: Body) -> None:
        """Sends a piece of the body without its last byte; `piece` may be used again afterwards.

        Raises:
            BackendUnavailableError: the backend did not take it.
        """
        assert self._exchange is not None, "the head comes first"
        await self._exchange.send_ahead(piece)

    def keep_back(self, end: Body) -> None:
        """What is left of the body; it is sent when the call has a credit."""
        self._end = end

    async def connect(self, first_look: FirstLook) -> None:
        """See `Way`."""
        await first_look.confirm(self.lane.boot)

    def exchange(self, wire: WireRequest, on_delivered: Callable[[], None]) -> ExchangePort:  # noqa: ARG002  # sent
        """See `Way`."""
        assert self._exchange is not None, "the head comes first"
        self._has_credit = True
        self._pool.has_credit(self.lane)
        self._uploads.one_less()
        self._exchange.end_with(self._end, on_delivered)
        return self._exchange

    def over(self) -> None:
        """See `Way`."""
        if not self._is_over:
            self._is_over = True
            if self._exchange is not None:
                self._exchange.give_up()
            if self._lane is not None:
                self._pool.give_back(self._lane)
            if not self._has_credit:
                self._uploads.one_less()


class Uploads:
    """The requests of one identity that go ahead of their credits: no more than there are credits for.

    Args:
        pool: where lanes come from.
        first_look: what is looked at before a call.
        room: how many calls more would get a credit at once.

    Attributes:
        under_way: how many go ahead now, or wait for their credit with all but their end sent.
    """

    def __init__(self, pool: LanePool, first_look: FirstLook, room: Callable[[], int]) -> None:
        self.under_way = 0
        self._pool = pool
        self._first_look = first_look
        self._room = room

    def begin(self) -> Upload | None:
        """One more, if a slot is free for it; else its request is better kept here until there is one. Synchronous."""
        if self._room() <= self.under_way:
            return None
        self.under_way += 1
        return Upload(self, self._pool, self._first_look)

    def one_less(self) -> None:
        """For `Upload`."""
        self.under_way -= 1
