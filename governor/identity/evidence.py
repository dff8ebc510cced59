"""The poller and the epoch actor of one identity, alive only while a claim waits on evidence (E9, T1).

The poller asks and reports; it decides nothing. The epoch actor is the one that hands readings to the ledger.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio
from trio_util import AsyncBool, move_on_when, periodic

from governor.errors import GovernorError

if TYPE_CHECKING:
    from governor.core.counting import Reading
    from governor.core.evidence import Ticket


class EvidenceUser(Protocol):
    """What the two tasks need of their identity.

    Attributes:
        reading_turn: held from before a reading is asked for until it is handed over: a reading that was overtaken
            by another tells nothing.
    """

    reading_turn: trio.Lock

    def begin_reading(self) -> Ticket:
        """What is true before a reading is asked for."""

    async def read(self) -> Reading:
        """Asks the backend. Raises GovernorError when there is no reading to be had."""

    def reading_failed(self, error: GovernorError) -> None:
        """The backend gave no reading; the claims stay as they are."""

    def apply(self, ticket: Ticket, reading: Reading) -> None:
        """Hands a reading to the ledger and does what follows from it."""

    def evidence_done(self) -> None:
        """No claim waits any more."""


async def watch_evidence(user: EvidenceUser, wanted: AsyncBool, *, interval_s: float) -> None:
    """Runs for ever: one poller and one epoch actor whenever `wanted` is true, neither otherwise.

    Args:
        user: the identity.
        wanted: whether some claim waits on evidence.
        interval_s: seconds from one reading to the next.
    """
    while True:
        await wanted.wait_value(True)
        async with move_on_when(partial(wanted.wait_value, False)):
            # A reading that nobody has taken yet is worth more than the next one: no buffer.
            send, receive = trio.open_memory_channel[tuple["Ticket", "Reading"]](0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_poll, user, send, interval_s)
                nursery.start_soon(_epoch_actor, user, receive)
        user.evidence_done()


async def _poll(user: EvidenceUser, report: trio.MemorySendChannel[tuple[Ticket, Reading]], interval_s: float) -> None:
    async with report:
        async for _ in periodic(interval_s):
            async with user.reading_turn:
                ticket = user.begin_reading()
                try:
                    reading = await user.read()
                except GovernorError as error:
                    user.reading_failed(error)
                else:
                    await report.send((ticket, reading))


async def _epoch_actor(user: EvidenceUser, reports: trio.MemoryReceiveChannel[tuple[Ticket, Reading]]) -> None:
    async with reports:
        async for ticket, reading in reports:
            user.apply(ticket, reading)
