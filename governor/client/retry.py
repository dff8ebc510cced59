"""How often something is tried again, and after what pause. Pure but for the chance that it is given.

What may be tried again at all is decided where the request is made: what was never sent, what only looks, and what the
server refused before it did anything.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_JITTER: Final = 0.25
_EXPONENT_MAX: Final = 32


def parse_retry_after(value: str | None, *, now: datetime | None = None) -> float | None:
    """Seconds that a `Retry-After` header asks to wait; None if there is none that can be read."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit() and len(value) <= 9:
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and when to try again.

    Attributes:
        attempts: how often something is tried, the first time included; 1 for never again.
        first_pause_s: the pause after the first failure, in seconds; each further one is twice as long.
        max_pause_s: no pause of our own is longer.
        max_retry_after_s: a server that asks for a longer pause than this is not waited for.
        chance: a number from 0 to 1 for each call.
    """

    attempts: int = 4
    first_pause_s: float = 0.25
    max_pause_s: float = 5.0
    max_retry_after_s: float = 30.0
    chance: Callable[[], float] = field(default=random.random, repr=False)

    def pause_s(self, failures: int, retry_after_s: float | None = None) -> float | None:
        """Seconds to wait after so many failures; None if it is not tried again.

        Pauses are scattered, so that many clients that failed together do not come back together. What the server
        asks for is never cut short.
        """
        if failures >= self.attempts:
            return None
        if retry_after_s is not None:
            if retry_after_s > self.max_retry_after_s:
                return None
            return retry_after_s * (1 + _JITTER * self.chance())
        pause = min(self.max_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, _EXPONENT_MAX))
        return pause * (1 - _JITTER * self.chance())
