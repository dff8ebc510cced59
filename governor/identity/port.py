"""What an identity needs of its backend: the port that `governor.triton` fills, and that tests fill with fakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from governor.core.counting import Reading
    from governor.triton.lane import CallEnd
    from governor.triton.metadata import ModelFacts
    from governor.triton.wire import Body, Headers, WireRequest


class AnswerPort(Protocol):
    """See `governor.triton.lane.Answer`."""

    status: int
    headers: Headers

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""


class ExchangePort(Protocol):
    """See `governor.triton.lane.Exchange`."""

    @property
    def end(self) -> CallEnd | None:
        """What is proven about the call once the exchange is left; None before."""

    @property
    def stands(self) -> bool:
        """It was begun, its connection lives, and the backend has said nothing."""

    async def begin(self, length: int) -> None:
        """Sends the head of a request whose body goes ahead of its end. Raises BackendUnavailableError."""

    async def send_ahead(self, piece: Body) -> None:
        """Sends a piece of the body, never its last byte. Raises BackendUnavailableError."""

    def end_with(self, end: Body, on_delivered: Callable[[], None] | None) -> None:
        """The rest of the body, which is sent when the exchange is entered."""

    def give_up(self) -> None:
        """Ends an exchange that was begun and is not entered: it was never delivered. Synchronous, also twice."""

    async def __aenter__(self) -> AnswerPort: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class LanePort(Protocol):
    """See `governor.triton.lane.Lane`."""

    generation: int

    @property
    def boot(self) -> str | None:
        """Boot identity of the process behind the open connection."""

    @property
    def connected(self) -> bool:
        """A connection is open."""

    async def connect(self) -> None:
        """Opens and stamps a connection unless a usable one is open. Raises BackendUnavailableError."""

    def exchange(self, request: WireRequest, *, on_delivered: Callable[[], None] | None = None) -> ExchangePort:
        """A new exchange; nothing is sent before it is entered."""

    def close(self) -> None:
        """Closes the connection at once, synchronously."""


class ModelPort(Protocol):
    """One model on one backend."""

    @property
    def tells_departures(self) -> bool:
        """It can be seen on a connection that carries a request that the peer has left, or said something."""

    def make_lane(self) -> LanePort:
        """A new lane; opens no connection yet."""

    async def read(self) -> Reading:
        """One reading, within its own bound on time.

        Raises:
            BackendError: there is none to be had, and why.
        """

    async def fetch_facts(self) -> ModelFacts:
        """The model's own configuration, within its own bound on time (E12).

        Raises:
            BackendError: there is none to be had, and why.
        """

    @property
    def server_version(self) -> str | None:
        """The backend's version, once known; decides what some error answers count."""

    def close_idle(self) -> None:
        """Closes the connections that readings use."""
