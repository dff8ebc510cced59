"""One prompt from its reservation to its end: `async with client.stream(...) as turn` (C2).

Whatever happens, the reservation is released once: the terminal event, the answer in one piece, an error of the
request, the end of the stream, the caller's cancellation, its leaving the block early.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from .errors import DaemonError, DaemonHttpError, DaemonPendingPromptLimitError, DaemonStreamError, DaemonUsageError
from .events import AgentMessageChunk
from .fields import require_object, text_of, whole_of
from .http import segment
from .shapes import PromptAccepted, PromptRequest, PromptResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import TracebackType

    from .events import DaemonEvent
    from .http import Answer, Http
    from .reservations import Reservation, Reservations
    from .shapes import PromptInput
    from .waiters import Waiter
    from .watch import Watch, Watches

LEAVE_S: Final = 2.0
"""How long a cancelled caller may be kept to tell the server."""
_log = logging.getLogger("governor.client")


@dataclass(frozen=True, slots=True)
class PromptCall:
    """What is asked of the server for one prompt.

    Attributes:
        session_id: whose prompt.
        request: the prompt.
        limit: how many prompts of the session may be pending; None for as many as one wants.
        timeout_s: the longest time from the call to the end, in seconds.
        cancel_on_server: a caller that leaves before the end takes the prompt out of the server's queue, or cancels it.
        client_id: who asks, at the time of the request.
        heal: what to do about a client id that the server does not know (any more), once; None for nothing.
    """

    session_id: str
    request: PromptInput
    limit: int | None
    timeout_s: float | None
    cancel_on_server: bool
    client_id: Callable[[], str | None]
    heal: Callable[[str | None], Awaitable[None]] | None = None


class Turn:
    """A prompt that was accepted, and its events as they come. Made by `stream` of a client or a session client.

    Iterating gives its events up to and with the terminal one; `text` gives the pieces of the answer; `result()`
    waits for the end. What was iterated over already does not come again.
    """

    def __init__(
        self,
        call: PromptCall,
        *,
        http: Http,
        reservations: Reservations,
        watches: Callable[[], Watches],
        admissions: Callable[[], anyio.Semaphore],
    ) -> None:
        self._call = call
        self._http = http
        self._reservations = reservations
        self._watches = watches
        self._admissions = admissions
        self._reservation: Reservation | None = None
        self._watch: Watch | None = None
        self._waiter: Waiter | None = None
        self._answered: PromptResult | None = None
        self._deadline: float | None = None
        self._changed: anyio.Event | None = None

    @property
    def session_id(self) -> str:
        """The session that the prompt belongs to."""
        return self._call.session_id

    @property
    def prompt_id(self) -> str | None:
        """The prompt's id; None from a server that answers prompts in one piece."""
        return self._waiter.prompt_id if self._waiter is not None else None

    @property
    def text(self) -> TextPieces:
        """The pieces of the answer as they come. At the end of a turn that failed, `DaemonTurnError` is raised."""
        return TextPieces(self)

    async def result(self) -> PromptResult:
        """Waits for the end and tells how it ended.

        Raises:
            DaemonTurnError: in `turn_error`.
            DaemonStreamError: its end could not be learned.
            TimeoutError: `timeout_s` is over.
        """
        async for _ in self:
            pass
        if self._answered is not None:
            return self._answered
        return self._open().result()

    def __aiter__(self) -> Turn:
        return self

    async def __anext__(self) -> DaemonEvent:
        if self._answered is not None:
            raise StopAsyncIteration
        waiter = self._open()
        while True:
            event = waiter.take()
            if event is not None:
                return event
            if waiter.failure is not None:
                raise waiter.failure
            if waiter.settled:
                raise StopAsyncIteration
            changed = self._changed = anyio.Event()
            with self._within(self._time_left()):
                await changed.wait()

    async def __aenter__(self) -> Turn:
        call = self._call
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._reservation = self._reservations.reserve(call.session_id, call.limit)
        try:
            if call.timeout_s is not None:
                self._deadline = anyio.current_time() + call.timeout_s
            with self._within(call.timeout_s):
                await (self._submit_guarded() if call.cancel_on_server else self._submit())
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    @contextmanager
    def _within(self, limit_s: float | None) -> Iterator[None]:
        try:
            with anyio.fail_after(limit_s):
                yield
        except TimeoutError:
            then = "cancels it at the server" if self._call.cancel_on_server else "does not end it at the server"
            raise TimeoutError(
                f'The prompt of session "{self.session_id}" had not ended after {self._call.timeout_s:g} s (timeout_s);'
                f" leaving its block {then}"
            ) from None

    def require_room(self) -> None:
        """Raises `DaemonPendingPromptLimitError` where the block would, without a reservation and without I/O."""
        self._reservations.require_room(self._call.session_id, self._call.limit)

    async def aclose(self) -> None:
        """Leaves the block before its end; whoever waits for an event gets `DaemonStreamError`. Harmless again."""
        self._release()
        waiter = self._waiter
        if waiter is None or waiter.settled or self._watch is None:
            return
        self._watch.leave(waiter)
        waiter.fail(DaemonStreamError(f'Prompt "{waiter.prompt_id}" is no longer waited for: its block was left'))
        if self._call.cancel_on_server:
            await self._watch.see_to(self._take_back, within_s=LEAVE_S)

    async def _submit(self) -> None:
        """Sends the prompt, and from its 202 on waits for its end."""
        watch = self._watch = self._watches().begin_post(self._call.session_id)
        try:
            answer = await self._post()
            label = _label(self._call.session_id)
            if answer.status == 200:
                self._answered = _answered(answer, label)
                self._release()
            else:
                self._wait_for(watch.accepted(PromptAccepted.decode(answer.body, label)))
        finally:
            watch.end_post()

    async def _submit_guarded(self) -> None:
        """The same for a caller that wants its prompt cancelled with it: it must learn which prompt is its own.

        The request goes on for a moment when the caller is cancelled in the middle of it, in a task of its own,
        because asyncio's own cancellations do not stop at a shield.
        """
        over = anyio.Event()
        failures: list[Exception] = []
        # Shielded, so that a prompt that was accepted can be taken back; bounded by LEAVE_S once the caller is
        # cancelled.
        guard = anyio.CancelScope(shield=True)

        async def submit() -> None:
            with guard:
                try:
                    await self._submit()
                except Exception as error:  # noqa: BLE001  # raised again by the caller's own task, without a group around it
                    failures.append(error)
            over.set()

        async with anyio.create_task_group() as group:
            group.start_soon(submit)
            try:
                await over.wait()
            except BaseException:
                guard.deadline = anyio.current_time() + LEAVE_S
                raise
        if failures:
            raise failures[0]

    async def _post(self) -> Answer:
        async with self._admissions():
            client_id = self._call.client_id()
            try:
                return await post_prompt(self._http, self._call.session_id, self._call.request, client_id)
            except DaemonHttpError as error:
                if error.code != "invalid_client_id" or self._call.heal is None:
                    raise
                # Refused before it was accepted, so it cannot run twice.
                await self._call.heal(client_id)
            return await post_prompt(self._http, self._call.session_id, self._call.request, self._call.client_id())

    def _wait_for(self, waiter: Waiter) -> None:
        self._waiter = waiter
        waiter.on_change = self._wake
        waiter.on_settled = self._release
        if waiter.settled:
            self._release()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def _release(self) -> None:
        if self._reservation is not None:
            self._reservation.release()

    def _open(self) -> Waiter:
        if self._waiter is None:
            raise DaemonUsageError("A turn has events inside of its block only: async with client.stream(...) as turn")
        return self._waiter

    def _time_left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - anyio.current_time())

    async def _take_back(self) -> None:
        assert self._waiter is not None
        prompt_id = self._waiter.prompt_id
        path = f"/session/{segment(self.session_id)}/pending-prompts/{segment(prompt_id)}"
        try:
            await self._http.ask("DELETE", path, f"DELETE {path}", client_id=self._call.client_id())
        except DaemonError as error:
            # The caller is leaving for a reason of its own, which must not be hidden behind this one.
            _log.warning("prompt %s could not be cancelled: %s", prompt_id, error)


class TextPieces:
    """The pieces of a turn's answer. See `Turn.text`."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def __aiter__(self) -> TextPieces:
        return self

    async def __anext__(self) -> str:
        async for event in self._turn:
            if isinstance(event, AgentMessageChunk) and event.text:
                return event.text
        await self._turn.result()
        raise StopAsyncIteration


async def post_prompt(http: Http, session_id: str, request: PromptInput, client_id: str | None) -> Answer:
    """Hands in a prompt: 202 of a server that tells the outcome as events, 200 of one that answers in one piece.

    Raises:
        DaemonPendingPromptLimitError: the server's queue is full.
        DaemonError: as `Http.ask`.
    """
    body = (PromptRequest(prompt=request) if isinstance(request, str) else request).body()
    path = f"/session/{segment(session_id)}/prompt"
    try:
        # A server that answers in one piece takes as long as the turn does; the caller's own bound is the right one.
        return await http.ask(
            "POST", path, _label(session_id), body=body, client_id=client_id, expect=(200, 202), unlimited=True
        )
    except DaemonHttpError as error:
        if error.status != 503 or error.code != "prompt_queue_full" or not isinstance(error.body, dict):
            raise
        told = error.body
        limit, count = whole_of(told, "limit") or 0, whole_of(told, "pendingCount") or 0
        raise DaemonPendingPromptLimitError(
            text_of(told, "sessionId") or session_id, limit, count, sent=True
        ) from error


def _label(session_id: str) -> str:
    return f"POST /session/{session_id}/prompt"


def _answered(answer: Answer, label: str) -> PromptResult:
    raw = require_object(answer.body, label)
    stop_reason = text_of(raw, "stopReason") or "end_turn"
    return PromptResult(stop_reason=stop_reason, text="", complete=False, prompt_id=None, raw=raw)
