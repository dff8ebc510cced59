"""A session's events, and a generation, as the bodies of responses (A5, D13).

Each body is an object with a synchronous end, not a generator: no nursery and no cancel scope is left open between two
frames, so a client may leave at any moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import trio
from quart.wrappers.response import ResponseBody

from governor.core.events import encode_frame
from governor.errors import GovernorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from governor.core.events import Frame
    from governor.errors import JsonValue
    from governor.generation import Generation

STREAM_HEAD: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache, no-transform",
    "Connection": "keep-alive",
    "X-Accel-Buffering": "no",
}
"""Headers of every event stream."""
GREETING: Final = b"retry: 3000\n\n"
CONNECTED: Final = b": connected\n\n"
HEARTBEAT: Final = b": heartbeat\n\n"
_REPLAYED: Final = b"event: replay_complete\n"


class FrameSource(Protocol):
    """Where the frames of a stream come from."""

    async def next_frame(self) -> Frame | None:
        """The next frame; None at the end. Cancelled, it takes none."""

    def close(self) -> None:
        """Nobody reads any more. Synchronous, any number of times."""


class EventBody(ResponseBody):
    """The frames of one subscriber, from the greeting to the end of its session or to its eviction.

    Args:
        stream: the subscription. It is closed when the body ends, in whatever way.
        heartbeat_s: after so many seconds without an event a comment is sent, so that nobody between the two
            takes the connection for dead, and a client that is gone is noticed.
        snapshot: makes a frame that is sent between what is replayed and what happens; None for no such frame.
        replays: something is replayed, if only its end.
    """

    def __init__(
        self,
        stream: FrameSource,
        *,
        heartbeat_s: float,
        snapshot: Callable[[], bytes] | None = None,
        replays: bool = False,
    ) -> None:
        self._stream = stream
        self._heartbeat_s = heartbeat_s
        self._snapshot = snapshot
        self._next = [GREETING]
        if not replays:
            self._add_snapshot()

    async def __aenter__(self) -> EventBody:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._stream.close()

    def __aiter__(self) -> EventBody:
        return self

    async def __anext__(self) -> bytes:
        if self._next:
            return self._next.pop(0)
        with trio.move_on_after(self._heartbeat_s):
            frame = await self._stream.next_frame()
            if frame is None:
                raise StopAsyncIteration
            if frame.id is None and frame.data.startswith(_REPLAYED):
                self._add_snapshot()
            return frame.data
        return HEARTBEAT

    def _add_snapshot(self) -> None:
        if self._snapshot is not None:
            self._next.append(self._snapshot())
            self._snapshot = None


class GenerationBody(ResponseBody):
    """The events of one generation: `started`, a `delta` for each piece, `done` or `error`.

    Args:
        generation: begun once the head of the answer is out; stopped when the body ends, in whatever way.
        heartbeat_s: as of `EventBody`.
    """

    def __init__(self, generation: Generation, *, heartbeat_s: float) -> None:
        self._generation = generation
        self._heartbeat_s = heartbeat_s
        self._next = [CONNECTED, self._event("started", **self._source())]
        self._seq = 0
        self._over = False

    async def __aenter__(self) -> GenerationBody:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._generation.stop()

    def __aiter__(self) -> GenerationBody:
        return self

    async def __anext__(self) -> bytes:
        if self._next:
            return self._next.pop(0)
        if self._over:
            raise StopAsyncIteration
        self._generation.begin()
        with trio.move_on_after(self._heartbeat_s):
            try:
                piece = await self._generation.next_piece()
            except GovernorError as error:
                self._over = True
                return self._event("error", code=error.code, message=error.message)
            return self._piece(piece)
        return HEARTBEAT

    def _piece(self, piece: str | None) -> bytes:
        if piece is None:
            self._over = True
            return self._event("done", **self._source())
        event = self._event("delta", seq=self._seq, text=piece)
        self._seq += 1
        return event

    def _source(self) -> dict[str, JsonValue]:
        return {"model": self._generation.model, "modelSource": "main"}

    def _event(self, kind: str, **data: JsonValue) -> bytes:
        return encode_frame(None, kind, {"v": 1, "type": kind, "requestId": self._generation.request_id, **data})
