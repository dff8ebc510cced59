"""A session's pending prompts: bounded admission, FIFO, and a latch that lets each settle once. Pure.

`admit` is S2 in one synchronous step. A prompt is *pending* from admission until its caller-visible outcome
exists; `settle` is the only way out, works once, and gives the slot back in the same step (S3).
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from governor.errors import PromptCancelledError, PromptQueueFullError


class PromptState(enum.Enum):
    """Where a prompt stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SETTLED = "settled"


class Outcome(enum.Enum):
    """How a prompt ended for its caller (S3)."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "error"


@dataclass(slots=True, eq=False)
class Prompt:
    """One unit of work accepted into a session.

    Attributes:
        id: unique (a UUID on the wire).
        admitted_at_s: when it was admitted, in the driver's monotonic seconds; its deadline counts from here (S6).
        queued_at_admission: it had to wait when it was admitted.
        state: see `PromptState`.
        outcome: how it settled; None while pending.
    """

    id: str
    admitted_at_s: float
    queued_at_admission: bool
    state: PromptState = PromptState.QUEUED
    outcome: Outcome | None = None


def prompt_limit(value: object) -> int | None:
    """S1: reads `maxPendingPromptsPerSession`; 0 and infinity mean unlimited (None).

    Raises:
        ValueError: the value is negative, fractional, NaN, a bool or no number.
    """
    expected = "expected a whole number of at least 0, where 0 or inf means unlimited"
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{expected}, not {value!r}")  # noqa: TRY004  # one error for every wrong value
    if value == math.inf:
        return None
    if value < 0 or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"{expected}, not {value!r}")
    return int(value) or None


class PromptQueue:
    """The pending prompts of one session, in admission order.

    Args:
        session_id: named in the refusal.
        limit: the most pending prompts, counting the running one; None for no limit (S1).

    Raises:
        ValueError: the limit is no limit (see `prompt_limit`).
    """

    def __init__(self, session_id: str, limit: float | None) -> None:
        self.session_id = session_id
        self.limit = prompt_limit(limit)
        self._pending: dict[str, Prompt] = {}
        self._running: Prompt | None = None

    @property
    def pending(self) -> list[Prompt]:
        """Every accepted and not yet settled prompt, in admission order."""
        return list(self._pending.values())

    @property
    def running(self) -> Prompt | None:
        """The prompt whose turn it is; at most one (S4)."""
        return self._running

    def __len__(self) -> int:
        return len(self._pending)

    def get(self, prompt_id: str) -> Prompt | None:
        """The pending prompt of this id."""
        return self._pending.get(prompt_id)

    def admit(self, prompt_id: str, now_s: float, *, cancelled: bool = False) -> Prompt:
        """Accepts a prompt, or refuses it and leaves no trace (S2).

        Raises:
            PromptCancelledError: the caller had already cancelled; nothing was counted, even if the queue is full.
            PromptQueueFullError: as many prompts are pending as may be.
        """
        if cancelled:
            raise PromptCancelledError("the prompt was cancelled before it was admitted")
        if self.limit is not None and len(self._pending) >= self.limit:
            raise PromptQueueFullError(self.session_id, self.limit, len(self._pending))
        assert prompt_id not in self._pending, "prompt ids are unique"
        prompt = Prompt(id=prompt_id, admitted_at_s=now_s, queued_at_admission=bool(self._pending))
        self._pending[prompt_id] = prompt
        return prompt

    def start_next(self) -> Prompt | None:
        """Starts the oldest queued prompt if none runs (S4); None if there is nothing to start."""
        if self._running is not None or not self._pending:
            return None
        prompt = next(iter(self._pending.values()))
        prompt.state = PromptState.RUNNING
        self._running = prompt
        return prompt

    def settle(self, prompt: Prompt, outcome: Outcome) -> bool:
        """Ends a prompt for its caller and frees its slot, once.

        Returns:
            True the first time; False ever after, and then nothing changes (S3, S7).
        """
        if prompt.state is PromptState.SETTLED:
            return False
        prompt.state = PromptState.SETTLED
        prompt.outcome = outcome
        del self._pending[prompt.id]
        if self._running is prompt:
            self._running = None
        return True
