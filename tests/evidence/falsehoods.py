"""Wrong answers to a request for statistics, as a broken or hostile backend could give them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Falsehood = Callable[[trio.SocketStream, bytes], Awaitable[None]]

_SUCCESS_COUNT = re.compile(rb'("success":\{"count":)(\d+)')


def _head(length: int, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()


def body(make: Callable[[bytes], bytes], *, status: str = "200 OK") -> Falsehood:
    """A complete answer whose body is made of the right one."""

    async def answer(client: trio.SocketStream, right: bytes) -> None:
        wrong = make(right)
        await client.send_all(_head(len(wrong), status) + wrong)

    return answer


def success_count(value: str) -> Falsehood:
    """The right answer, but every success count is this JSON text."""

    def make(right: bytes) -> bytes:
        wrong, count = _SUCCESS_COUNT.subn(rb"\g<1>" + value.encode(), right)
        assert count, right
        return wrong

    return body(make)


def other_model(right: bytes) -> bytes:
    """The right answer, of another model."""
    told = json.loads(right)
    for entry in told["model_stats"]:
        entry["name"] = "another"
    return json.dumps(told).encode()


async def closed(client: trio.SocketStream, _right: bytes) -> None:
    """No answer: the connection ends."""
    client.socket.close()


async def cut_off(client: trio.SocketStream, right: bytes) -> None:
    """Half an answer, then the connection ends."""
    await client.send_all(_head(len(right)) + right[: len(right) // 2])
    client.socket.close()


async def silent(_client: trio.SocketStream, _right: bytes) -> None:
    """No answer, and the connection stays open."""


async def endless(client: trio.SocketStream, right: bytes) -> None:
    """The right answer, and then white space for ever."""
    await client.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    await client.send_all(f"{len(right):x}\r\n".encode() + right + b"\r\n")
    while True:
        await client.send_all(b"1\r\n \r\n")
        await trio.sleep(0.01)
