"""The local reservation: how many prompts of each session this client has pending (C2, C3). Pure.

It is an early failure, not the authority: the server counts the prompts of all its clients. A lock makes it safe to
use from several threads, so that a refusal costs no trip to the event loop's thread.
"""

from __future__ import annotations

import math
from threading import Lock
from typing import TYPE_CHECKING, Final

from .errors import DaemonPendingPromptLimitError

if TYPE_CHECKING:
    from types import TracebackType

DEFAULT_MAX_PENDING_PROMPTS: Final = 5
"""The protocol's default; the server tells its own in `/capabilities`."""


def normalize_pending_prompt_limit(value: float | None) -> int | None:
    """The limit that an option stands for, as `/capabilities` or a caller gives it (C3, S1).

    Args:
        value: a whole number; None, 0 and infinity all mean that there is no limit.

    Returns:
        A positive number, or None where there is no limit.

    Raises:
        TypeError: it is no number (a bool is none).
        ValueError: it is negative, fractional or NaN.
    """
    given: object = value
    if given is None or given == math.inf:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"max_pending_prompts_per_session must be a whole number or None; received {given!r}")
    if isinstance(given, float) or given < 0:
        raise ValueError(f"max_pending_prompts_per_session must be a whole number of at least 0; received {given!r}")
    return given or None


class Reservation:
    """One pending prompt's place. Leaving its `with` block releases it, unless it was released before."""

    def __init__(self, owner: Reservations, session_id: str) -> None:
        self._owner = owner
        self._session_id = session_id
        self._held = True

    def release(self) -> None:
        """Gives the place back, once; further calls do nothing."""
        with self._owner._lock:  # noqa: SLF001  # one module, one mechanism
            if self._held:
                self._held = False
                self._owner._forget(self._session_id)  # noqa: SLF001  # see above

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.release()


class Reservations:
    """The places of all sessions of one client. A client and its session clients share one object."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = Lock()

    def pending(self, session_id: str) -> int:
        """How many prompts of the session are pending."""
        return self._counts.get(session_id, 0)

    @property
    def total(self) -> int:
        """How many prompts of all sessions are pending."""
        with self._lock:
            return sum(self._counts.values())

    def require_room(self, session_id: str, limit: int | None) -> None:
        """Raises what `reserve` would raise, and reserves nothing."""
        count = self._counts.get(session_id, 0)
        if limit is not None and count >= limit:
            raise DaemonPendingPromptLimitError(session_id, limit, count)

    def reserve(self, session_id: str, limit: int | None) -> Reservation:
        """Takes a place for one prompt; it must be released.

        Args:
            session_id: whose place.
            limit: how many there are; None for as many as one wants.

        Raises:
            DaemonPendingPromptLimitError: all are taken. Nothing was counted.
        """
        with self._lock:
            self.require_room(session_id, limit)
            self._counts[session_id] = self._counts.get(session_id, 0) + 1
        return Reservation(self, session_id)

    def _forget(self, session_id: str) -> None:
        left = self._counts[session_id] - 1
        if left:
            self._counts[session_id] = left
        else:
            del self._counts[session_id]
