"""A lane: one keep-alive connection to one origin, lent to one exchange at a time (D2)."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, Protocol

import trio

from governor.errors import BackendError, BackendUnavailableError, ConnectionLostError
from governor.triton.exchange import Answer, CallEnd, Delivery, Exchange, Fetched, Link
from governor.triton.failures import failure
from governor.triton.transport import Origin, WireStream

if TYPE_CHECKING:
    from governor.errors import GovernorError
    from governor.triton.wire import WireRequest

__all__ = ["Answer", "CallEnd", "Delivery", "Exchange", "Fetched", "FreshConnection", "Lane", "Stamp"]


class FreshConnection(Protocol):
    """What a stamp may use: bounded requests on the very connection that was just opened."""

    async def fetch(self, request: WireRequest, *, max_bytes: int) -> Fetched:
        """Send one request and read its answer, at most `max_bytes` of body. Raises as an exchange does."""
        ...


Stamp = Callable[[FreshConnection], Awaitable[str | None]]
"""Learns the boot identity of the process behind a fresh connection (E8); None: unknown. It must send nothing that
executes: what a stamp sends is not accounted for."""


class _Fresh:
    """A connection that is not a lane's yet: what the stamp sees."""

    def __init__(self, origin: Origin, write_timeout_s: float, link: Link) -> None:
        self.origin = origin
        self.write_timeout_s = write_timeout_s
        self._link = link

    async def take(self) -> Link:
        if not self._link.wire.usable:
            raise BackendUnavailableError(f"{self.origin} closed a connection before its first call")
        return self._link

    def give_back(self, link: Link | None) -> None:
        if link is not None and not link.wire.usable:
            link.wire.close()

    async def fetch(self, request: WireRequest, *, max_bytes: int) -> Fetched:
        async with Exchange(self, request, None) as answer:
            return Fetched(answer.status, await answer.read(max_bytes, drain=False))


class Lane:
    """One keep-alive connection to one origin: opened when needed, stamped when fresh, replaced when useless.

    Args:
        origin_url: `http[s]://host[:port][/prefix]`.
        connect_timeout_ms: bound on connecting, the TLS handshake and the stamp together.
        write_timeout_ms: a peer that takes no byte of a request for so long is given up: not delivered.
        stamp: asked on every fresh connection before its first call.
        tls: TLS settings for an https origin; the system's trust store when None.

    There is no bound on how long a call may take: a vanished peer is found by TCP keepalive within 30 s.

    Raises:
        ValueError: the URL cannot be used; the message says why.
    """

    def __init__(
        self,
        origin_url: str,
        *,
        connect_timeout_ms: int = 5_000,
        write_timeout_ms: int = 30_000,
        stamp: Stamp | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.origin = Origin.parse(origin_url)
        self.write_timeout_s = write_timeout_ms / 1000
        self.generation = 0
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._stamp = stamp
        self._tls = (tls or _system_tls()) if self.origin.tls else None
        self._link: Link | None = None
        self._busy = False
        self._opening: trio.CancelScope | None = None
        self._closes = 0

    @property
    def boot(self) -> str | None:
        """Boot identity of the process behind the open connection; None when there is none, or it is unknown."""
        return self._link.boot if self._link is not None else None

    @property
    def connected(self) -> bool:
        """A connection is open, as far as is known here."""
        return self._link is not None

    @property
    def idle(self) -> bool:
        """A connection is open and carries no exchange."""
        return self._link is not None and not self._busy

    async def connect(self) -> None:
        """Open and stamp a connection now, unless a usable one is open.

        Raises:
            BackendUnavailableError: there is none to be had.
        """
        self.give_back(await self.take())

    def exchange(self, request: WireRequest, *, on_delivered: Callable[[], None] | None = None) -> Exchange:
        """A new exchange on this lane; one at a time. Nothing is sent before it is entered.

        Args:
            request: what to send.
            on_delivered: called synchronously when the last byte was handed to the kernel; must not raise.
        """
        return Exchange(self, request, on_delivered)

    async def fetch(self, request: WireRequest, *, max_bytes: int, timeout_ms: int) -> Fetched:
        """A small request and its whole answer, for everything that is no inference.

        Raises:
            BackendUnavailableError, ConnectionLostError, BackendProtocolError: as an exchange does, and when the
                time is up or the body larger than `max_bytes`; the connection is closed then.
        """
        exchange = self.exchange(request)
        with trio.move_on_after(timeout_ms / 1000):
            async with exchange as answer:
                body = await answer.read(max_bytes, drain=False)
            return Fetched(answer.status, body)
        error = BackendUnavailableError if exchange.delivery is Delivery.NOT_DELIVERED else ConnectionLostError
        raise error(f"{self.origin} did not answer {request.path} within {timeout_ms} ms")

    def close(self) -> None:
        """Close the connection, or give up opening one, at once; an exchange on it breaks. The lane stays usable."""
        self._closes += 1
        if self._opening is not None:
            self._opening.cancel()
        if self._link is not None:
            self._link.wire.close()
            self._link = None

    async def aclose(self) -> None:
        """`close()`, for `async with aclosing(...)`."""
        self.close()
        await trio.lowlevel.checkpoint()

    async def take(self) -> Link:
        """For `Exchange`: a usable connection, from now on busy."""
        if self._busy:
            raise RuntimeError("a lane carries one exchange at a time")
        self._busy = True
        try:
            if self._link is not None and not self._link.wire.usable:
                self._link.wire.close()
                self._link = None
            if self._link is None:
                self._link = await self._open()
        except BaseException:
            self._busy = False
            raise
        return self._link

    def give_back(self, link: Link | None) -> None:
        """For `Exchange`: the connection carries nothing any more."""
        self._busy = False
        # What the peer does to an idle connection is looked at when it is taken.
        if link is not None and (link.wire.closed or link.wire.in_flight):
            link.wire.close()
            if link is self._link:
                self._link = None

    async def _open(self) -> Link:
        closes = self._closes
        try:
            with trio.move_on_after(self._connect_timeout_s) as scope:
                self._opening = scope
                link = await self._open_stamped()
        except Exception as error:
            raise self._unreachable(error) from error
        finally:
            self._opening = None
        if closes != self._closes:
            if not scope.cancelled_caught:
                link.wire.close()
            raise BackendUnavailableError(f"The connection to {self.origin} was closed here while it was opened")
        if scope.cancelled_caught:
            raise BackendUnavailableError(
                f"{self.origin} could not be reached within {self._connect_timeout_s * 1000:.0f} ms"
            )
        return link

    async def _open_stamped(self) -> Link:
        link = await self._open_link()
        if self._stamp is None:
            return link
        try:
            link.boot = await self._stamp(_Fresh(self.origin, self.write_timeout_s, link))
        except BaseException:
            link.wire.close()
            raise
        if link.wire.usable:
            return link
        # The peer serves one request per connection: what carries the call cannot be stamped (E8: unknown).
        link.wire.close()
        return await self._open_link()

    async def _open_link(self) -> Link:
        wire = await WireStream.open(self.origin, self._tls)
        self.generation += 1
        return Link(wire, self.generation)

    def _unreachable(self, error: Exception) -> GovernorError | Exception:
        if isinstance(error, BackendError):  # the stamp's exchange failed, the call itself was never sent
            return BackendUnavailableError(f"{self.origin} could not be asked who it is: {error.message}")
        return failure(error, origin=str(self.origin), delivered=False, ended=False) or error


@cache
def _system_tls() -> ssl.SSLContext:
    return ssl.create_default_context()
