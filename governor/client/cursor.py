"""Where a reader of an event stream stands, and what it has seen already (A5). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .events import StateResyncRequired

if TYPE_CHECKING:
    from .events import DaemonEvent

EPOCH_HEADER: Final = "X-Qwen-Event-Epoch"


@dataclass(slots=True)
class Cursor:
    """A place in the event log of one session.

    Attributes:
        last_id: the last event that was read; None if the reader hears only what happens from now on.
        epoch: the life of the log that `last_id` belongs to; None while it is not known.
    """

    last_id: int | None = None
    epoch: str | None = None

    def headers(self) -> dict[str, str]:
        """What a request must say to continue here."""
        if self.last_id is None:
            return {}
        headers = {"Last-Event-ID": str(self.last_id)}
        if self.epoch is not None:
            headers[EPOCH_HEADER] = self.epoch
        return headers

    def connected(self, epoch: str | None) -> None:
        """A stream has been opened, of the log's life that its header names."""
        if epoch is None:
            return
        if self.epoch is not None and self.epoch != epoch and self.last_id is not None:
            self.last_id = 0
        self.epoch = epoch

    def admits(self, event: DaemonEvent) -> bool:
        """Moves on to an event. False if it was read before: nobody gets an event twice."""
        if event.id is None:
            if isinstance(event, StateResyncRequired) and event.reason == "epoch_reset" and self.last_id is not None:
                self.last_id = 0
            return True
        if self.last_id is not None and event.id <= self.last_id:
            return False
        self.last_id = event.id
        return True
