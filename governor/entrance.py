"""The way in for new work: open, or closed by an operator for a while (A7).

Closing it ends nothing. Accepted prompts, their calls, and calls that wait for a credit go on as if nothing were.
"""

from __future__ import annotations

from governor.errors import DrainingError


class Entrance:
    """Asked by whatever accepts new work: sessions, prompts, calls of no prompt.

    Attributes:
        closed: nothing new is let in.
    """

    def __init__(self) -> None:
        self.closed = False

    def check(self) -> None:
        """Raises DrainingError while it is closed."""
        if self.closed:
            raise DrainingError
