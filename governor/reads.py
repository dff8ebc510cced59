"""Questions to one Triton server that are no inference: metadata, statistics, readiness, model control.

They spend no credit and take no lane of an identity: they have few connections of their own, a bounded queue for
them, and a bound on time, so that no number of them disturbs the calls (A6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from governor.errors import BackendProtocolError, BackendTimeoutError, RefusedError
from governor.identity.lanes import LanePool

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.identity.port import LanePort
    from governor.triton.wire import WireRequest

AT_ONCE: Final = 4
"""Questions to one server under way at once."""
WAITING_MAX: Final = 64
"""Questions that wait for one of these connections; a further one is refused."""
TIMEOUT_MS: Final = 5_000
"""Longest time for one question, the wait for a connection included."""
IDLE_S: Final = 2.0
"""An unused connection is closed after this time: an open one delays the server's own shutdown."""
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024


class ReadQueueFullError(RefusedError):
    """As many questions wait for the backend already as may; this one was not sent."""

    code = "read_queue_full"
    retry_after_s = 1

    def __init__(self, backend: str) -> None:
        super().__init__(
            f'{WAITING_MAX} requests that are no inference already wait for backend "{backend}"; retry later'
        )


class ReadTimeoutError(BackendTimeoutError):
    """The backend did not answer a question in time."""

    def __init__(self, backend: str, path: str, timeout_ms: int) -> None:
        super(BackendTimeoutError, self).__init__(
            f'Backend "{backend}" did not answer {path} within {timeout_ms} ms', timeoutMs=timeout_ms
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer.

    Attributes:
        status: HTTP status code.
        content_type: as the server sent it; None where it sent none.
        body: at most `ANSWER_BYTES_MAX` bytes.
    """

    status: int
    content_type: str | None
    body: bytes


class Reads:
    """The connections for questions to one server. `run` must be running for unused ones to be closed.

    Args:
        backend: its configured name, for messages.
        make_lane: makes a connection's lane; opens nothing yet.
        at_once: questions under way at once.
    """

    def __init__(self, backend: str, make_lane: Callable[[], LanePort], *, at_once: int = AT_ONCE) -> None:
        self._backend = backend
        self._lanes = LanePool(make_lane, idle_s=IDLE_S)
        self._turns = trio.Semaphore(at_once)
        self._waiting = 0

    async def run(self) -> None:
        """Closes unused connections until it is cancelled, and then all."""
        try:
            await self._lanes.close_idle_lanes()
        finally:
            self._lanes.close()

    async def ask(self, request: WireRequest, *, timeout_ms: int = TIMEOUT_MS) -> Reply:
        """Sends a question and returns the whole answer, whatever its status.

        Args:
            request: the question. It must be none that executes: nothing accounts for it.
            timeout_ms: longest time, the wait for a connection included.

        Raises:
            ReadQueueFullError: too many wait already.
            BackendTimeoutError: the time is up.
            BackendError: the server cannot be reached, or its answer is none or too large.
        """
        if self._waiting >= WAITING_MAX:
            raise ReadQueueFullError(self._backend)
        with trio.move_on_after(timeout_ms / 1000):
            self._waiting += 1
            try:
                await self._turns.acquire()
            finally:
                self._waiting -= 1
            lane = self._lanes.take()
            try:
                return await _exchange(lane, request)
            finally:
                self._lanes.give_back(lane)
                self._turns.release()
        raise ReadTimeoutError(self._backend, request.path, timeout_ms)


async def _exchange(lane: LanePort, request: WireRequest) -> Reply:
    async with lane.exchange(request) as answer:
        pieces, size = [], 0
        async for piece in answer.chunks():
            size += len(piece)
            if size > ANSWER_BYTES_MAX:
                raise BackendProtocolError(
                    f"The backend's answer to {request.path} is larger than {ANSWER_BYTES_MAX} bytes"
                )
            pieces.append(piece)
    content_type = next((value for name, value in answer.headers if name.lower() == "content-type"), None)
    return Reply(answer.status, content_type, b"".join(pieces))
