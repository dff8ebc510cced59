"""A request to the backend as plain data, safe by construction.

Everything that reaches a socket passes through `WireRequest`: a path, a header or a method that could change the
meaning of the bytes around it (a space, a line break, a second request) is refused when the value is built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from governor.errors import InvalidRequestError

Headers = tuple[tuple[str, str], ...]
"""Header fields in order, names as sent; a name may occur more than once."""

Body = bytes | memoryview
"""A request's body: its bytes, or a view of a buffer that nobody writes to any more."""

_METHOD = re.compile(r"[A-Z]{1,16}")
_TARGET = re.compile(r"/[!-~]*")  # visible ASCII: no space, no control byte, nothing to be encoded
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")
_OWNED = frozenset({"host", "content-length", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer"})
_MAX_TARGET = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """One HTTP request, without what belongs to the connection.

    Attributes:
        method: upper-case token, such as `POST`.
        path: the request target: starts with `/`, already percent-encoded, may carry a query, no fragment.
        headers: further header fields. Host, length, framing and connection fields belong to the lane.
        body: the whole body; its length is sent as Content-Length.

    Raises:
        InvalidRequestError: a field would not survive on the wire as it is.
    """

    method: str
    path: str
    headers: Headers = ()
    body: Body = b""

    def __post_init__(self) -> None:
        if not _METHOD.fullmatch(self.method):
            raise InvalidRequestError(f"HTTP method {self.method!r} is not an upper-case token")
        if not _TARGET.fullmatch(self.path) or "#" in self.path or len(self.path) > _MAX_TARGET:
            raise InvalidRequestError(
                f"Request path {self.path[:80]!r} must start with '/', be percent-encoded, hold no fragment and be"
                f" at most {_MAX_TARGET} characters long"
            )
        for name, value in self.headers:
            if not _NAME.fullmatch(name) or name.lower() in _OWNED:
                raise InvalidRequestError(f"Header name {name[:80]!r} is malformed or set by the connection itself")
            if not _VALUE.fullmatch(value):
                raise InvalidRequestError(f"Header {name} has a value that cannot be sent: {value[:80]!r}")


def path_of(*segments: str) -> str:
    """Join literal path segments into a target; every reserved character of a segment is percent-encoded.

    Raises:
        InvalidRequestError: a segment is empty, `.` or `..`, or not encodable as UTF-8: it would name another path.
    """
    for segment in segments:
        if segment in {"", ".", ".."}:
            raise InvalidRequestError(f"{segment!r} cannot be a path segment")
    try:
        return "".join("/" + quote(segment, safe="") for segment in segments)
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"A path segment is not valid Unicode: {error.reason}") from error


@lru_cache(1024)
def model_path(model: str, version: str | None, *tail: str) -> str:
    """`/v2/models/{model}[/versions/{version}]/{tail...}`, encoded. See `path_of`."""
    return path_of("v2", "models", model, *(("versions", version) if version is not None else ()), *tail)
