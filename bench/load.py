"""The load generator: a process of its own, raw sockets, no waiting for a slow server (open loop).

    from bench.load import Plan, run
    result = run(Plan(host="127.0.0.1", port=8000, path="/v2/models/noop/infer", rate_per_s=500, seconds=5))

With a rate, requests have a time at which they are due, whatever became of the ones before; a latency counts from
that time, so a server that stalls is charged with every request that would have come meanwhile (no coordinated
omission). A request that finds no idle connection opens one, up to `connections`, and waits for one beyond that: the
wait counts too. Without a rate each of `connections` sends its next request when it has its answer (closed loop):
what "at concurrency N" means, and how a server is saturated.
"""

from __future__ import annotations

import json
import math
import os
import random
import select
import socket
import subprocess
import sys
import time
from array import array
from collections import deque
from dataclasses import asdict, dataclass, field

from bench.http1 import Answer, request
from bench.processes import cpu_s, prefer

_RECEIVE_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to send, and how often.

    Attributes:
        body_bytes: about so many bytes of raw tensor after its JSON, as Triton's clients send large ones, in place
            of `body`; 0 for `body` itself.
        rate_per_s: requests due per second, at random times (Poisson); None for a closed loop.
        connections: the most that are open at once.
        seconds: how long requests are due; what is under way at the end may take `drain_s` more.
        warm_up_s: answers to requests due before this are not counted.
        cpu: the only CPU that the generator uses.
        first: run before other work of the machine (`processes.prefer`).
        target_pid: the process whose CPU time is read from the end of the warm-up to the end of `seconds`.
    """

    port: int
    path: str
    host: str = "127.0.0.1"
    body: str = "{}"
    body_bytes: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    rate_per_s: float | None = None
    connections: int = 1
    seconds: float = 2.0
    warm_up_s: float = 0.2
    drain_s: float = 5.0
    seed: int = 1
    cpu: int | None = None
    target_pid: int | None = None
    first: bool = False

    def bytes_to_send(self) -> bytes:
        """The request."""
        body, headers = self.body.encode(), tuple(self.headers)
        if self.body_bytes:
            head, tensor = raw_tensor(self.body_bytes)
            body, headers = head + tensor, (*headers, ("Inference-Header-Content-Length", str(len(head))))
        return request("POST", f"{self.host}:{self.port}", self.path, body, headers)


def raw_tensor(size: int) -> tuple[bytes, bytes]:
    """The JSON and the bytes of an `infer` of one FP32 tensor of about so many bytes."""
    floats = max(1, size // 4)
    tensor = {"name": "X", "datatype": "FP32", "shape": [floats], "parameters": {"binary_data_size": 4 * floats}}
    return json.dumps({"inputs": [tensor]}).encode(), bytes(4 * floats)


@dataclass
class Result:
    """What came of a plan. Times in milliseconds.

    Attributes:
        answers: by status.
        latencies: percentiles of the time from a request's due time to its last byte, by status.
        first_byte: the same to the first byte of the answer.
        curve: points of the distribution of the 200s: percent, milliseconds.
        unanswered: due, but not answered when the drain time was over.
        failures: connections that broke under a request.
        seconds: the time in which requests were counted.
        lag_p99: how late the generator itself was with its sends; a large one spoils the measurement.
        cpu_s: CPU time of the generator.
        target_cpu_us: CPU time of the target per answer, microseconds; NaN without a target.
    """

    answers: dict[str, int] = field(default_factory=dict)
    latencies: dict[str, dict[str, float]] = field(default_factory=dict)
    first_byte: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[float, float]] = field(default_factory=list)
    unanswered: int = 0
    failures: int = 0
    seconds: float = 0.0
    lag_p99: float = 0.0
    cpu_s: float = 0.0
    target_cpu_us: float = float("nan")

    @property
    def total(self) -> int:
        """Answers of any status."""
        return sum(self.answers.values())

    @property
    def per_second(self) -> float:
        """Answers per second, of any status."""
        return self.total / self.seconds if self.seconds else 0.0

    def ms(self, percentile: str, status: str = "200") -> float:
        """A latency: `ms("p50")`."""
        return self.latencies.get(status, {}).get(percentile, float("nan"))


def run(plan: Plan) -> Result:
    """Runs a plan in a process of its own and returns what it saw."""
    command = [sys.executable, "-m", "bench.load"]
    done = subprocess.run(command, input=json.dumps(asdict(plan)).encode(), stdout=subprocess.PIPE, check=True)
    return Result(**json.loads(done.stdout))


def percentiles(values: list[float] | array[float]) -> dict[str, float]:
    """The usual ones, in the values' own unit."""
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    named = {f"p{percent:g}": ordered[min(last, int(len(ordered) * percent / 100))] for percent in (50, 90, 99, 99.9)}
    return {**named, "max": ordered[-1], "mean": sum(ordered) / len(ordered)}


class _Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.answer = Answer()
        self.due_s = 0.0
        self.first_s = 0.0
        self.unsent: memoryview | None = None


class Generator:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._request = plan.bytes_to_send()
        self._poll = select.epoll()
        self._open: dict[int, _Connection] = {}
        self._idle: list[_Connection] = []
        self._due: deque[float] = deque()
        self._latencies: dict[int, array[float]] = {}
        self._first_byte = array("d")
        self._lag = array("d")
        self._failures = 0
        self._begun_s = 0.0
        self._ends_s = 0.0
        self._answered = 0
        self._marks: list[tuple[float, int]] = []
        self._next_mark_s = 0.0

    def run(self) -> Result:
        """Sends everything that becomes due and waits for the answers."""
        plan = self._plan
        cpu_before_s = time.process_time()
        self._begun_s = time.perf_counter()
        self._ends_s = self._begun_s + plan.seconds
        self._next_mark_s = self._begun_s + plan.warm_up_s if plan.target_pid is not None else math.inf
        if plan.rate_per_s is None:
            self._due.extend([self._begun_s] * plan.connections)
            self._run_closed()
        else:
            self._run_open(plan.rate_per_s)
        counted_s = plan.seconds - plan.warm_up_s
        unanswered = len(self._open) - len(self._idle) + len(self._due)
        good = sorted(self._latencies.get(200, ()))
        return Result(
            answers={str(status): len(values) for status, values in self._latencies.items()},
            latencies={str(status): percentiles(values) for status, values in self._latencies.items()},
            first_byte=percentiles(self._first_byte),
            curve=[(percent, good[int((len(good) - 1) * percent / 100)]) for percent in range(0, 101, 2)]
            if good
            else [],
            unanswered=unanswered,
            failures=self._failures,
            seconds=counted_s,
            lag_p99=percentiles(self._lag).get("p99", 0.0),
            cpu_s=time.process_time() - cpu_before_s,
            target_cpu_us=self._target_cpu_us(),
        )

    def _mark(self, now_s: float) -> None:
        """Reads the target's CPU time, once at the end of the warm-up and once at the end."""
        assert self._plan.target_pid is not None
        self._marks.append((cpu_s(self._plan.target_pid), self._answered))
        self._next_mark_s = self._ends_s if now_s < self._ends_s else math.inf

    def _target_cpu_us(self) -> float:
        if len(self._marks) != 2:
            return math.nan
        (cpu_before_s, answered_before), (cpu_after_s, answered_after) = self._marks
        return 1e6 * (cpu_after_s - cpu_before_s) / max(1, answered_after - answered_before)

    def _run_open(self, rate_per_s: float) -> None:
        chance = random.Random(self._plan.seed)
        next_s = self._begun_s + chance.expovariate(rate_per_s)
        while True:
            now_s = time.perf_counter()
            while next_s <= now_s and next_s < self._ends_s:
                self._due.append(next_s)
                next_s += chance.expovariate(rate_per_s)
            self._send_due()
            if now_s >= self._next_mark_s:
                self._mark(now_s)
            if now_s >= self._ends_s and not self._due and len(self._idle) == len(self._open):
                return
            if now_s >= self._ends_s + self._plan.drain_s:
                return
            wake_s = next_s if next_s < self._ends_s else now_s + 0.1
            self._receive(max(0.0, wake_s - time.perf_counter()))

    def _run_closed(self) -> None:
        while True:
            self._send_due()
            now_s = time.perf_counter()
            if now_s >= self._next_mark_s:
                self._mark(now_s)
            if len(self._idle) == len(self._open) or now_s >= self._ends_s + self._plan.drain_s:
                return
            self._receive(0.1)

    # Sending

    def _send_due(self) -> None:
        while self._due:
            if self._idle:
                connection = self._idle.pop()
            elif len(self._open) < self._plan.connections:
                connection = self._connect()
            else:
                return
            due_s = self._due.popleft()
            connection.due_s = due_s
            connection.first_s = 0.0
            connection.answer.reset()
            if self._plan.rate_per_s is not None:
                self._lag.append(1000 * max(0.0, time.perf_counter() - due_s))
            self._send(connection, memoryview(self._request))

    def _connect(self) -> _Connection:
        sock = socket.create_connection((self._plan.host, self._plan.port))
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self._open[sock.fileno()] = _Connection(sock)
        self._poll.register(sock, select.EPOLLIN)
        return connection

    def _send(self, connection: _Connection, data: memoryview) -> None:
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._broke(connection)
            return
        waited = connection.unsent is not None
        connection.unsent = data[sent:] if sent < len(data) else None
        waits = connection.unsent is not None
        if waits != waited:
            self._poll.modify(connection.sock, select.EPOLLIN | (select.EPOLLOUT if waits else 0))

    # Receiving

    def _receive(self, wait_s: float) -> None:
        if 0 < wait_s < 0.05:  # epoll itself counts in milliseconds, select in microseconds
            select.select([self._poll], [], [], wait_s)
            wait_s = 0
        for fd, events in self._poll.poll(wait_s):
            connection = self._open.get(fd)
            if connection is None:
                continue
            if events & select.EPOLLOUT and connection.unsent is not None:
                self._send(connection, connection.unsent)
            if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and fd in self._open:
                self._take(connection)

    def _take(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._broke(connection)
            return
        now_s = time.perf_counter()
        answer = connection.answer
        if not connection.first_s:
            connection.first_s = now_s
        answer.feed(data)
        if not answer.complete:
            return
        self._answered += 1
        self._count(connection, now_s)
        if answer.closes or connection.unsent is not None:
            self._drop(connection)
        else:
            self._idle.append(connection)
        if self._plan.rate_per_s is None and now_s < self._ends_s:
            self._due.append(now_s)

    def _count(self, connection: _Connection, now_s: float) -> None:
        if connection.due_s - self._begun_s < self._plan.warm_up_s:
            return
        if now_s > self._ends_s and self._plan.rate_per_s is None:
            return  # a closed loop counts what ended within its time
        self._latencies.setdefault(connection.answer.status, array("d")).append(1000 * (now_s - connection.due_s))
        self._first_byte.append(1000 * (connection.first_s - connection.due_s))

    def _broke(self, connection: _Connection) -> None:
        was_idle = connection in self._idle
        if was_idle:
            self._idle.remove(connection)  # closed by the server between two requests
        else:
            self._failures += 1
        self._drop(connection)
        if not was_idle and self._plan.rate_per_s is None and time.perf_counter() < self._ends_s:
            self._due.append(time.perf_counter())

    def _drop(self, connection: _Connection) -> None:
        del self._open[connection.sock.fileno()]
        connection.sock.close()


def main() -> None:
    """Takes a plan as JSON from the standard input and prints the result as JSON."""
    told = json.load(sys.stdin)
    told["headers"] = tuple((name, value) for name, value in told["headers"])
    plan = Plan(**told)
    if plan.cpu is not None:
        os.sched_setaffinity(0, {plan.cpu})
    if plan.first:
        prefer()
    print(json.dumps(asdict(Generator(plan).run())))


if __name__ == "__main__":
    main()
