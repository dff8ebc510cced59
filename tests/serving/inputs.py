"""51 inputs that a server must survive. Those marked end the process of a stock hypercorn trio worker."""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass
from typing import Final, TypeAlias

import hpack

from .support import get

Fields: TypeAlias = "list[tuple[bytes, bytes]]"


@dataclass(frozen=True)
class HostileInput:
    """What one client sends before it closes its connection.

    Attributes:
        name: unique, for humans.
        parts: raw bytes; before each part after the first, the server has the chance to answer.
        kills_stock: a stock worker serving the raw ASGI application of these tests dies of it.
    """

    name: str
    parts: tuple[bytes, ...]
    kills_stock: bool = False


def _h1(name: str, data: bytes, *, kills_stock: bool = False) -> HostileInput:
    return HostileInput(f"h1 {name}", (data,), kills_stock)


def _h2(name: str, *frames: bytes, then: bytes = b"", kills_stock: bool = False) -> HostileInput:
    parts = (PREFACE + _frame(SETTINGS, 0, 0, b""), b"".join(frames), *([then] if then else []))
    return HostileInput(f"h2 {name}", parts, kills_stock)


def _post(path: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode() + body


def _h2c(settings: str) -> bytes:
    return get("/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", f"HTTP2-Settings: {settings}")


PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH_PROMISE, WINDOW_UPDATE = 0, 1, 2, 3, 4, 5, 8
END_STREAM, END_HEADERS = 1, 4

WEBSOCKET: Final = get(
    "/ws",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _request(path: bytes, *more: tuple[bytes, bytes], stream: int = 1, end: bool = True) -> bytes:
    fields = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", path), *more]
    return _fields(fields, stream=stream, end=end)


def _fields(fields: Fields, *, stream: int = 1, end: bool = True) -> bytes:
    block = hpack.Encoder().encode(fields, huffman=False)
    return _frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block)


def _upload(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", path), *more]
    return _fields(fields, end=False) + _frame(DATA, 0, 1, b"x")


def _priority(stream: int, depends_on: int) -> bytes:
    return _frame(PRIORITY, 0, stream, depends_on.to_bytes(4, "big") + b"\x10")


_noise = random.Random(51)
_bad_window: Final = base64.urlsafe_b64encode(b"\x00\x05\x00\x00\x00\x01").decode()
_chunked: Final = "Transfer-Encoding: chunked"

HOSTILE_INPUTS: Final = (
    _h1("garbage", _noise.randbytes(200)),
    _h1("non-ASCII target", b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n"),
    _h1("percent-encoded non-UTF-8 path", get("/%ff%fe")),
    _h1("OPTIONS *", b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"),
    _h1("absolute target", get("http://x/")),
    _h1("absolute target with a broken IPv6 address", get("http://[::1/")),
    _h1("CONNECT", b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"),
    _h1("two hosts", get("/", "Host: y")),
    _h1("no host", b"GET / HTTP/1.1\r\n\r\n"),
    _h1("HTTP/1.0", b"GET / HTTP/1.0\r\n\r\n"),
    _h1("HTTP/3.0", b"GET / HTTP/3.0\r\nHost: x\r\n\r\n"),
    _h1("non-ASCII header values", b"GET / HTTP/1.1\r\nHost: \xff\r\nX: \xe9\r\n\r\n"),
    _h1("content length not a number", _post("/body", "Content-Length: abc")),
    _h1("content length of 30 digits", _post("/body", "Content-Length: " + "9" * 30)),
    _h1("content length and chunked", _post("/body", "Content-Length: 3", _chunked, body=b"0\r\n\r\n")),
    _h1("bad chunk within a body", _post("/body", _chunked, body=b"3\r\nabc\r\nZZ\r\n")),
    _h1("garbage behind a waiting request", get("/wait/0.2") + b"\x00\x01garbage"),
    _h1(
        "bad chunk while the answer is sent",
        _post("/unread", _chunked, body=b"3\r\nabc\r\nZZ\r\n"),
        kills_stock=True,
    ),
    _h1("h2c with settings not base64", _h2c("%%%%!")),
    _h1("h2c without settings", get("/", "Connection: Upgrade", "Upgrade: h2c")),
    _h1("h2c with settings not allowed", _h2c(_bad_window), kills_stock=True),
    _h1("HTTP/2 preface with junk", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\njunk"),
    _h1("websocket without a key", get("/ws", "Upgrade: websocket", "Connection: Upgrade")),
    _h1("websocket version 99", WEBSOCKET.replace(b"13", b"99")),
    _h1(
        "websocket with non-ASCII headers",
        WEBSOCKET[:-2] + b"Sec-WebSocket-Extensions: \xff\xfe\r\nSec-WebSocket-Protocol: \xff\r\n\r\n",
        kills_stock=True,
    ),
    _h1("websocket with bytes behind it", WEBSOCKET + b"\xff\xff\xff\xff", kills_stock=True),
    _h2("non-ASCII path", _request(b"/\xff\xfe"), kills_stock=True),
    _h2(
        "non-ASCII method",
        _fields([(b":method", b"G\xffT"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/")]),
        kills_stock=True,
    ),
    _h2("path *", _request(b"*")),
    _h2("empty path", _request(b"")),
    _h2(
        "CONNECT without path",
        _fields([(b":method", b"CONNECT"), (b":authority", b"x:80")], end=False),
        kills_stock=True,
    ),
    _h2(
        "CONNECT for a websocket",
        _fields(
            [
                (b":method", b"CONNECT"),
                (b":protocol", b"websocket"),
                (b":scheme", b"http"),
                (b":path", b"/ws"),
                (b":authority", b"x"),
            ],
            end=False,
        ),
    ),
    _h2("no path", _fields([(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"x")])),
    _h2("no authority", _fields([(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")])),
    _h2("upper case header name", _request(b"/", (b"X-UP", b"1"))),
    _h2("non-ASCII header value", _request(b"/", (b"x", b"\xff"))),
    _h2("DATA on an idle stream", _frame(DATA, 0, 9, b"x")),
    _h2("PRIORITY depending on itself", _priority(3, 3)),
    _h2("PRIORITY depending on nothing known", _priority(3, 51)),
    _h2("1499 PRIORITY frames", *(_priority(2 * n + 1, 0) for n in range(1, 1500)), kills_stock=True),
    _h2("PRIORITY cycle", _priority(3, 5), _priority(5, 3)),
    _h2("WINDOW_UPDATE overflow", 2 * _frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff")),
    _h2("SETTINGS with a value not allowed", _frame(SETTINGS, 0, 0, b"\x00\x05\x00\x00\x00\x01")),
    _h2("RST_STREAM of an idle stream", _frame(RESET, 0, 7, bytes(4))),
    _h2("PUSH_PROMISE from a client", _frame(PUSH_PROMISE, END_HEADERS, 1, b"\x00\x00\x00\x02")),
    _h2("undecodable header block", _frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff" * 5)),
    _h2("frame of 16 MiB announced", b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"),
    _h2("garbage", _noise.randbytes(300)),
    _h2(
        "RST_STREAM then DATA",
        _upload(b"/wait/5.0"),
        then=_frame(RESET, 0, 1, bytes(4)) + _frame(DATA, 0, 1, b"x"),
    ),
    _h2(
        "80 streams reset at once",
        *(_request(b"/wait/5.0", stream=2 * n + 1) + _frame(RESET, 0, 2 * n + 1, bytes(4)) for n in range(80)),
    ),
    _h2(
        "DATA after an early answer",
        _upload(b"/unread", (b"content-length", b"200000")),
        then=_frame(DATA, 0, 1, b"x"),
        kills_stock=True,
    ),
)
