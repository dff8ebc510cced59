"""A small closed-loop HTTP load generator: raw sockets, prebuilt requests, so that it costs little itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import trio

_ANSWER_MAX = 16 * 1024 * 1024


@dataclass
class Sample:
    """Latencies of one run in seconds, and how long the run took."""

    latencies_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    failures: int = 0

    def percentile_ms(self, percent: float) -> float:
        """The latency that `percent` of the requests did not exceed, in milliseconds."""
        ordered = sorted(self.latencies_s)
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    @property
    def per_second(self) -> float:
        """Completed requests per second."""
        return len(self.latencies_s) / self.wall_s


def post(host: str, port: int, path: str, body: bytes) -> bytes:
    """One HTTP/1.1 request as it goes over the wire."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


async def closed_loop(host: str, port: int, request: bytes, *, connections: int, duration_s: float) -> Sample:
    """Each connection sends the next request when the answer to the last has arrived."""
    sample = Sample()
    started = time.perf_counter()

    async def one_connection() -> None:
        stream = await trio.open_tcp_stream(host, port)
        async with stream:
            while time.perf_counter() - started < duration_s:
                sent = time.perf_counter()
                await stream.send_all(request)
                status = await _answer(stream)
                sample.latencies_s.append(time.perf_counter() - sent)
                sample.failures += status != 200

    async with trio.open_nursery() as nursery:
        for _ in range(connections):
            nursery.start_soon(one_connection)
    sample.wall_s = time.perf_counter() - started
    return sample


async def _answer(stream: trio.SocketStream) -> int:
    """Reads one answer with a Content-Length or chunks; returns its status."""
    data = bytearray()
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += await _more(stream)
    head = bytes(data[:end]).lower()
    status = int(head[9:12])
    if b"transfer-encoding: chunked" in head:
        while not data.endswith(b"0\r\n\r\n"):
            data += await _more(stream)
        return status
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    while len(data) < end + 4 + length:
        data += await _more(stream)
    return status


async def _more(stream: trio.SocketStream) -> bytes:
    piece = bytes(await stream.receive_some(65536))
    if not piece:
        raise ConnectionError("the server closed the connection in the middle of an answer")
    return piece
