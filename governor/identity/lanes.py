"""The lanes of one identity: as many as it has slots, handed out warm first, closed soon after their last use (D2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.identity.port import LanePort


class LanePool:
    """Free lanes. A lane is taken with a credit or ahead of it, and given back when its call's exchange is over.

    Args:
        make: makes a lane; called only when every free one is in use.
        idle_s: seconds after which an unused connection is closed, because an idle open connection delays the
            backend's own shutdown.

    Attributes:
        idle_s: as given; may be changed.
    """

    def __init__(self, make: Callable[[], LanePort], *, idle_s: float) -> None:
        self._make = make
        self.idle_s = idle_s
        self._free: list[tuple[float, LanePort]] = []
        self._ahead: set[LanePort] = set()
        self._returned = trio.Event()
        self._ended = False

    def take(self) -> LanePort:
        """The most recently used free lane, or a new one."""
        return self._free.pop()[1] if self._free else self._make()

    def goes_ahead(self, lane: LanePort) -> None:
        """It is connected, for a request that is sent ahead of its credit: `close` closes it, until `has_credit`."""
        self._ahead.add(lane)

    def has_credit(self, lane: LanePort) -> None:
        """What was sent ahead is about to be delivered: from now on its call alone decides about the connection."""
        self._ahead.discard(lane)

    def give_back(self, lane: LanePort) -> None:
        """The exchange on it is over, in whatever way."""
        self._ahead.discard(lane)
        if self._ended:
            lane.close()
            return
        self._free.append((trio.current_time(), lane))
        self._returned.set()

    def close(self, *, but: str | None = None) -> None:
        """Closes every lane without a credit at once, except those to the process with the boot identity `but`."""
        for lane in (*(lane for _, lane in self._free), *self._ahead):
            if but is None or lane.boot != but:
                lane.close()

    def end(self) -> None:
        """Nobody closes idle connections any more: none is kept from now on."""
        self._ended = True
        self.close()

    async def close_idle_lanes(self) -> None:
        """Runs for ever: closes each connection once it has been unused for the idle time."""
        while True:
            connected = [(since_s, lane) for since_s, lane in self._free if lane.connected]
            if not connected:
                self._returned = trio.Event()
                await self._returned.wait()
                continue
            await trio.sleep_until(min(since_s for since_s, _ in connected) + self.idle_s)
            now_s = trio.current_time()
            for since_s, lane in self._free:
                if since_s + self.idle_s <= now_s:  # the same sum as above: rounding must not make it spin
                    lane.close()
