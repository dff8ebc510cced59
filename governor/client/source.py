"""One session's events from the server, continued on a new connection whenever one ends (A5).

Nothing is lost and nothing comes twice: a new connection asks for what comes after the last event that was read, of
the epoch that it belongs to, and what is sent again all the same is passed over.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio
import httpx

from .cursor import EPOCH_HEADER
from .errors import DaemonConnectionError, DaemonHttpError, DaemonStreamError, SseFramingError
from .events import ClientEvicted, SessionEnded, StateResyncRequired, StreamFailed, decode_event
from .http import segment
from .sse import SseParser

if TYPE_CHECKING:
    from .cursor import Cursor
    from .errors import DaemonError
    from .events import DaemonEvent
    from .http import Http
    from .lanes import Body
    from .sse import SseFrame

STREAM_SILENCE_S: Final = 45.0
"""A stream without a byte for so long is taken for dead and continued on a new connection. The governor sends a
heartbeat every 15 s; a server that sends them more rarely only gets a new connection now and then."""
_LASTED_S: Final = 10.0
"""A connection that lasted so long, and on which something came, is no failure when it ends."""
_AGAIN: Final = frozenset({429, 502, 503, 504})
_FINAL: Final = frozenset({"daemon_draining"})


@dataclass(slots=True)
class _Connection:
    """One open stream.

    Attributes:
        heard: anything came.
        told: an event came that is new.
        done: nothing more is wanted of it.
    """

    body: Body
    opened_at: float
    parser: SseParser = field(default_factory=SseParser)
    heard: bool = False
    told: bool = False
    done: bool = False


class EventSource:
    """Gives one event after the other. It owns no task, and holds nothing open but a connection between two calls.

    Args:
        http: the server.
        session_id: whose events.
        cursor: where to begin; it moves along with what is read.
        client_id: who reads.
        max_queued: how many events may wait at the server for this reader.
        silence_s: see `STREAM_SILENCE_S`.
    """

    def __init__(
        self,
        http: Http,
        session_id: str,
        cursor: Cursor,
        *,
        client_id: str | None = None,
        max_queued: int | None = None,
        silence_s: float = STREAM_SILENCE_S,
    ) -> None:
        self.cursor = cursor
        self._http = http
        self._label = f"GET /session/{session_id}/events"
        query = f"?maxQueued={max_queued}" if max_queued is not None else ""
        self._path = f"/session/{segment(session_id)}/events{query}"
        self._headers = {"X-Qwen-Client-Id": client_id} if client_id else {}
        self._silence_s = silence_s
        self._connection: _Connection | None = None
        self._ready: deque[DaemonEvent] = deque()
        self._failures = 0
        self._trouble: DaemonError | None = None
        self._over = False
        self._finished = False

    async def next(self) -> DaemonEvent | None:
        """The next event; None behind the last one of the session.

        Raises:
            DaemonHttpError: the server refuses the stream; `session_not_found` if the session is gone.
            DaemonStreamError: it ended again and again.
            DaemonProtocolError: it is no event stream.
        """
        while True:
            self._require_unfinished()
            while self._ready:
                event = self._ready.popleft()
                if not self.cursor.admits(event):
                    continue
                if event.id is not None and self._connection is not None:
                    self._connection.told = True
                return event
            if self._over:
                await self.aclose()
                return None
            await self.start()
            assert self._connection is not None
            await self._read(self._connection)

    async def start(self) -> None:
        """Opens the connection now, so that nothing is missed until `next` is called for the first time."""
        while self._connection is None:
            self._require_unfinished()
            if self._trouble is not None:
                await self._pause(self._trouble)
            try:
                headers, body = await self._http.open_stream(
                    self._path, self._label, {**self._headers, **self.cursor.headers()}
                )
            except DaemonHttpError as error:
                if error.status not in _AGAIN or error.code in _FINAL:
                    raise
                self._trouble = error
            except DaemonConnectionError as error:
                self._trouble = error
            else:
                self.cursor.connected(headers.get(EPOCH_HEADER))
                self._connection = _Connection(body, anyio.current_time())

    def go_to(self, cursor: Cursor) -> None:
        """Once its connection is closed, goes on from another place; events behind it are told (again)."""
        assert self._connection is None, "close it first"
        self.cursor = cursor
        self._trouble = None
        self._over = False

    async def finish(self) -> None:
        """Closes the connection for good; whoever waits in `next` gets `DaemonStreamError`."""
        self._finished = True
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection. `next` would open another one."""
        connection, self._connection = self._connection, None
        self._ready.clear()
        if connection is not None:
            await connection.body.aclose()

    def _require_unfinished(self) -> None:
        if self._finished:
            raise DaemonStreamError(f"{self._label}: the stream was closed by its reader")

    async def _read(self, connection: _Connection) -> None:
        """Reads one piece."""
        try:
            with anyio.fail_after(self._silence_s):
                piece = await connection.body.piece() if not connection.done else None
        except TimeoutError:
            await self._lost(connection, f"nothing came for {self._silence_s:g} s")
            return
        except (httpx.TransportError, httpx.DecodingError) as error:
            await self._lost(connection, str(error) or type(error).__name__)
            return
        except BaseException:
            # Cancelled in the middle of a read: the connection is of no more use, the cursor is.
            await self.aclose()
            raise
        if piece is None:
            last = connection.parser.end()
            self._take(connection, [last] if last is not None else [])
            await self._lost(connection, "the server ended it")
        else:
            connection.heard = True
            try:
                frames = connection.parser.feed(piece)
            except SseFramingError:
                await self.aclose()
                raise
            self._take(connection, frames)

    def _take(self, connection: _Connection, frames: list[SseFrame]) -> None:
        for frame in frames:
            event = decode_event(frame.data)
            if event is None:
                continue
            if isinstance(event, StateResyncRequired) and event.reason == "replay_budget_exceeded":
                # No loss yet: a new connection gets the rest. What this one would send next comes too early.
                connection.done = True
                return
            self._ready.append(event)
            self._over = self._over or isinstance(event, SessionEnded)
            if isinstance(event, ClientEvicted | StreamFailed):
                connection.done = True
                return

    async def _lost(self, connection: _Connection, why: str) -> None:
        self._connection = None
        await connection.body.aclose()
        lasted = connection.heard and anyio.current_time() - connection.opened_at >= _LASTED_S
        if connection.told or lasted:
            self._failures = 0
        self._trouble = DaemonConnectionError(why, delivered=True)

    async def _pause(self, trouble: DaemonError) -> None:
        """The pause before a new connection. There always is one, so that nothing turns in circles without it."""
        self._failures += 1
        retry_after_s = trouble.retry_after_s if isinstance(trouble, DaemonHttpError) else None
        pause_s = self._http.retry.pause_s(self._failures, retry_after_s)
        if pause_s is None:
            count = f"{self._failures} attempt{'s' if self._failures > 1 else ''}"
            raise DaemonStreamError(f"{self._label}: SSE stream ended; given up after {count}: {trouble}") from trouble
        await anyio.sleep(pause_s)
