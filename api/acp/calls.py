"""One request from its acceptance until its response was taken, and the queue in which responses wait for a reader."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .messages import encode, error_body, result_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from governor.errors import GovernorError, JsonValue

    from .messages import RequestId


class Call:
    """A request. It is answered exactly once.

    The response waits until the `POST` that brought the request was answered: a client that hears of a request's end
    before it knows that the request was sent may wait for it for ever (S7).

    Args:
        request_id: the client's id of it.
        deliver: takes the call as soon as its response may go out.

    Attributes:
        deliver: see above; it may be changed until then.
        frame: the response as an SSE frame; empty before.
        anchor: id of the newest event that belongs before the response on a session's stream.
        sure: it was sent with an event after the anchor, or after one: whoever has seen that has had the response.
        on_taken: called when a reader has taken the response.
    """

    def __init__(self, request_id: RequestId, deliver: Callable[[Call], None]) -> None:
        self.id = request_id
        self.deliver = deliver
        self.frame = b""
        self.anchor = 0
        self.sure = False
        self.on_taken: Callable[[], None] | None = None
        self._released = False

    @property
    def answered(self) -> bool:
        """The response exists."""
        return bool(self.frame)

    def answer(self, result: dict[str, JsonValue]) -> None:
        """It succeeded."""
        self._respond(result_body(self.id, result))

    def fail(self, error: GovernorError) -> None:
        """It failed."""
        self._respond(error_body(self.id, error))

    def release(self) -> None:
        """The `POST` was answered, or nobody can wait for that: the response may go out. Any number of times."""
        if self._released:
            return
        self._released = True
        if self.answered:
            self.deliver(self)

    def _respond(self, body: dict[str, JsonValue]) -> None:
        assert not self.answered, "a request has one response"
        self.frame = encode(body)
        if self._released:
            self.deliver(self)


class Outbox:
    """Responses that wait for the reader of one stream. What it may hold is bounded by who fills it.

    Attributes:
        wake: called when there is something to take; replaced by each reader.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = _nobody
        self._waiting: deque[Call] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, call: Call) -> None:
        """Adds a response."""
        self._waiting.append(call)
        self.wake()

    def put_back(self, calls: Iterable[Call]) -> None:
        """Responses that may not have reached their reader come first again."""
        self._waiting.extendleft(reversed(list(calls)))
        self.wake()

    def take(self, before: int | None = None) -> list[Call]:
        """Takes what belongs before the event of this id; everything if there is no such event."""
        taken = [call for call in self._waiting if before is None or call.anchor < before]
        if taken:
            self._waiting = deque(call for call in self._waiting if call not in taken)
        return taken


def _nobody() -> None:
    """No reader is there to be woken."""
