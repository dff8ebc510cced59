"""The operator's live view: the state whenever it changes, and what happens. `GET /admin/events`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
import httpx

from .admin_shapes import AdminState
from .errors import DaemonConnectionError, DaemonHttpError, DaemonStreamError, DaemonUsageError
from .fields import decode_json, objects_of, require_object
from .sse import SseParser

if TYPE_CHECKING:
    from types import TracebackType

    from .errors import DaemonError
    from .http import Http
    from .lanes import Body
    from .shapes import Raw
    from .sse import SseFrame

_AGAIN: Final = frozenset({429, 502, 503, 504})
_LABEL: Final = "GET /admin/events"


@dataclass(frozen=True, slots=True)
class AdminEvents:
    """What happened since the last frame, the oldest first; docs/admin.md lists the kinds."""

    events: tuple[Raw, ...]


class AdminStream:
    """Gives the newest state and what happened, until it is left. Connections that break are replaced.

    Args:
        http: the server.
        silence_s: a stream without a byte for so long is replaced.
    """

    def __init__(self, http: Http, *, silence_s: float) -> None:
        self._http = http
        self._silence_s = silence_s
        self._body: Body | None = None
        self._parser = SseParser()
        self._ready: deque[AdminState | AdminEvents] = deque()
        self._last_id: str | None = None
        self._failures = 0
        self._trouble: DaemonError | None = None
        self._entered = False

    async def __aenter__(self) -> AdminStream:
        self._entered = True
        await self._connect()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._entered = False
        await self._close()

    def __aiter__(self) -> AdminStream:
        return self

    async def __anext__(self) -> AdminState | AdminEvents:
        while True:
            if not self._entered:
                raise DaemonUsageError("The live state is read inside of a block: async with admin.live() as live")
            if self._ready:
                return self._ready.popleft()
            await self._connect()
            await self._read()

    async def _connect(self) -> None:
        while self._body is None:
            if self._trouble is not None:
                await self._pause(self._trouble)
            headers = {"Last-Event-ID": self._last_id} if self._last_id is not None else {}
            try:
                _, self._body = await self._http.open_stream("/admin/events", _LABEL, headers)
                self._parser = SseParser()
            except DaemonHttpError as error:
                if error.status not in _AGAIN:
                    raise
                self._trouble = error
            except DaemonConnectionError as error:
                self._trouble = error

    async def _read(self) -> None:
        assert self._body is not None
        try:
            with anyio.fail_after(self._silence_s):
                piece = await self._body.piece()
        except TimeoutError:
            await self._lose(f"nothing came for {self._silence_s:g} s")
            return
        except (httpx.TransportError, httpx.DecodingError) as error:
            await self._lose(str(error) or type(error).__name__)
            return
        except BaseException:
            await self._close()
            raise
        if piece is None:
            await self._lose("the server ended it")
            return
        for frame in self._parser.feed(piece):
            self._take(frame)

    def _take(self, frame: SseFrame) -> None:
        try:
            raw = require_object(decode_json(frame.data), _LABEL)
        except ValueError:
            return
        self._failures = 0
        self._last_id = frame.id if frame.id is not None else self._last_id
        if frame.event == "state":
            self._ready.append(AdminState.decode(dict(raw), _LABEL))
        elif frame.event == "recent":
            self._ready.append(AdminEvents(objects_of(raw, "events")))

    async def _lose(self, why: str) -> None:
        self._trouble = DaemonConnectionError(why, delivered=True)
        await self._close()

    async def _close(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            await body.aclose()

    async def _pause(self, trouble: DaemonError) -> None:
        """The pause before a new connection. There always is one, so that nothing turns in circles without it."""
        self._failures += 1
        retry_after_s = trouble.retry_after_s if isinstance(trouble, DaemonHttpError) else None
        pause_s = self._http.retry.pause_s(self._failures, retry_after_s)
        if pause_s is None:
            raise DaemonStreamError(f"{_LABEL}: ended again and again: {trouble}") from trouble
        await anyio.sleep(pause_s)
