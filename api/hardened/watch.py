"""Who watches the connections of one server, so that no connection needs a task, a timer or a poll of its own.

One task per server, alive while there are connections: it ends those whose time is over, tells those whose client
has left, and closes idle ones when the server shuts down. A request costs it nothing: a deadline is a number that the
connection sets, looked at when it could be over; a departure is an edge that the kernel reports on a poll of its own.
"""

from __future__ import annotations

import heapq
import select
from itertools import count
from typing import TYPE_CHECKING, ClassVar, Final, Protocol
from weakref import WeakKeyDictionary

import trio

if TYPE_CHECKING:
    from hypercorn.trio.worker_context import WorkerContext


_SPARE_S: Final = 0.01
"""Between two looks at a connection that is being ended."""


class Watched(Protocol):
    """A connection, as its watch sees it.

    Attributes:
        due_s: when it is to be ended, in trio's time; infinite while a request is being served.
    """

    due_s: float

    def time_is_over(self) -> None:
        """`due_s` is past."""

    def client_left(self) -> None:
        """The client closed its side, or the connection broke."""

    def server_ends(self) -> None:
        """The server shuts down: an idle connection must end."""


class Watch:
    """The watch over one server's connections.

    Args:
        server: hypercorn's, whose shutdown is told.
        look_s: a connection is looked at so often; no deadline may lie nearer than that when it is set.
    """

    _of_server: ClassVar[WeakKeyDictionary[WorkerContext, Watch]] = WeakKeyDictionary()

    def __init__(self, server: WorkerContext, look_s: float) -> None:
        self._server = server
        self._look_s = look_s
        self._watched: dict[int, Watched] = {}
        self._looks: list[tuple[float, int, int, Watched]] = []
        self._numbers = count()
        self._poll: select.epoll | None = None
        self._scope = trio.CancelScope()

    @classmethod
    def of(cls, server: WorkerContext, look_s: float) -> Watch:
        """The watch of this server."""
        watch = cls._of_server.get(server)
        if watch is None:
            watch = cls._of_server[server] = cls(server, look_s)
        return watch

    def join(self, fd: int, connection: Watched) -> None:
        """Watches a connection until `leave`; called in the connection's own task."""
        if self._poll is None:
            nursery = trio.lowlevel.current_task().parent_nursery
            assert nursery is not None, "hypercorn runs connections in a nursery"
            self._poll = select.epoll()
            self._scope = trio.CancelScope()
            # Not a background task: it ends with the last connection, and each of those is a task of this nursery.
            nursery.start_soon(self._run, self._poll, self._scope)
        self._watched[fd] = connection
        self._poll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)
        self._look_at(fd, connection, trio.current_time() + self._look_s)

    def leave(self, fd: int) -> None:
        """The connection ends; its file is still open."""
        if self._watched.pop(fd, None) is not None and self._poll is not None:
            self._poll.unregister(fd)
        if not self._watched:
            self._scope.cancel()  # the poll is closed by the task that waits on it
            self._poll = None
            self._looks.clear()

    def _look_at(self, fd: int, connection: Watched, at_s: float) -> None:
        heapq.heappush(self._looks, (at_s, next(self._numbers), fd, connection))

    async def _run(self, poll: select.epoll, scope: trio.CancelScope) -> None:
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._tell_departures, poll)
                    nursery.start_soon(self._end_overdue)
                    nursery.start_soon(self._tell_shutdown)
        finally:
            poll.close()
            if self._poll is poll:  # cancelled with the whole server, which is about to cancel the connections too
                self._poll = None

    async def _tell_departures(self, poll: select.epoll) -> None:
        while True:
            await trio.lowlevel.wait_readable(poll.fileno())
            for fd, _ in poll.poll(0):
                connection = self._watched.get(fd)
                if connection is not None:
                    connection.client_left()

    async def _end_overdue(self) -> None:
        while self._looks:  # never empty while there are connections
            await trio.sleep_until(self._looks[0][0])
            now_s = trio.current_time()
            while self._looks and self._looks[0][0] <= now_s:
                _, _, fd, connection = heapq.heappop(self._looks)
                if self._watched.get(fd) is not connection:
                    continue
                if connection.due_s <= now_s:
                    connection.time_is_over()
                self._look_at(fd, connection, max(now_s + _SPARE_S, min(connection.due_s, now_s + self._look_s)))

    async def _tell_shutdown(self) -> None:
        await self._server.terminated.wait()
        for connection in list(self._watched.values()):
            connection.server_ends()
