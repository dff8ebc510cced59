"""Prompts that have ended before their callers were told that they were accepted (S7).

A prompt ends at once, whoever ends it: its session is closed, the governor shuts down, another caller removes it. But
its 202 may still be on its way, on another connection than its events, and a client forgets a terminal event of a
prompt that it does not know. So what is told from a terminal event on waits until the prompt's caller knows of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from governor.pending import TOLD_S_MAX

if TYPE_CHECKING:
    from governor.pending import PendingPrompt


class Untold:
    """Those of one session."""

    def __init__(self) -> None:
        self._ended: dict[str, tuple[PendingPrompt, int, float]] = {}

    def __len__(self) -> int:
        return len(self._ended)

    def ends(self, pending: PendingPrompt, event_id: int) -> None:
        """A prompt ends now.

        Args:
            pending: the prompt; its caller may know of it or not.
            event_id: id of its terminal event.
        """
        if pending.told.is_set():
            return
        now_s = trio.current_time()
        for prompt_id in [key for key, (_, _, until_s) in self._ended.items() if until_s <= now_s]:
            del self._ended[prompt_id]
        self._ended[pending.id] = pending, event_id, now_s + TOLD_S_MAX

    def told(self, prompt_id: str) -> None:
        """The caller of a prompt knows that it was accepted. Nothing happens if it has not ended before."""
        ended = self._ended.pop(prompt_id, None)
        if ended is not None:
            ended[0].told.set()

    async def let_pass(self, event_id: int) -> None:
        """Waits until an event may be sent, 5 s after the end of a prompt at most: its caller may take no answer."""
        for pending, ended_by_id, until_s in list(self._ended.values()):
            if ended_by_id <= event_id:
                with trio.move_on_at(until_s):
                    await pending.told.wait()
