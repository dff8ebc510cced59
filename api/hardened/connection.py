"""One client's connection, from accept to close."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

import h11
import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from .limits import ClientGoneError, ConnectionLimits, LimitedConfig, OpenConnections
from .pieces import RECEIVE_BYTES, BodyPace, BoundedSender, IdleWatch, PausedReading, Stream, socket_of
from .protocol import OneWrite, RequestTasks
from .refusals import BODY_TOO_SLOW, TOO_MANY_CONNECTIONS, note_refusal

if TYPE_CHECKING:
    from collections.abc import Generator

    from hypercorn.config import Config
    from hypercorn.trio.worker_context import WorkerContext
    from hypercorn.typing import AppWrapper, LifespanState

LINGER_BYTES: Final = 2**23
"""The most that is read away from a client that goes on sending after its answer."""
TURNED_AWAY_MAX: Final = 64
"""Connections beyond the limit that are told so at the same time."""


class HardenedConnection:
    """Fault: whatever a stock connection raises ends the server, all its connections and the process, exit code 0.

    Stands in for `hypercorn.trio.tcp_server.TCPServer`. A connection lives exactly as long as its reader: everything
    that ends the connection cancels the reader (`end`), and the reader's end tells the application and closes the
    socket. What is raised on the way is logged and stays here.
    """

    default_limits: ClassVar[ConnectionLimits] = ConnectionLimits()

    def __init__(
        self, app: AppWrapper, config: Config, context: WorkerContext, state: LifespanState, stream: Stream
    ) -> None:
        self.app = app
        self.config = config
        self.context = context
        self.state = state
        self.stream = stream
        self.limits = config.limits if isinstance(config, LimitedConfig) else self.default_limits
        self.sender = BoundedSender(stream, self.limits.send_timeout_s)
        self.watch = IdleWatch(context, config.keep_alive_timeout, self.limits.head_timeout_s)
        self.pace = BodyPace(self.limits)
        self.protocol: OneWrite
        self._reading = trio.CancelScope()

    def __await__(self) -> Generator[object, object, None]:
        return self.run().__await__()

    async def run(self) -> None:
        """Serves the connection to its end; raises nothing but cancellation. The caller then closes the socket."""
        connections = OpenConnections.of(self.context)
        try:
            if connections.served >= self.limits.max_connections:
                await self._turn_away(connections)
                return
            connections.served += 1
            try:
                await self._serve()
            finally:
                connections.served -= 1
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass  # the network's or the client's doing
        except* Exception as fault:  # noqa: BLE001  # one connection's fault must end no other
            await self.config.log.warning("connection failed: %r", fault)

    def end(self) -> None:
        """Ends the connection: nothing more is read, and the reader's task closes it."""
        self._reading.cancel()

    async def _serve(self) -> None:
        if isinstance(self.stream, trio.SSLStream):
            with trio.fail_after(self.config.ssl_handshake_timeout):
                await self.stream.do_handshake()
        sock = socket_of(self.stream)
        async with RequestTasks() as tasks:
            self.protocol = OneWrite(
                self.app,
                self.config,
                self.context,
                tasks,
                ConnectionState(self.state),
                isinstance(self.stream, trio.SSLStream),
                parse_socket_addr(sock.family, sock.getpeername()),
                parse_socket_addr(sock.family, sock.getsockname()),
                self._protocol_send,
            )
            self.protocol.can_read = PausedReading(self._receive, self.protocol.connection.receive_data)
            tasks.spawn(self.watch.run, self.end, self.protocol.refuse)
            await self._read()
            self.watch.stop()
            await self.protocol.handle(Closed())
            await self._close()

    async def _read(self) -> None:
        """Feeds the protocol until the client leaves or `end` is called."""
        with self._reading, suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            try:
                while data := await self._receive():
                    await self.protocol.handle(RawData(data=data))
                    self.watch.received(partial_head=self._head_is_partial())
            except trio.TooSlowError:
                await self.protocol.refuse(BODY_TOO_SLOW)

    async def _receive(self) -> bytes:
        if self.protocol.connection.their_state is h11.SEND_BODY:
            return await self.pace.receive(self.stream)
        return bytes(await self.stream.receive_some(RECEIVE_BYTES))

    def _head_is_partial(self) -> bool:
        connection = self.protocol.connection
        return connection.their_state is h11.IDLE and bool(connection.trailing_data[0])

    async def _protocol_send(self, event: Event) -> None:
        """What the protocol wants done. Only writing waits here, so no cancellation can split the rest."""
        if isinstance(event, RawData):
            sent = False
            try:
                sent = await self.sender.send(event.data)
            finally:
                if not sent:
                    self.end()
            if not sent:
                raise ClientGoneError("the client is gone, or was cut off because it stopped reading")
        elif isinstance(event, Closed):
            self.end()
        elif isinstance(event, Updated):
            self.watch.update(idle=event.idle)
            self.pace.begin()

    async def _close(self) -> None:
        """Closes; where a client was answered while it may still be sending, only after reading that away for a while.

        A close with bytes unread becomes a reset, which would take the answer with it.
        """
        connection = self.protocol.connection
        answered = connection.our_state is not h11.IDLE
        sending = connection.their_state in {h11.SEND_BODY, h11.ERROR} or bool(connection.trailing_data[0])
        if answered and sending:
            await self._linger()
        with trio.move_on_after(self.limits.linger_s):  # only TLS waits here, to say goodbye
            await self.stream.aclose()

    async def _linger(self) -> None:
        with trio.move_on_after(self.limits.linger_s):
            await self.sender.send_eof()
            room = LINGER_BYTES
            while room > 0 and (data := await self.stream.receive_some(RECEIVE_BYTES)):
                room -= len(data)

    async def _turn_away(self, connections: OpenConnections) -> None:
        note_refusal(TOO_MANY_CONNECTIONS)
        if connections.turned_away >= TURNED_AWAY_MAX or isinstance(self.stream, trio.SSLStream):
            return
        connections.turned_away += 1
        try:
            await self.sender.send(TOO_MANY_CONNECTIONS.raw())
            await self._linger()
        finally:
            connections.turned_away -= 1
