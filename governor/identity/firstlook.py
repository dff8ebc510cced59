"""What an identity looks at before it delivers a call: what the model is, and a baseline (E4, E12, ADR-0007)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import trio

from governor.errors import BackendUnavailableError

if TYPE_CHECKING:
    from governor.core.ledger import Ledger
    from governor.identity.port import LanePort
    from governor.triton.metadata import ModelFacts

_CONNECTS_MAX = 3
"""A connection that dies while a reading is taken for its sake is replaced so often; then the backend is no use."""
_RELOADS_MAX = 3
"""A model that is another one after each question is asked about so often."""


class Looker(Protocol):
    """What is needed of the identity."""

    facts: ModelFacts | None

    async def know_facts(self) -> ModelFacts:
        """What the model is. Raises BackendUnavailableError when the backend does not tell."""

    async def take_reading(self) -> None:
        """One reading, applied or reported as failed."""


@dataclass(slots=True, eq=False)
class _Look:
    """One attempt to get facts and a reading, shared by all calls that wait for it."""

    done: trio.Event = field(default_factory=trio.Event)
    error: BackendUnavailableError | None = None
    finished: bool = False

    async def wait(self) -> bool:
        """Waits for its end; False if whoever looked was cancelled, so that it tells nothing. Raises what it raised."""
        await self.done.wait()
        if self.error is not None:
            raise self.error
        return self.finished


class FirstLook:
    """Connects a lane for one call and makes sure that what is needed to account for the call is known.

    A fresh connection may lead to another process than the last reading: unless its stamp says that it does not, a
    reading is taken first, so that a restart is noticed before anything is delivered into it. A connection that
    dies meanwhile is replaced, and then the same holds of the next one.

    A backend that gives no reading does not stop the call: its claim will await a baseline if it breaks.
    """

    def __init__(self, looker: Looker, ledger: Ledger) -> None:
        self._looker = looker
        self._ledger = ledger
        self._under_way: _Look | None = None

    async def connect(self, lane: LanePort) -> None:
        """Leaves the lane with a usable connection to a process whose counters have been read.

        Raises:
            BackendUnavailableError: no connection, or what the model is cannot be learned (E12).
        """
        looked = opened = False
        for _ in range(_CONNECTS_MAX):
            used_before = lane.generation
            await lane.connect()
            fresh = lane.generation != used_before
            opened |= fresh
            if not opened and self._is_left_over(lane.boot):
                lane.close()
                continue
            if (looked and not fresh) or self._is_known(lane.boot, fresh=fresh):
                return
            await self._join_look(lane.boot, fresh=fresh)
            looked = True
        raise BackendUnavailableError(f"{_CONNECTS_MAX} connections in a row died before a call could be sent")

    async def confirm(self, boot: str | None) -> bool:
        """As `connect`, for a lane whose request is under way (ADR-0018): its connection can be replaced no more.

        Whoever learns that another process answers closes such lanes (`LanePool.close`).

        Args:
            boot: boot identity of the process behind its connection.

        Returns:
            Whether that took any time.

        Raises:
            BackendUnavailableError: what the model is cannot be learned (E12).
        """
        if self._is_known(boot, fresh=False):
            return False
        await self._join_look(boot, fresh=False)
        return True

    def _is_left_over(self, boot: str | None) -> bool:
        """The connection leads to another process than the one that answers now.

        Something keeps it open for a dead one, and what is sent on it is never answered (E6).
        """
        return boot is not None and self._ledger.boot is not None and boot != self._ledger.boot

    def _is_known(self, boot: str | None, *, fresh: bool) -> bool:
        """A reading before the delivery would tell nothing new."""
        new_process = fresh and (boot is None or boot != self._ledger.boot)
        known = self._looker.facts is not None and not new_process
        return known and not self._ledger.wants_baseline(trio.current_time())

    async def _join_look(self, boot: str | None, *, fresh: bool) -> None:
        if self._under_way is not None:
            # It was begun before this call's connection was opened and may tell of the process before.
            await self._under_way.wait()
            if self._is_known(boot, fresh=fresh):
                return
        while self._under_way is not None:
            if await self._under_way.wait():
                return
        await self._look()

    async def _look(self) -> None:
        self._under_way = look = _Look()
        try:
            await self._look_until_known()
            look.finished = True
        except BackendUnavailableError as failed:
            look.error = failed
            raise
        finally:
            self._under_way = None
            look.done.set()

    async def _look_until_known(self) -> None:
        await self._looker.know_facts()
        await self._looker.take_reading()
        for _ in range(_RELOADS_MAX):
            if self._looker.facts is not None:
                return
            # The reading showed another load of the model: what that is decides what its counter means.
            await self._looker.know_facts()
            if self._ledger.wants_baseline(trio.current_time()):
                await self._looker.take_reading()
        raise BackendUnavailableError("The model is another one each time it is asked what it is")
