"""Prompts that have ended before their callers were told that they were accepted (S7).

A prompt ends at once, whoever ends it: its session is closed, the governor shuts down, another caller removes it. But
its 202 may still be on its way, on another connection than its events, and a client forgets a terminal event of a
prompt that it does not know. So what is told from its end on waits until the prompt's caller knows of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

HELD_S_MAX: Final = 1.0
"""So long the news of a prompt's end wait for its 202: its caller may take no answer."""


class Untold:
    """Those of one session.

    Attributes:
        wakes: called whenever less is held than before. They must neither block nor raise.
    """

    def __init__(self) -> None:
        self.wakes: set[Callable[[], None]] = set()
        self._longest_s = HELD_S_MAX
        self._held: dict[str, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def ends(self, prompt_id: str, event_id: int) -> None:
        """A prompt ends whose caller does not know of it.

        Args:
            prompt_id: the prompt; the first call for it counts.
            event_id: id of the first event that tells of its end.
        """
        self._held.setdefault(prompt_id, (event_id, trio.current_time() + self._longest_s))

    def told(self, prompt_id: str) -> None:
        """The caller of a prompt knows that it was accepted. Nothing happens if it has not ended before."""
        if self._held.pop(prompt_id, None) is not None:
            self._wake()

    def hurry(self, longest_s: float) -> None:
        """From now on nothing is held for longer than this, in seconds: who reads will be cut off soon."""
        self._longest_s = min(longest_s, self._longest_s)
        until_s = trio.current_time() + self._longest_s
        self._held = {prompt_id: (first, min(end_s, until_s)) for prompt_id, (first, end_s) in self._held.items()}
        self._wake()

    def held_until_s(self, event_id: int) -> float | None:
        """Until when an event waits at the longest, in trio's seconds; None if it may be sent."""
        if not self._held:
            return None
        now_s = trio.current_time()
        self._held = {prompt_id: held for prompt_id, held in self._held.items() if held[1] > now_s}
        return min((end_s for first, end_s in self._held.values() if first <= event_id), default=None)

    def _wake(self) -> None:
        for wake in list(self.wakes):
            wake()
