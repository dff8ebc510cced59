"""What is in flight on a load, and who waits for there to be nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.simulator.inference import Failure, Inference


class InFlight:
    """The inferences of one load that have not ended.

    Attributes:
        count: how many they are.
    """

    def __init__(self) -> None:
        self.count = 0
        self._on_idle: Callable[[], None] | None = None

    def enter(self) -> None:
        """One more."""
        self.count += 1

    def leave(self, inference: Inference, failure: Failure | None) -> None:
        """Ends one."""
        self.count -= 1
        inference.end(failure)
        self._check_idle()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Calls back once nothing is in flight; nothing new comes from now on."""
        self._on_idle = callback
        self._check_idle()

    def _check_idle(self) -> None:
        if self._on_idle is not None and not self.count:
            callback, self._on_idle = self._on_idle, None
            callback()
