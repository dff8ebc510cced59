"""One stream of a session's events for all the prompts of the session that one client waits for.

It is opened when the first 202 has come, from the place that the 202 names, so that a turn that is over by then is
told all the same; it is closed when nobody waits any more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from .cursor import Cursor
from .errors import DaemonError, DaemonHttpError, DaemonStreamError, DaemonUsageError
from .events import StateResyncRequired
from .http import segment
from .shapes import TurnStatus
from .source import STREAM_SILENCE_S, EventSource
from .waiters import Waiters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from .http import Http
    from .shapes import PromptAccepted
    from .waiters import Waiter

_CLOSED: Final = "The client was closed while prompts were pending"
_log = logging.getLogger("governor.client")


class Watches:
    """The sessions that are watched.

    Args:
        http: the server.
        tasks: owns the tasks that read; outlives every prompt.
        max_answer_bytes: how much one prompt may be told.
        silence_s: see `STREAM_SILENCE_S`.
    """

    def __init__(
        self, http: Http, tasks: TaskGroup, *, max_answer_bytes: int, silence_s: float = STREAM_SILENCE_S
    ) -> None:
        self._http = http
        self._tasks = tasks
        self._max_answer_bytes = max_answer_bytes
        self._silence_s = silence_s
        self._by_session: dict[str, Watch] = {}
        self._closed = False

    def close(self) -> None:
        """The client is about to end; a 202 that comes now comes too late."""
        self._closed = True

    def begin_post(self, session_id: str) -> Watch:
        """A prompt is about to be sent: whatever comes of it from now on is kept. `Watch.end_post` must follow."""
        watch = self._by_session.get(session_id)
        if watch is None:
            waiters = Waiters(max_answer_bytes=self._max_answer_bytes)
            watch = self._by_session[session_id] = Watch(self, session_id, waiters)
        watch.waiters.begin_post()
        return watch

    def start(self, watch: Watch, cursor: Cursor) -> EventSource:
        """Begins to read from a place.

        Raises:
            DaemonUsageError: the client was closed.
        """
        if self._closed:
            raise DaemonUsageError(_CLOSED)
        source = EventSource(self._http, watch.session_id, cursor, silence_s=self._silence_s)
        self._tasks.start_soon(watch.run, source, name=f"events of session {watch.session_id}")
        return source

    def forget(self, watch: Watch) -> None:
        """Nobody waits for anything of this session; the next prompt gets another watch."""
        if self._by_session.get(watch.session_id) is watch:
            del self._by_session[watch.session_id]

    async def see_to(self, what: Callable[[], Awaitable[None]], *, within_s: float) -> None:
        """Does something, even for a caller that is cancelled meanwhile, however often; then it goes on without it."""
        if self._closed:
            return
        over = anyio.Event()

        async def do() -> None:
            # Shielded, because what a leaving caller has asked for must not end with it; bounded by `within_s`.
            try:
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + within_s):
                    await what()
            finally:
                over.set()

        self._tasks.start_soon(do)
        # Shielded, so that the server has been told when the caller goes on; bounded, as what is waited for is.
        with anyio.CancelScope(shield=True):
            await over.wait()

    async def turn(self, session_id: str, prompt_id: str) -> TurnStatus:
        """What became of a prompt, from the server."""
        label = f"GET /session/{session_id}/turns/{prompt_id}"
        answer = await self._http.ask("GET", f"/session/{segment(session_id)}/turns/{segment(prompt_id)}", label)
        return TurnStatus.decode(answer.body, label)


class Watch:
    """One session that is watched. See the module; made by `Watches.begin_post`."""

    def __init__(self, owner: Watches, session_id: str, waiters: Waiters) -> None:
        self.session_id = session_id
        self.waiters = waiters
        self._owner = owner
        self._source: EventSource | None = None
        self._read_from = Cursor()
        self._again_from: Cursor | None = None
        self._lap: anyio.CancelScope | None = None

    def accepted(self, prompt: PromptAccepted) -> Waiter:
        """A 202 has come. Without a checkpoint between its last byte and this, nothing of its turn is missed."""
        # A server that names no place is asked for all that it keeps: the prompt's events are among it.
        cursor = Cursor(prompt.last_event_id or 0, prompt.event_epoch)
        # 202s may be read in another order than the prompts were accepted in, so the stream may have begun too late.
        covered = self._source is not None and _is_behind(cursor, self._read_from)
        waiter, whole = self.waiters.accept(prompt.prompt_id, read_from_its_beginning=covered)
        if self._source is None:
            self.waiters.begin_again()
            self._read_from = cursor
            self._source = self._owner.start(self, Cursor(cursor.last_id, cursor.epoch))
        elif not whole:
            self._read_again(cursor)
        return waiter

    def end_post(self) -> None:
        """The prompt's answer has been read, or none will come."""
        self.waiters.end_post()
        self._end_if_idle()

    def leave(self, waiter: Waiter) -> None:
        """Nobody waits for this prompt any more."""
        self.waiters.leave(waiter)
        self._end_if_idle()

    async def see_to(self, what: Callable[[], Awaitable[None]], *, within_s: float) -> None:
        """See `Watches.see_to`."""
        await self._owner.see_to(what, within_s=within_s)

    async def run(self, source: EventSource) -> None:
        """Reads until nobody waits any more, or no more can be read."""
        reason: DaemonError = DaemonUsageError(_CLOSED)
        try:
            while not self.waiters.idle:
                if self._again_from is not None:
                    await self._begin_again(source)
                    continue
                with anyio.CancelScope() as self._lap:
                    over = await self._read(source)
                    if over is not None:
                        reason = over
                        break
        finally:
            # Whoever is still sending a prompt starts anew, from the place that its 202 names.
            self._source = None
            self._owner.forget(self)
            self.waiters.fail(reason)
            await source.aclose()

    async def _begin_again(self, source: EventSource) -> None:
        """Closes the stream, so that the next event is the first one after another place."""
        assert self._again_from is not None
        await source.aclose()
        # From here on without a checkpoint: whoever asks meanwhile for an earlier place has it, and nobody has less.
        cursor, self._again_from = self._again_from, None
        self._read_from = Cursor(cursor.last_id, cursor.epoch)
        self.waiters.begin_again()
        source.go_to(cursor)

    async def _read(self, source: EventSource) -> DaemonError | None:
        """Reads to the end of the stream; returns why there is no more of it, or None to be called again."""
        try:
            while True:
                event = await source.next()
                if self._again_from is not None:
                    return None  # what was just read comes again, in its order
                if event is None:
                    return DaemonStreamError(f'SSE stream ended: session "{self.session_id}" is over')
                self.waiters.feed(event)
                if isinstance(event, StateResyncRequired):
                    await self._catch_up()
                self._end_if_idle()
        except DaemonError as error:
            return error
        except Exception as fault:  # noqa: BLE001  # a fault here must reach those who wait, and end no other session's prompts
            _log.exception("reading the events of session %s failed", self.session_id)
            return DaemonStreamError(f"Reading events failed: {fault!r}")

    async def _catch_up(self) -> None:
        """Events are lost: what became of each prompt is asked for."""
        for waiter in self.waiters.waiting:
            try:
                status = await self._owner.turn(self.session_id, waiter.prompt_id)
            except DaemonHttpError as error:
                self.waiters.lose(waiter, str(error))
            else:
                self.waiters.catch_up(waiter, status)

    def _read_again(self, cursor: Cursor) -> None:
        place = self._again_from
        if place is None or (cursor.last_id or 0) < (place.last_id or 0) or place.epoch != cursor.epoch:
            self._again_from = cursor
        if self._lap is not None:
            self._lap.cancel()

    def _end_if_idle(self) -> None:
        if self.waiters.idle:
            self._owner.forget(self)
            if self._lap is not None:
                self._lap.cancel()


def _is_behind(place: Cursor, beginning: Cursor) -> bool:
    """All that comes after `place` comes after `beginning` too, in the same life of the log."""
    same_life = place.epoch == beginning.epoch or place.epoch is None or beginning.epoch is None
    return same_life and (place.last_id or 0) >= (beginning.last_id or 0)
