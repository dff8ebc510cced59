"""Answers given without asking the application; the connection ends with each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final


@dataclass(frozen=True, slots=True)
class Refusal:
    """One such answer: its HTTP status, its stable code, and a sentence that says what to change (A9)."""

    status: int
    code: str
    message: str

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The header fields that go with `body`."""
        length = str(len(self.body())).encode()
        return [
            (b"content-type", b"application/json"),
            (b"content-length", length),
            (b"connection", b"close"),
        ]

    def body(self) -> bytes:
        """The JSON error body (A9)."""
        return json.dumps({"error": self.message, "code": self.code}).encode()

    def raw(self) -> bytes:
        """The whole answer as it goes over the wire."""
        head = f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\n".encode()
        return head + b"".join(b"%s: %s\r\n" % header for header in self.headers()) + b"\r\n" + self.body()


MALFORMED: Final = Refusal(400, "malformed_request", "This is not an HTTP/1.1 request; check its syntax.")
BAD_TARGET: Final = Refusal(400, "invalid_target", "The request target must be a path or an http URL.")
NO_CONNECT: Final = Refusal(400, "connect_not_supported", "This server is no proxy: use GET or POST.")
NO_WEBSOCKET: Final = Refusal(
    400, "websocket_not_supported", "There are no websockets here: send the request without Upgrade."
)
WRONG_HOST: Final = Refusal(404, "host_not_served", "This server does not answer for the request's Host.")
HEAD_TOO_SLOW: Final = Refusal(408, "request_timeout", "The request's head took too long to arrive.")
BODY_TOO_SLOW: Final = Refusal(408, "request_timeout", "The request's body came too slowly.")
HEAD_TOO_LARGE: Final = Refusal(431, "headers_too_large", "The request line and headers are too large.")
NO_CODING: Final = Refusal(501, "transfer_encoding_not_supported", "The only Transfer-Encoding is chunked.")
UNKNOWN_METHOD: Final = Refusal(501, "method_not_supported", "This server does not know the request's method.")
TOO_MANY_CONNECTIONS: Final = Refusal(503, "too_many_connections", "Too many open connections: retry later.")
HTTP_ONE_ONLY: Final = Refusal(505, "http_version_not_supported", "This server speaks HTTP/1.1 only.")


_ALL: Final = (
    MALFORMED,
    BAD_TARGET,
    NO_CONNECT,
    NO_WEBSOCKET,
    WRONG_HOST,
    HEAD_TOO_SLOW,
    BODY_TOO_SLOW,
    HEAD_TOO_LARGE,
    NO_CODING,
    UNKNOWN_METHOD,
    TOO_MANY_CONNECTIONS,
    HTTP_ONE_ONLY,
)
_refused: Final = dict.fromkeys(sorted({refusal.code for refusal in _ALL}), 0)


def note_refusal(refusal: Refusal) -> None:
    """Counts a refusal that is answered."""
    _refused[refusal.code] += 1


def refused_connections() -> dict[str, int]:
    """How many requests and connections this process has refused below the application, by code."""
    return dict(_refused)
