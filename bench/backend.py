"""A backend that computes nothing but tells the truth: `python -m bench.backend --port 8000`.

It answers Triton's v2 protocol, and the OpenAI and SGLang paths that other gateways speak, as fast as one Python
process can: raw sockets, one epoll loop, canned answers. Like Triton it goes on computing when its client leaves,
and only its own instances bound what runs at once. What really ran it tells under `/truth` (`bench.truth`), and
`POST /truth` with `Behaviour`'s fields changes how it behaves and forgets what was.
"""

from __future__ import annotations

import argparse
import heapq
import json
import select
import socket
import time
from collections import deque
from dataclasses import asdict, dataclass, fields
from itertools import count

from bench.canned import OTHERS, STREAM_EVENT, STREAM_HEAD, answer, config, json_answer, metadata, statistics
from bench.http1 import HEAD_END, is_chunked, length_of
from bench.truth import Truth

_RECEIVE_BYTES = 1024 * 1024
_WORK = (b"/infer", b"/generate", b"/generate_stream", b"/chat/completions")
_HEAD_MAX = 64 * 1024


@dataclass
class Behaviour:
    """How work behaves.

    Attributes:
        delay_ms: how long one execution takes.
        instances: how many run at once; 0 for any number. Further ones wait inside, as in Triton.
        answer_bytes: length of an answer's body; 0 for the shortest valid one.
        stream_events: server-sent events of one `generate_stream`.
        stream_interval_ms: from one event to the next.
    """

    delay_ms: float = 0.0
    instances: int = 0
    answer_bytes: int = 0
    stream_events: int = 8
    stream_interval_ms: float = 10.0


@dataclass
class Work:
    """One request for work: when it was there whole, and when it ran. Seconds of the monotonic clock."""

    client: Client
    target: bytes
    came_s: float
    began_s: float = 0.0


class Client:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.kept = b""
        self.skip = 0
        self.skip_chunks = False
        self.target = b""
        self.method = b""
        self.body = b""
        self.unsent: deque[memoryview] = deque()
        self.closed = False


class Backend:
    """The server's one loop."""

    def __init__(self, port: int, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.truth = Truth()
        self._success = 0
        self._log_frequency = "0"
        self._timers: list[tuple[float, int, Work, int]] = []
        self._numbers = count()
        self._waiting: deque[Work] = deque()
        self._poll = select.epoll()
        self._clients: dict[int, Client] = {}
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setblocking(False)
        self._poll.register(self._listener, select.EPOLLIN)

    def run(self) -> None:
        """Serves until the process is told to end."""
        listener = self._listener.fileno()
        while True:
            for fd, events in self._wait():
                if fd == listener:
                    self._accept()
                    continue
                client = self._clients.get(fd)
                if client is None:
                    continue
                if events & select.EPOLLOUT:
                    self._flush(client)
                if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                    self._receive(client)
            self._fire(time.monotonic())

    def _wait(self) -> list[tuple[int, int]]:
        if not self._timers:
            return self._poll.poll()
        wait_s = self._timers[0][0] - time.monotonic()
        if wait_s > 0:  # epoll itself counts in milliseconds, select in microseconds
            select.select([self._poll], [], [], wait_s)
        return self._poll.poll(0)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._clients[sock.fileno()] = Client(sock)
            self._poll.register(sock, select.EPOLLIN)

    # Reading

    def _receive(self, client: Client) -> None:
        try:
            data = client.sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(client)
            return
        if client.skip or client.skip_chunks:
            data = self._skip(client, data)
        elif client.kept:
            data, client.kept = client.kept + data, b""
        while data:
            data = self._take_head(client, data)

    def _take_head(self, client: Client, data: bytes) -> bytes:
        """Reads a request, or keeps what there is of its head; returns what follows it."""
        end = data.find(HEAD_END)
        if end < 0:
            client.kept = data
            if len(data) > _HEAD_MAX:
                self._close(client)
            return b""
        head, data = data[:end], data[end + len(HEAD_END) :]
        client.method, client.target, _ = head.split(b" ", 2)
        if is_chunked(head):
            client.skip_chunks = True
        else:
            client.skip = length_of(head) or 0
        if b"\r\nexpect: 100-continue" in head.lower():
            self._send(client, b"HTTP/1.1 100 Continue\r\n\r\n")
        return self._skip(client, data)

    def _skip(self, client: Client, data: bytes) -> bytes:
        """Reads a body away and begins the work at its end; returns what follows it."""
        if client.skip_chunks:
            data = client.kept + data
            end = data.find(b"0\r\n\r\n") if data.startswith(b"0\r\n\r\n") else data.find(b"\r\n0\r\n\r\n")
            if end < 0:
                client.kept = data[-6:]
                return b""
            client.kept, client.skip_chunks = b"", False
            rest = data[data.find(b"0\r\n\r\n", end) + 5 :]
        else:
            rest = data[client.skip :]
            if not client.target.endswith(_WORK):
                client.body += data[: client.skip]
            client.skip = max(0, client.skip - len(data))
        if not client.skip:
            self._begin(client)
        return rest

    # Working

    def _begin(self, client: Client) -> None:
        target = client.target.partition(b"?")[0]
        if client.method != b"POST" or not target.endswith(_WORK):
            body, client.body = client.body, b""
            self._send(client, self._look_up(target, body))
            return
        work = Work(client, target, time.monotonic())
        instances = self.behaviour.instances
        if instances and self.truth.running >= instances:
            self.truth.waited += 1
            self._waiting.append(work)
        else:
            self._start(work, time.monotonic())

    def _start(self, work: Work, now_s: float) -> None:
        work.began_s = now_s
        self.truth.change(1, now_s)
        if work.target.endswith(b"_stream"):
            self._send(work.client, STREAM_HEAD)
            self._later(work, now_s + self.behaviour.stream_interval_ms / 1000, self.behaviour.stream_events)
        elif self.behaviour.delay_ms:
            self._later(work, now_s + self.behaviour.delay_ms / 1000, 0)
        else:
            self._end(work)

    def _later(self, work: Work, due_s: float, events_left: int) -> None:
        heapq.heappush(self._timers, (due_s, next(self._numbers), work, events_left))

    def _fire(self, now_s: float) -> None:
        while self._timers and self._timers[0][0] <= now_s:
            due_s, _, work, events_left = heapq.heappop(self._timers)
            if not events_left:
                self._end(work)
                continue
            self._send(work.client, STREAM_EVENT)
            if events_left > 1:
                self._later(work, due_s + self.behaviour.stream_interval_ms / 1000, events_left - 1)
            else:
                self._end(work)

    def _end(self, work: Work) -> None:
        now_s = time.monotonic()
        self._success += 1
        self.truth.served(work.came_s, now_s)
        if work.target.endswith(b"_stream"):
            self._send(work.client, b"0\r\n\r\n")
        else:
            self._send(work.client, answer(work.target.rpartition(b"/")[2], self.behaviour.answer_bytes))
        if self._waiting:
            self._start(self._waiting.popleft(), now_s)

    # Answering

    def _send(self, client: Client, data: bytes) -> None:
        if client.closed:
            return
        if not client.unsent:
            try:
                sent = client.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._close(client)
                return
            if sent == len(data):
                return
            client.unsent.append(memoryview(data)[sent:])
            self._poll.modify(client.sock, select.EPOLLIN | select.EPOLLOUT)
        else:
            client.unsent.append(memoryview(data))

    def _flush(self, client: Client) -> None:
        try:
            while client.unsent:
                sent = client.sock.send(client.unsent[0])
                if sent < len(client.unsent[0]):
                    client.unsent[0] = client.unsent[0][sent:]
                    return
                client.unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._close(client)
            return
        self._poll.modify(client.sock, select.EPOLLIN)

    def _close(self, client: Client) -> None:
        if not client.closed:
            client.closed = True
            del self._clients[client.sock.fileno()]
            client.sock.close()

    def _reconfigure(self, body: bytes) -> None:
        told = json.loads(body)
        known = {field.name for field in fields(Behaviour)}
        self.behaviour = Behaviour(**{**asdict(self.behaviour), **{k: v for k, v in told.items() if k in known}})
        # What still runs is forgotten with the rest, and never answered.
        self._timers.clear()
        self._waiting.clear()
        self.truth = Truth()

    def _look_up(self, target: bytes, body: bytes) -> bytes:
        """What needs no execution."""
        if target == b"/truth":
            if body:
                self._reconfigure(body)
            return json_answer(self.truth.told())
        if target == b"/v2":
            return json_answer({"name": "triton", "version": "2.51.0", "extensions": ["statistics", "trace"]})
        name = target.split(b"/")[3].decode() if target.startswith(b"/v2/models/") else ""
        if target.endswith(b"/stats"):
            return json_answer({"model_stats": [statistics(name, self._success)]})
        if target.endswith(b"/trace/setting"):
            if body:
                self._log_frequency = json.loads(body).get("log_frequency", self._log_frequency)
            return json_answer({"trace_level": ["OFF"], "log_frequency": self._log_frequency})
        if target.endswith(b"/config"):
            return json_answer(config(name))
        if name and target.count(b"/") == 3:
            return json_answer(metadata(name))
        return json_answer(OTHERS.get(target, {}))


def main() -> None:
    """Serves until it is told to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    Backend(parser.parse_args().port, Behaviour()).run()


if __name__ == "__main__":
    main()
