"""One inference as its caller sees it: it waits for a credit, then its answer arrives piece by piece.

The call itself runs in the identity's nursery (E2, D1). What arrives is kept here, bounded, until the caller takes
it; the call never waits for its caller, so a slow reader holds no slot. A caller that leaves calls `abandon`, which
is synchronous and may be called at any time and any number of times.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from governor.errors import BackendProtocolError, GovernorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.identity.uploads import Upload
    from governor.tracing import CallSpans
    from governor.triton.outcomes import CallKind
    from governor.triton.wire import Headers, WireRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """What to send, and how much may come back.

    Attributes:
        wire: the request to the backend.
        kind: how it is called; decides what an error answer may have counted.
        max_answer_bytes: what is kept of the answer for a caller that has not taken it yet. More than this
            at once is drained to the end of the call and the caller gets `BackendProtocolError`.
        disconnect_on_abandon: give the connection up when the caller leaves (D1); the claim then needs evidence.
        prompt_id: the accepted prompt that the call is made for; None for a call of `/v2`.
    """

    wire: WireRequest
    kind: CallKind
    max_answer_bytes: int
    disconnect_on_abandon: bool = False
    prompt_id: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of the backend's answer."""

    status: int
    headers: Headers


class CallState(enum.Enum):
    """Where a call stands for its caller."""

    WAITING = "waiting"
    """In the queue for a slot credit."""
    STARTED = "started"
    """It has a credit."""
    ENDED = "ended"
    """Everything that will come is here, or `error` says why nothing more will."""


class Call:
    """Made by `Identity.submit`.

    Attributes:
        key: who the call belongs to, for fairness between callers.
        request: what is sent.
        state: see `CallState`.
        claim_id: the ledger's claim; None while waiting.
        error: why the answer is missing or incomplete; None so far or for good.
        abandoned: its caller has left.
        spans: how it is traced; None where nothing is.
        upload: its request, if that was sent ahead of the credit; None where it is sent with it.
        going_ahead: cancelled when there is no more sense in sending the request ahead.
        submitted_at_s: when its caller asked for a credit, in monotonic seconds.
        scope: cancelling it gives the call's connection up; None while it has none of its own.
    """

    def __init__(
        self,
        request: CallRequest,
        *,
        key: str,
        on_abandon: Callable[[Call], None],
        spans: CallSpans | None = None,
        upload: Upload | None = None,
    ) -> None:
        self.request = request
        self.key = key
        self.state = CallState.WAITING
        self.claim_id: int | None = None
        self.error: GovernorError | None = None
        self.abandoned = False
        self.spans = spans
        self.upload = upload
        self.going_ahead: trio.CancelScope | None = None
        self.submitted_at_s = trio.current_time()
        self.scope: trio.CancelScope | None = None
        self._on_abandon = on_abandon
        self._head: Head | None = None
        self._chunks: deque[bytes] = deque()
        self._kept_bytes = 0
        self._changed: trio.Event | None = None

    # The caller's side

    def abandon(self) -> None:
        """The caller leaves. A waiting call is taken out of the queue without a trace; a started one goes on."""
        if self.abandoned or self.state is CallState.ENDED:
            return
        self.abandoned = True
        if self.spans is not None:
            self.spans.left()
        self._drop()
        self._on_abandon(self)

    async def changed(self) -> None:
        """Waits until something has changed, or `poke` says that something else has."""
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()

    async def started(self) -> None:
        """Waits until the call has a credit, or has ended without one.

        Raises:
            GovernorError: it ended without one.
        """
        while self.state is CallState.WAITING:
            await self.changed()
        if self._head is None and self.error is not None:
            raise self.error

    async def head(self) -> Head:
        """Waits for status and headers.

        Raises:
            GovernorError: the call ended before they came.
        """
        while self._head is None:
            if self.error is not None:
                raise self.error
            await self.changed()
        return self._head

    async def next_chunk(self) -> bytes | None:
        """The next piece of the body; None at its end.

        Raises:
            GovernorError: the answer ended before it was complete, or more of it came than may be kept.
        """
        while not self._chunks:
            if self.error is not None:
                raise self.error
            if self.state is CallState.ENDED:
                return None
            await self.changed()
        chunk = self._chunks.popleft()
        self._kept_bytes -= len(chunk)
        return chunk

    async def body(self) -> bytes:
        """The whole rest of the body. Raises as `next_chunk` does."""
        while self.state is not CallState.ENDED and self.error is None:
            await self.changed()
        if self.error is not None:
            raise self.error
        whole = b"".join(self._chunks)
        self._drop()
        return whole

    # The identity's side

    def wire(self) -> WireRequest:
        """The request as it is sent."""
        return self.request.wire if self.spans is None else self.spans.request(self.request.wire)

    def start(self, claim_id: int) -> None:
        """The call got a credit."""
        if self.spans is not None:
            self.spans.granted(claim_id)
        self.claim_id = claim_id
        self.state = CallState.STARTED
        self._no_longer_ahead()
        self._notify()

    def feed_head(self, head: Head) -> None:
        """Status and headers arrived."""
        if self.spans is not None:
            self.spans.answered(head.status)
        self._head = head
        self._notify()

    def feed(self, chunk: bytes) -> None:
        """A piece of the body arrived; it is dropped if nobody wants it or nobody may have more."""
        if self.abandoned or self.error is not None or not chunk:
            return
        if self._kept_bytes + len(chunk) > self.request.max_answer_bytes:
            self._drop()
            self.error = answer_too_large(self.request.max_answer_bytes)
        else:
            self._chunks.append(chunk)
            self._kept_bytes += len(chunk)
        self._notify()

    def end(self, error: GovernorError | None = None) -> None:
        """Nothing more will come; works once."""
        if self.state is CallState.ENDED:
            return
        self.state = CallState.ENDED
        self._no_longer_ahead()
        if self.upload is not None:
            self.upload.over()
        if self.error is None:
            self.error = error
        if self.spans is not None:
            self.spans.ended(self.error)
        self._notify()

    def _no_longer_ahead(self) -> None:
        if self.going_ahead is not None:
            self.going_ahead.cancel()

    def poke(self) -> None:
        """Wakes its caller, who waits for a change."""
        self._notify()

    def _drop(self) -> None:
        self._chunks.clear()
        self._kept_bytes = 0

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


def answer_too_large(limit: int) -> BackendProtocolError:
    """The error of an answer of more than `limit` bytes."""
    return BackendProtocolError(
        f"The backend's answer is larger than {limit} bytes; raise limits.max_answer_bytes or ask for less",
        limit=limit,
    )
