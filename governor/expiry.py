"""Closes sessions that nobody uses, and looks only at those that may be due (A5).

A look at every session every two seconds stopped the service for 150 ms at 100,000 of them (docs/performance.md). So
each waits in a list of those that are to be looked at in the same second, and the look puts it into a later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from governor.config import LimitsConfig
    from governor.session import Session

_AT_ONCE: Final = 200
"""Sessions looked at before somebody else may run: less than half a millisecond."""


class Expiry:
    """Which session is to be looked at when.

    Args:
        sessions: those that live, by id.
        limits: the bounds that are in force.
        close: closes the session of an id, for a reason.
    """

    def __init__(
        self,
        sessions: Mapping[str, Session],
        limits: Callable[[], LimitsConfig],
        close: Callable[[str, str], None],
    ) -> None:
        self._sessions = sessions
        self._limits = limits
        self._close = close
        # By second. A session is named, not held: one that has ended takes no memory until its second comes. The number
        # tells it from a later one of the same id.
        self._looks: dict[int, list[tuple[str, int]]] = {}

    def watch(self, session: Session) -> None:
        """Looks at a new session in time."""
        self._look_at(trio.current_time() + min(self._timeouts_s()), (session.id, session.number))

    def look_at_all(self) -> None:
        """Other bounds are in force: every session is looked at soon."""
        self._looks = {0: [entry for second in self._looks.values() for entry in second]}

    async def run(self) -> None:
        """Closes what is due until it is cancelled."""
        while True:
            await trio.sleep(max(1.0, min(self._timeouts_s()) / 30))
            for number, (session_id, session_number) in enumerate(self._due(), 1):
                if number % _AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                session = self._sessions.get(session_id)
                if session is not None and session.number == session_number:
                    self._look(session)

    def _due(self) -> Iterator[tuple[str, int]]:
        now_s = trio.current_time()
        due = [self._looks.pop(second) for second in sorted(self._looks) if second <= now_s]
        return (entry for second in due for entry in second)

    def _look(self, session: Session) -> None:
        now_s = trio.current_time()
        idle_s, detached_s = self._timeouts_s()
        # Whatever takes place from now on, the end of a use or the last detachment, begins a time of its own: nothing
        # that is not due by now can be due before the shorter one is over.
        next_s = now_s + min(idle_s, detached_s)
        if not session.in_use:
            unused_s = now_s - session.last_active_s
            if unused_s > idle_s:
                self._close(session.id, "idle_timeout")
                return
            if session.clients.abandoned and unused_s > detached_s:
                self._close(session.id, "last_client_detached")
                return
            limit_s = min(idle_s, detached_s) if session.clients.abandoned else idle_s
            next_s = min(next_s, session.last_active_s + limit_s)
        self._look_at(next_s, (session.id, session.number))

    def _look_at(self, at_s: float, entry: tuple[str, int]) -> None:
        self._looks.setdefault(int(at_s) + 1, []).append(entry)

    def _timeouts_s(self) -> tuple[float, float]:
        limits = self._limits()
        return limits.session_idle_timeout_ms / 1000, limits.session_detached_timeout_ms / 1000
