"""Places in a session's queue that are no prompt's (S5): ordered like prompts, but they take no slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from governor.journal import Kept


@dataclass(slots=True, eq=False)
class _Place:
    """One of them: the pending prompts before it, and what was to be seen when its turn came."""

    before: set[str]
    seen: Kept | None = None
    reached: trio.Event = field(default_factory=trio.Event)


class Places:
    """Those of one session.

    Args:
        look: what is to be seen of the session now; called when a place's turn has come, before the next prompt begins.
    """

    def __init__(self, look: Callable[[], Kept]) -> None:
        self._look = look
        self._waiting: dict[_Place, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def take(self, pending: Iterable[str]) -> Kept:
        """Waits until these prompts have settled. Who is cancelled gives the place up."""
        await trio.lowlevel.checkpoint_if_cancelled()
        place = _Place(set(pending))
        if not place.before:
            return self._look()
        self._waiting[place] = None
        try:
            await place.reached.wait()
        finally:
            self._waiting.pop(place, None)
        assert place.seen is not None
        return place.seen

    def settled(self, prompt_id: str) -> None:
        """A prompt has settled. Synchronous: whoever's turn has come sees the session as it is now."""
        for place in list(self._waiting):
            place.before.discard(prompt_id)
            if not place.before and place.seen is None:
                place.seen = self._look()
                place.reached.set()
