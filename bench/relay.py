"""The least that a process in between can do: bytes from one socket to the other, both ways, unread.

What it adds to a large body is the time of one more copy: `python -m bench.relay --port 9000 --to 8000`.
"""

from __future__ import annotations

import argparse
import select
import socket

_PIECE_BYTES = 256 * 1024
_HOST = "127.0.0.1"


class Relay:
    """One loop for all connections; whoever cannot take more stops its other side from being read.

    Args:
        port: to listen on.
        to_port: where a connection is opened for each that comes.
    """

    def __init__(self, port: int, to_port: int) -> None:
        self._to_port = to_port
        self._listener = socket.create_server((_HOST, port), backlog=1024)
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._other: dict[int, socket.socket] = {}
        self._unsent: dict[int, memoryview] = {}
        self._room = bytearray(_PIECE_BYTES)

    def run(self) -> None:
        """Serves until the process is told to end."""
        while True:
            for fd, events in self._poll.poll():
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._other and events & select.EPOLLOUT:
                    self._flush(fd)
                elif fd in self._other:
                    self._pass_on(fd)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection((_HOST, self._to_port))
        for one, other in ((near, far), (far, near)):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._other[one.fileno()] = other
            self._poll.register(one, select.EPOLLIN)

    def _pass_on(self, fd: int) -> None:
        to = self._other[fd]
        source = self._other[to.fileno()]
        try:
            size = source.recv_into(self._room)
            data = memoryview(self._room)[:size]
            sent = to.send(data) if size else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            size = 0
        if not size:
            self._close(source, to)
        elif sent < size:
            self._unsent[to.fileno()] = memoryview(bytes(data[sent:]))
            self._poll.modify(to, select.EPOLLIN | select.EPOLLOUT)
            self._poll.modify(source, 0)

    def _flush(self, fd: int) -> None:
        source = self._other[fd]
        to = self._other[source.fileno()]
        try:
            left = self._unsent[fd] = self._unsent[fd][to.send(self._unsent[fd]) :]
        except BlockingIOError:
            return
        except OSError:
            self._close(source, to)
            return
        if not left:
            del self._unsent[fd]
            self._poll.modify(to, select.EPOLLIN)
            self._poll.modify(source, select.EPOLLIN)

    def _close(self, *both: socket.socket) -> None:
        for each in both:
            self._other.pop(each.fileno(), None)
            self._unsent.pop(each.fileno(), None)
            each.close()


def main() -> None:
    """Serves until it is told to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--to", type=int, required=True, help="port of what is behind it")
    options = parser.parse_args()
    Relay(options.port, options.to).run()


if __name__ == "__main__":
    main()
