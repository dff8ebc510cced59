"""A backend on a real socket that does exactly what a test tells it to, byte by byte."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from hypothesis import HealthCheck, settings

from governor.triton.lane import Lane
from governor.triton.wire import WireRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from governor.triton.lane import Exchange, Stamp

PATIENCE_S = 5.0
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For property tests: how busy the machine is says nothing about the code."""
CERTIFICATE = Path(__file__).with_name("localhost.pem")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def post(body: bytes = b'{"x":1}') -> WireRequest:
    return WireRequest(method="POST", path="/v2/models/m/infer", body=body)


@dataclass
class Connection:
    """The server's end of one connection."""

    stream: trio.abc.Stream
    raw: trio.SocketStream
    received: bytearray = field(default_factory=bytearray)

    async def read_request(self) -> bytes:
        """Head and body of the next request, which must have a Content-Length or no body."""
        with trio.fail_after(PATIENCE_S):
            return await self._read_request()

    async def _read_request(self) -> bytes:
        while b"\r\n\r\n" not in self.received:
            self._take(await self.stream.receive_some(65536))
        head, _, _ = bytes(self.received).partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name == b"content-length":
                length = int(value)
        total = len(head) + 4 + length
        while len(self.received) < total:
            self._take(await self.stream.receive_some(65536))
        request = bytes(self.received[:total])
        del self.received[:total]
        return request

    def _take(self, data: bytes | bytearray) -> None:
        if not data:
            raise EOFError
        self.received += data

    async def read_to_end(self) -> bytes:
        """Everything until the client closes or resets."""
        try:
            with trio.fail_after(PATIENCE_S):
                while data := await self.stream.receive_some(65536):
                    self.received += data
        except trio.BrokenResourceError:
            pass  # a reset is an end too; what came before it is in `received`
        return bytes(self.received)

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    def close(self) -> None:
        """FIN, when nothing unread is left."""
        self.raw.socket.close()

    def reset(self) -> None:
        """RST."""
        self.raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.raw.socket.close()


class Peer:
    """A listening server; connections are handed out in the order in which they were accepted."""

    def __init__(self, listener: trio.SocketListener, tls: ssl.SSLContext | None) -> None:
        self._listener = listener
        self._tls = tls
        self.accepted = 0

    @property
    def port(self) -> int:
        return int(self._listener.socket.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    async def accept(self) -> Connection:
        with trio.fail_after(PATIENCE_S):
            raw = await self._listener.accept()
            self.accepted += 1
            stream: trio.abc.Stream = raw
            if self._tls is not None:
                stream = trio.SSLStream(raw, self._tls, server_side=True, https_compatible=True)
            return Connection(stream, raw)

    def lane(self, *, stamp: Stamp | None = None, write_timeout_ms: int = 30_000) -> Lane:
        tls = client_tls() if self._tls is not None else None
        return Lane(self.url, connect_timeout_ms=2_000, write_timeout_ms=write_timeout_ms, stamp=stamp, tls=tls)


@asynccontextmanager
async def open_peer(*, tls: bool = False, receive_buffer: int | None = None) -> AsyncIterator[Peer]:
    """A peer on a free port of 127.0.0.1. `receive_buffer` in bytes makes a peer that reads nothing full soon."""
    sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await sock.bind(("127.0.0.1", 0))
    sock.listen(16)
    context: ssl.SSLContext | None = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
    async with trio.SocketListener(sock) as listener:
        yield Peer(listener, context)


def client_tls() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=CERTIFICATE)


async def run_to_end(exchange: Exchange) -> bytes:
    """Enter the exchange and read its answer whole."""
    async with exchange as answer:
        return await answer.read(1 << 20)


async def serve(peer: Peer, *answers: bytes) -> None:
    """Give one answer after the other, over as many connections as the client opens."""
    left = list(answers)
    while left:
        connection = await peer.accept()
        try:
            while left:
                await connection.read_request()
                await connection.send(left.pop(0))
        except (EOFError, trio.BrokenResourceError):
            continue
