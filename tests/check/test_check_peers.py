"""Whatever is at the URL, `governor check` ends with a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from governor.check import MAX_BODY_BYTES, check
from governor.config import parse_config
from tests.check.fake import bad

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from governor.config import Config


@pytest.fixture
async def serve(nursery: trio.Nursery) -> AsyncIterator[Callable[..., Awaitable[Config]]]:
    """Serves a connection handler on a real socket; returns a configuration whose backend is there."""

    async def start(handler: Callable[[trio.SocketStream], Awaitable[None]]) -> Config:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, handler, [listener])
        return parse_config(
            f'[[backends]]\nname = "b"\nurl = "http://127.0.0.1:{port}"\n'
            '[[models]]\nname = "m"\nbackend = "b"\nslots = 1\nkind = "infer"\n'
        )

    yield start
    nursery.cancel_scope.cancel()


def sending(*parts: bytes) -> Callable[[trio.SocketStream], Awaitable[None]]:
    async def handler(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        for part in parts:
            await stream.send_all(part)

    return handler


async def hang(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await trio.sleep_forever()


async def drip(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
    while True:
        await stream.send_all(b"x")
        await trio.sleep(0.05)


async def flood(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n")
    try:
        while True:
            await stream.send_all(bytes(65536))
    except trio.BrokenResourceError:
        return


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (hang, "no complete answer within 0.3 s"),
        (drip, "no complete answer within 0.3 s"),
        (flood, f"an answer of more than {MAX_BODY_BYTES} bytes"),
        (sending(), "no valid HTTP answer"),
        (sending(b"SSH-2.0-OpenSSH_9.2\r\n"), "no valid HTTP answer"),
        (sending(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"), "no valid HTTP answer"),
        (sending(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}"), "not as a KServe v2"),
        (sending(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"), "not as a KServe v2 server"),
    ],
)
async def test_whatever_is_at_the_url_the_check_ends_with_a_finding(
    serve: Callable[..., Awaitable[Config]], handler: Callable[[trio.SocketStream], Awaitable[None]], words: str
) -> None:
    where = await serve(handler)
    with trio.fail_after(5):
        report = await check(where, timeout_s=0.3)
    assert words in bad(report)[0]
    assert not report.ok


async def test_https_where_plain_http_is_spoken_is_told_in_words(serve: Callable[..., Awaitable[Config]]) -> None:
    plain = await serve(sending(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"))
    url = plain.backends[0].url.replace("http:", "https:")
    with trio.fail_after(5):
        model = '[[models]]\nname = "m"\nbackend = "b"\nslots = 1\nkind = "infer"\n'
        report = await check(parse_config(f'[[backends]]\nname = "b"\nurl = "{url}"\n{model}'), timeout_s=2)
    line = bad(report)[0]
    assert "SSL" in line
    assert "Triton itself speaks no TLS, so it is http://" in line


async def test_a_closed_port_and_an_unknown_host_are_findings() -> None:
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        text = (
            f'[[backends]]\nname = "a"\nurl = "http://127.0.0.1:{port}"\n'
            '[[backends]]\nname = "b"\nurl = "http://nowhere.invalid:1"\n'
            '[[models]]\nname = "m"\nbackend = "b"\nslots = 1\nkind = "infer"\n'
        )
        lines = bad(await check(parse_config(text), timeout_s=2))
    assert len(lines) == 3
    assert "no connection" in lines[0]
    assert 'backend "b": http://nowhere.invalid:1 cannot be used: no ' in lines[1]
