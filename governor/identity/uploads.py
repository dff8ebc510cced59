"""How a call's request reaches the backend: whole once it has a credit, or all but its end ahead of it (ADR-0018).

The backend executes nothing of a request whose last byte it has not got (E3). So the body of a large one goes straight
through: it is not kept here, and its upload, however slow, holds no slot. And the next calls in line stand by at the
backend, so that a slot that comes free waits for one byte of the next request, however long that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import structlog
import trio

from governor.errors import GovernorError
from governor.identity.call import CallState

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.identity.call import Call
    from governor.identity.firstlook import FirstLook
    from governor.identity.lanes import LanePool
    from governor.identity.port import ExchangePort, LanePort
    from governor.triton.wire import Body, WireRequest

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)
_SHORTEST_BYTES: Final = 2
"""A body of fewer has nothing before its end."""


class Way(Protocol):
    """How one request is sent."""

    @property
    def lane(self) -> LanePort:
        """What carries it."""

    async def connect(self, first_look: FirstLook) -> bool:
        """Leaves nothing to be done before the delivery.

        Returns:
            Whether time has passed meanwhile in which what stood may have fallen.

        Raises:
            BackendUnavailableError: nothing was delivered.
        """

    def exchange(self, wire: WireRequest, on_delivered: Callable[[], None]) -> ExchangePort:
        """The exchange, to be entered at once."""

    def over(self) -> None:
        """The lane is free again. Works once, also before anything was sent; synchronous."""


class WholeRequest:
    """Sent from head to end once its call has a credit."""

    def __init__(self, pool: LanePool) -> None:
        self.lane = pool.take()
        self._pool = pool

    async def connect(self, first_look: FirstLook) -> bool:
        """See `Way`."""
        await first_look.connect(self.lane)
        return False  # nothing stood

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

    @property
    def stands(self) -> bool:
        """All but the end is at the backend, as far as is known, and it has said nothing."""
        return self._exchange is not None and self._exchange.stands

    async def send_head(self, wire: WireRequest, length: int) -> None:
        """Connects and sends the head.

        Args:
            wire: the request; its body is not looked at.
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

    async def connect(self, first_look: FirstLook) -> bool:
        """See `Way`."""
        return await first_look.confirm(self.lane.boot)

    def exchange(self, wire: WireRequest, on_delivered: Callable[[], None]) -> ExchangePort:  # noqa: ARG002  # sent
        """See `Way`."""
        assert self._exchange is not None, "the head comes first"
        self._has_credit = True
        self._pool.has_credit(self.lane)
        self._uploads.under_way -= 1  # whoever wants the place hears of it after the delivery
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
    """The requests of one identity that go ahead of their credits, as many at a time as there are slots.

    Args:
        pool: where lanes come from.
        first_look: what is looked at before a call.
        places: how many may go ahead at a time.

    Attributes:
        under_way: how many go ahead now, or wait for their credit with all but their end sent.
    """

    def __init__(self, pool: LanePool, first_look: FirstLook, places: Callable[[], int]) -> None:
        self.under_way = 0
        self._pool = pool
        self._first_look = first_look
        self._places = places
        self._wanting: dict[Call, None] = {}

    def begin(self) -> Upload | None:
        """One more, if there is a place for it; else its request is better kept here. Synchronous."""
        if self._places() <= self.under_way:
            return None
        self.under_way += 1
        return Upload(self, self._pool, self._first_look)

    async def stand_by(self, call: Call) -> None:
        """Sends the request of a call that waits for its credit ahead of it, as soon as there is a place for that.

        Its slot then stands still for one byte only. For the call's own caller, who has nothing else to do meanwhile;
        returns when the call has its credit, or nothing of this is left to do. What goes wrong is tried again whole.
        """
        if call.upload is not None or len(call.request.wire.body) < _SHORTEST_BYTES:
            return
        try:
            while call.state is CallState.WAITING:
                upload = self.begin()
                if upload is not None:
                    await self._send_ahead(call, upload)
                    return
                self._wanting[call] = None
                await call.changed()
        finally:
            self._wanting.pop(call, None)
            self.wake()  # it may have been told of a place that it did not take

    async def _send_ahead(self, call: Call, upload: Upload) -> None:
        wire = call.request.wire
        try:
            # The call is not to wait for this: not even for a connection that it does without.
            with trio.CancelScope() as call.going_ahead:
                await upload.send_head(wire, len(wire.body))
                await upload.send(memoryview(wire.body)[:-1])
                upload.keep_back(wire.body[-1:])
                if call.state is CallState.WAITING and upload.stands:
                    call.upload = upload
        except GovernorError:
            pass  # with its credit it is sent whole, and its caller hears what comes of that
        except Exception:  # noqa: BLE001  # a fault here costs the call nothing: it is sent whole
            _log.exception("standing_by_failed")
        finally:
            call.going_ahead = None
            if call.upload is not upload:
                upload.over()

    def way_of(self, call: Call) -> Way:
        """How the request of a call that has its credit is sent: its end alone, if all else still stands."""
        upload = call.upload
        if upload is not None and (upload.stands or not call.request.wire.body):
            return upload
        if upload is not None:
            call.upload = None
            upload.over()
        return WholeRequest(self._pool)

    def one_less(self) -> None:
        """For `Upload`: a place is free."""
        self.under_way -= 1
        self.wake()

    def wake(self) -> None:
        """Tells as many of those who want a place as there are places, the first first."""
        if not self._wanting:
            return
        free = self._places() - self.under_way
        for call in list(self._wanting)[: max(0, free)]:
            del self._wanting[call]
            call.poke()
