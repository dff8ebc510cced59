"""Which prompt an event belongs to, whether or not its 202 has been read yet. Pure.

A prompt's events and its 202 come on two connections, so either may be looked at first. While a 202 is on its way,
events of prompts that nobody waits for yet are kept; when it has come, its prompt gets those that are its own. Where
too much came meanwhile to be kept, the stream is read again from where the prompt began.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from .errors import DaemonProtocolError, DaemonStreamError, DaemonTurnError
from .events import AgentMessageChunk, TerminalEvent, TurnComplete, TurnError
from .shapes import PromptResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from .errors import DaemonError
    from .events import DaemonEvent
    from .shapes import TurnStatus

EARLY_BYTES_MAX: Final = 1024 * 1024
"""What is kept of prompts whose 202 has not been read yet, all of one session together."""
_EVENT_BYTES: Final = 256
"""What an event counts for besides its text."""


class Waiter:
    """One accepted prompt, from its 202 to its end for the caller.

    Args:
        prompt_id: which.
        max_bytes: how much it may be told, events and all.

    Attributes:
        settled: its terminal event has come, or it can never come; nothing is taken in any more.
        failure: why it can never come.
        on_change: called when there is something new.
        on_settled: called once, when it is settled.
    """

    def __init__(self, prompt_id: str, *, max_bytes: int) -> None:
        self.prompt_id = prompt_id
        self.settled = False
        self.failure: DaemonError | None = None
        self.on_change: Callable[[], None] = _nothing
        self.on_settled: Callable[[], None] = _nothing
        self._terminal: TerminalEvent | None = None
        self._events: deque[DaemonEvent] = deque()
        self._pieces: list[str] = []
        self._complete = True
        self._bytes_left = max_bytes
        self._last_id = 0

    def push(self, event: DaemonEvent) -> None:
        """An event of this prompt; one that was told before is passed over."""
        if self.settled or (event.id is not None and event.id <= self._last_id):
            return
        self._last_id = event.id if event.id is not None else self._last_id
        text = event.text if isinstance(event, AgentMessageChunk) else ""
        self._bytes_left -= _EVENT_BYTES + len(text)
        if self._bytes_left < 0:
            self.fail(DaemonProtocolError(f'The answer to prompt "{self.prompt_id}" is larger than max_answer_bytes'))
            return
        if text:
            self._pieces.append(text)
        self._events.append(event)
        if isinstance(event, TerminalEvent):
            self._terminal = event
            self._settle()
        self.on_change()

    def fail(self, error: DaemonError) -> None:
        """The end of this prompt will never be known."""
        if not self.settled:
            self.failure = error
            self._settle()
            self.on_change()

    def catch_up(self, status: TurnStatus) -> None:
        """Some events are lost, and this is what the server says of the turn instead."""
        if status.state in {"completed", "cancelled", "error"}:
            self._pieces = [status.result_text]
            self._complete = not status.result_truncated
            self.push(_terminal_of(self.prompt_id, status))
        else:
            self._complete = False

    def take(self) -> DaemonEvent | None:
        """The next event that was not taken yet; None if there is none now."""
        return self._events.popleft() if self._events else None

    def result(self) -> PromptResult:
        """How the prompt ended.

        Raises:
            DaemonTurnError: in `turn_error`.
            DaemonError: nobody knows.
        """
        if self.failure is not None:
            raise self.failure
        text, terminal = "".join(self._pieces), self._terminal
        if isinstance(terminal, TurnError):
            raise DaemonTurnError(self.prompt_id, terminal.code, terminal.message, text=text)
        assert isinstance(terminal, TurnComplete), "the turn is not over"
        return PromptResult(
            stop_reason=terminal.stop_reason,
            text=text,
            complete=self._complete,
            prompt_id=self.prompt_id,
            raw=terminal.data,
        )

    def _settle(self) -> None:
        self.settled = True
        self.on_settled()


class Waiters:
    """The prompts of one session that a stream of its events is read for.

    Args:
        max_answer_bytes: how much one prompt may be told.
        early_bytes_max: see `EARLY_BYTES_MAX`.
    """

    def __init__(self, *, max_answer_bytes: int, early_bytes_max: int = EARLY_BYTES_MAX) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._early_bytes_max = early_bytes_max
        self._posting = 0
        self._waiters: dict[str, Waiter] = {}
        self._early: dict[str, list[DaemonEvent]] = {}
        self._early_bytes = 0
        self._overflowed = False

    @property
    def idle(self) -> bool:
        """Nobody waits for anything."""
        return not self._waiters and not self._posting

    @property
    def waiting(self) -> tuple[Waiter, ...]:
        """The prompts whose 202 has come and whose end has not."""
        return tuple(self._waiters.values())

    def begin_post(self) -> None:
        """A prompt is about to be sent; `end_post` must follow."""
        self._posting += 1

    def end_post(self) -> None:
        """The prompt's 202 has been read, or none will come."""
        self._posting -= 1
        if not self._posting:
            self.begin_again()

    def accept(self, prompt_id: str, *, read_from_its_beginning: bool) -> tuple[Waiter, bool]:
        """A 202 has come, of a prompt that is being sent.

        Args:
            prompt_id: which.
            read_from_its_beginning: all events since the prompt was accepted have been read, or are still to be read.

        Returns:
            What waits for its end, and whether all that was told of it so far is there. If not, none of it is: the
            stream must be read again from the prompt's beginning, and `feed` not be called until then.
        """
        waiter = Waiter(prompt_id, max_bytes=self._max_answer_bytes)
        whole = read_from_its_beginning and not self._overflowed
        early = self._early.pop(prompt_id, ())
        self._early_bytes -= sum(map(_size, early))
        for event in early if whole else ():
            waiter.push(event)
        if not waiter.settled:
            self._waiters[prompt_id] = waiter
        return waiter, whole

    def begin_again(self) -> None:
        """The stream is read from another place. What was kept of it comes again, together with what was before it."""
        self._early.clear()
        self._early_bytes = 0
        self._overflowed = False

    def leave(self, waiter: Waiter) -> None:
        """Nobody waits for this prompt any more."""
        self._waiters.pop(waiter.prompt_id, None)

    def feed(self, event: DaemonEvent) -> None:
        """The next event of the session."""
        if event.prompt_id is None:
            return
        waiter = self._waiters.get(event.prompt_id)
        if waiter is not None:
            waiter.push(event)
            if waiter.settled:
                self.leave(waiter)
        elif self._posting and not self._overflowed:
            self._keep(event.prompt_id, event)

    def fail(self, error: DaemonError) -> None:
        """No more events will come."""
        for waiter in self.waiting:
            self.leave(waiter)
            waiter.fail(error)

    def catch_up(self, waiter: Waiter, status: TurnStatus) -> None:
        """See `Waiter.catch_up`."""
        waiter.catch_up(status)
        if waiter.settled:
            self.leave(waiter)

    def lose(self, waiter: Waiter, why: str) -> None:
        """The server does not know what became of a prompt."""
        self.leave(waiter)
        waiter.fail(DaemonStreamError(f'The end of prompt "{waiter.prompt_id}" was lost: {why}'))

    def _keep(self, prompt_id: str, event: DaemonEvent) -> None:
        self._early_bytes += _size(event)
        if self._early_bytes > self._early_bytes_max:
            self._overflowed = True
            self._early.clear()
        else:
            self._early.setdefault(prompt_id, []).append(event)


def _size(event: DaemonEvent) -> int:
    return _EVENT_BYTES + (len(event.text) if isinstance(event, AgentMessageChunk) else 0)


def _terminal_of(prompt_id: str, status: TurnStatus) -> TerminalEvent:
    if status.state == "error":
        return TurnError(
            type="turn_error",
            prompt_id=prompt_id,
            data=status.raw,
            code=status.error_code or "turn_error",
            message=status.error_message or "Prompt failed",
        )
    stop_reason = status.stop_reason or ("cancelled" if status.state == "cancelled" else "end_turn")
    return TurnComplete(type="turn_complete", prompt_id=prompt_id, data=status.raw, stop_reason=stop_reason)


def _nothing() -> None:
    pass
