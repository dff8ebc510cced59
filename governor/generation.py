"""One answer of a session's model, beside its prompts: not queued, in no prompt slot, and told to nobody else.

It runs as a task of the sessions' nursery, so that whoever reads it may leave at any moment. Its call takes a slot
credit as every call does, and keeps it until its work has ended, whoever has left (E2).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import structlog
import trio

from governor.errors import GovernorError, PromptDeadlineError
from governor.turn import run_turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.turn import ServedModel

_log = structlog.get_logger(__name__)

GENERATION_MS_MAX: Final = 60_000
"""The longest time that one may take, the wait for a slot credit included; qwen serve has the same."""


class Generation:
    """A text on its way from a model to one reader.

    What waits for a slow reader is bounded by the size of an answer.

    Args:
        nursery: owns the task.
        served: the model.
        text: what it gets.
        key: whose turn in the queue for credits it uses.
        request_id: for the backend's log.
        deadline_ms: the longest time it may take.
        max_answer_bytes: the longest answer.
        on_end: called once when it is over, however it ended.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        served: ServedModel,
        text: str,
        *,
        key: str,
        request_id: str,
        deadline_ms: int,
        max_answer_bytes: int,
        on_end: Callable[[Generation], None],
    ) -> None:
        self.model = served.config.name
        self.request_id = request_id
        self._nursery = nursery
        self._served = served
        self._text = text
        self._key = key
        self._deadline_ms = deadline_ms
        self._max_answer_bytes = max_answer_bytes
        self._on_end = on_end
        self._scope = trio.CancelScope()
        self._pieces: deque[str] = deque()
        self._begun = False
        self._over = False
        self._error: GovernorError | None = None
        self._changed = trio.Event()

    def begin(self) -> None:
        """Calls the model, once; `next_piece` tells what comes of it. Nothing happens if it is over already."""
        if not self._begun and not self._over:
            self._begun = True
            self._nursery.start_soon(self._run, name=f"generation {self.request_id}")

    async def next_piece(self) -> str | None:
        """The next piece of the text; None at its end.

        Raises:
            GovernorError: there is no whole text, and why. Every piece that came before has been told.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._over:
                return None
            await self._changed.wait()
        return self._pieces.popleft()

    def stop(self, error: GovernorError | None = None) -> None:
        """Ends it for its reader, unless it is over; its call goes on (E2).

        Args:
            error: what the reader is told; None for a reader that has left.
        """
        self._finish(error)
        self._scope.cancel()

    async def _run(self) -> None:
        with self._scope:
            # One that was stopped in the moment in which it was begun finds out only at its next checkpoint.
            await trio.lowlevel.checkpoint_if_cancelled()
            self._finish(await self._call())

    async def _call(self) -> GovernorError | None:
        try:
            with trio.move_on_after(self._deadline_ms / 1000):
                await run_turn(
                    self._served,
                    self._text,
                    key=self._key,
                    request_id=self.request_id,
                    max_answer_bytes=self._max_answer_bytes,
                    emit=self._emit,
                )
                return None
        except GovernorError as error:
            return error
        except Exception:  # noqa: BLE001  # a fault in one generation costs its session nothing
            _log.exception("generation_failed", session=self._key, request=self.request_id)
            return GovernorError("internal error while generating")
        return PromptDeadlineError(self._deadline_ms)

    def _emit(self, piece: str) -> None:
        if not self._over:
            self._pieces.append(piece)
            self._notify()

    def _finish(self, error: GovernorError | None) -> None:
        if self._over:
            return
        self._over, self._error = True, error
        self._notify()
        self._on_end(self)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
