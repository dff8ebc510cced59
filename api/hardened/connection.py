"""One client's connection, from accept to close."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final, cast

import trio
from hypercorn.utils import parse_socket_addr

from .exchange import BODY_INTO, DEPARTURE, Exchange, path_and_query
from .limits import ClientGoneError, ConnectionLimits, LimitedConfig, OpenConnections
from .pieces import RECEIVE_BYTES, BodyPace, BoundedSender, Stream, socket_of
from .refusals import HEAD_TOO_SLOW, TOO_MANY_CONNECTIONS, WRONG_HOST, note_refusal
from .request import RefusedError, RequestReader
from .response import DateField
from .watch import Watch

if TYPE_CHECKING:
    from collections.abc import Generator

    from hypercorn.config import Config
    from hypercorn.trio.worker_context import WorkerContext
    from hypercorn.typing import AppWrapper, HTTPResponseStartEvent, HTTPScope, LifespanState

    from .refusals import Refusal

LINGER_BYTES: Final = 2**23
"""The most that is read away from a client that goes on sending after its answer."""
TURNED_AWAY_MAX: Final = 64
"""Connections beyond the limit that are told so at the same time."""
_READ_BYTES_MAX: Final = 2**20
_date: Final = DateField()


class HardenedConnection:
    """Fault: whatever a stock connection raises ends the server, all its connections and the process, exit code 0.

    Stands in for `hypercorn.trio.tcp_server.TCPServer`. A connection is one task: it reads a request, runs the
    application in itself, and reads the next. What is raised on the way is logged and stays here.

    Attributes:
        due_s: see `Watched`.
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
        self.due_s = inf
        self._sender = BoundedSender(stream, self.limits.send_timeout_s)
        self._pace = BodyPace(self.limits)
        self._plain = isinstance(stream, trio.SocketStream)
        self._fd = socket_of(stream).fileno()
        self._living = trio.CancelScope()
        self._ends = False
        self._gone = False
        self._refusal: Refusal | None = None
        self._requests = 0
        self._exchange: Exchange | None = None
        self._reader = RequestReader(config.h11_max_incomplete_size)
        self._scope: dict[str, object] = {}
        self._fields: list[tuple[bytes, bytes]] | None = None
        self._request_scope: dict[str, object] = {}
        self._began_s = 0.0

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

    # What the watch tells

    def time_is_over(self) -> None:
        """`due_s` is past: idle too long, or too slow with a head, which is told."""
        if self._reader.begun:
            self._refusal = HEAD_TOO_SLOW
        self._end()

    def server_ends(self) -> None:
        """Ends an idle connection; one that serves a request ends with its answer."""
        if self._exchange is None:
            self._end()

    def client_left(self) -> None:
        """Tells the application, if there is one just now; else the next read does."""
        self._gone = True
        if self._exchange is not None:
            self._exchange.client_left()

    def _end(self) -> None:
        self._ends = True
        self._living.cancel()

    # The connection

    async def _serve(self) -> None:
        if isinstance(self.stream, trio.SSLStream):
            with trio.fail_after(self.config.ssl_handshake_timeout):
                await self.stream.do_handshake()
        sock = socket_of(self.stream)
        self._scope = {
            "type": "http",
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "scheme": "https" if isinstance(self.stream, trio.SSLStream) else "http",
            "root_path": self.config.root_path,
            "client": parse_socket_addr(sock.family, sock.getpeername()),
            "server": parse_socket_addr(sock.family, sock.getsockname()),
        }
        self.due_s = trio.current_time() + self.config.keep_alive_timeout
        watch = Watch.of(self.context, min(self.config.keep_alive_timeout, self.limits.head_timeout_s))
        watch.join(self._fd, self)
        try:
            with self._living:
                await self._serve_requests()
            if self._refusal is not None:
                await self._refuse(self._refusal)
        finally:
            watch.leave(self._fd)
        await self._close()

    async def _serve_requests(self) -> None:
        while await self._next_request():
            self.due_s = inf
            self._pace.begin()
            self._requests += 1
            self._began_s = time.time()
            exchange = self._exchange = Exchange(self, self._reader)
            await self._run_app(exchange)
            if self.config.accesslog or self.config.statsd_host:
                await self._log_access(exchange)
            if self.context.max_requests is not None:
                await self.context.mark_request()
            # Its head may have said before the shutdown that the connection stays.
            if not exchange.reusable or self.context.terminated.is_set():
                return
            self._exchange = None
            self.due_s = trio.current_time() + self.config.keep_alive_timeout
            rest, self._reader = self._reader.rest, RequestReader(self.config.h11_max_incomplete_size)
            if rest and not self._feed(rest):
                return

    async def _next_request(self) -> bool:
        """Reads on until a head is complete; False when the connection ends instead."""
        reader = self._reader
        while reader.headers is None:
            data = await self.read(RECEIVE_BYTES)
            if not data or self._ends or not self._feed(data):
                return False
        return self._is_ours(reader)

    def _feed(self, data: bytes) -> bool:
        """Hands bytes to the reader; False when they are refused."""
        begun = self._reader.begun
        try:
            self._reader.feed(data)
        except RefusedError as refused:
            self._refusal = refused.refusal
            return False
        if self._reader.begun and not begun:
            self.due_s = trio.current_time() + self.limits.head_timeout_s
        return True

    def _is_ours(self, reader: RequestReader) -> bool:
        """The request names a host that this server was told to answer for; by default any."""
        names = self.config.server_names
        if names and not any(
            name == b"host" and value.decode("latin-1") in names for name, value in reader.headers or ()
        ):
            self._refusal = WRONG_HOST
            return False
        return True

    async def _run_app(self, exchange: Exchange) -> None:
        reader = self._reader
        path, raw_path, query = path_and_query(reader)
        scope = self._request_scope = {
            **self._scope,
            "http_version": "1.1" if reader.version == b"1.1" else "1.0",
            "method": reader.method.decode("ascii"),
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": reader.headers,
            "state": self.state.copy(),
            "extensions": {DEPARTURE: exchange.when_gone, BODY_INTO: exchange.receive_into},
        }
        try:
            await self.app(
                cast("HTTPScope", scope), exchange.receive, exchange.send, trio.to_thread.run_sync, trio.from_thread.run
            )
        except* ClientGoneError:
            pass  # its own send told it so
        except* Exception:  # noqa: BLE001  # one request's fault must end no other
            await self.config.log.exception("Error in ASGI Framework")
        await exchange.end()

    async def _log_access(self, exchange: Exchange) -> None:
        response = {"type": "http.response.start", "status": exchange.status, "headers": exchange.headers}
        took_s = time.time() - self._began_s
        await self.config.log.access(
            cast("HTTPScope", self._request_scope), cast("HTTPResponseStartEvent", response), took_s
        )

    async def _refuse(self, refusal: Refusal) -> None:
        with suppress(ClientGoneError):
            await Exchange(self, self._reader).refuse(refusal)

    # What an exchange needs

    @property
    def left(self) -> bool:
        """The client is known to be gone."""
        return self._gone

    def may_continue(self) -> bool:
        """The connection may carry another request."""
        return not self.context.terminated.is_set() and self._requests < self.config.keep_alive_max_requests

    def own_fields(self) -> list[tuple[bytes, bytes]]:
        """The header fields that the server itself adds to a response."""
        if self._fields is None:
            self._fields = [field for field in self.config.response_headers("h11") if field[0] != b"date"]
        return [_date.now(), *self._fields] if self.config.include_date_header else self._fields

    async def write(self, data: bytes) -> bool:
        """Writes all of it; False when the client is gone."""
        return await self._sender.send(data)

    async def read_body(self, room: int) -> bytes:
        """The next bytes, of which so many are expected; empty when the client is gone.

        Raises:
            trio.TooSlowError: they come too slowly.
        """
        return await self._pace.receive(self.read, min(max(room, RECEIVE_BYTES), _READ_BYTES_MAX))

    async def read_body_into(self, room: memoryview) -> int:
        """As `read_body`, to where the bytes are to stay; how many came, 0 when the client is gone."""
        return await self._pace.receive_into(self._read_into, room)

    async def read(self, room: int) -> bytes:
        """At most so many bytes; empty when the client is gone."""
        try:
            if not self._plain:
                return bytes(await self.stream.receive_some(room))
            while True:
                # A request is hardly ever there already: to look first would cost a system call that fails.
                await trio.lowlevel.wait_readable(self._fd)
                with suppress(BlockingIOError):
                    return os.read(self._fd, room)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def _read_into(self, room: memoryview) -> int:
        if not self._plain:
            data = await self.read(min(len(room), _READ_BYTES_MAX))
            room[: len(data)] = data
            return len(data)
        try:
            while True:
                # In the middle of a body the next bytes are often there already.
                with suppress(BlockingIOError):
                    return os.readv(self._fd, [room])
                await trio.lowlevel.wait_readable(self._fd)
        except OSError:
            return 0

    # The end

    async def _close(self) -> None:
        """Closes; where a client was answered while it may still be sending, only after reading that away for a while.

        A close with bytes unread becomes a reset, which would take the answer with it.
        """
        answered = self._refusal is not None or (self._exchange is not None and self._exchange.writer.begun)
        sending = self._refusal is not None or not self._reader.complete or bool(self._reader.rest)
        if answered and sending:
            await self._linger()
        with trio.move_on_after(self.limits.linger_s):  # only TLS waits here, to say goodbye
            await self.stream.aclose()

    async def _linger(self) -> None:
        with trio.move_on_after(self.limits.linger_s):
            await self._sender.send_eof()
            room = LINGER_BYTES
            while room > 0 and (data := await self.stream.receive_some(RECEIVE_BYTES)):
                room -= len(data)

    async def _turn_away(self, connections: OpenConnections) -> None:
        note_refusal(TOO_MANY_CONNECTIONS)
        if connections.turned_away >= TURNED_AWAY_MAX or isinstance(self.stream, trio.SSLStream):
            return
        connections.turned_away += 1
        try:
            await self._sender.send(TOO_MANY_CONNECTIONS.raw())
            await self._linger()
        finally:
            connections.turned_away -= 1
