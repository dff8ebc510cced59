"""The way in for new work: open, or closed by an operator for a while (A7).

Closing it ends nothing. Accepted prompts, their calls, and calls that wait for a credit go on as if nothing were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.errors import DrainingError, UnknownModelError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Entrance:
    """Asked by whatever accepts new work: sessions, prompts, calls of no prompt.

    Args:
        models: what is served, by public name; None where nobody looks.

    Attributes:
        closed: nothing new is let in.
    """

    def __init__(self, models: Mapping[str, object] | None = None) -> None:
        self.closed = False
        self._models = models

    def check_prompt(self, name: str, served: object) -> None:
        """As `check`, for a prompt to a model.

        Args:
            name: the model's public name.
            served: what the name stood for when the session took it.

        Raises:
            DrainingError: it is closed.
            UnknownModelError: the model is not served any more.
        """
        self.check()
        if self._models is not None and self._models.get(name) is not served:
            raise UnknownModelError(name, list(self._models))

    def check(self) -> None:
        """Raises DrainingError while it is closed."""
        if self.closed:
            raise DrainingError
