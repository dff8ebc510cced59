"""The kinds of value a configuration may hold: each type checks one value and can say what would be right.

Every rule here looks at a single value. Rules between values are in `crosscheck`.
"""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

if TYPE_CHECKING:
    from collections.abc import Callable

JsonScalar: TypeAlias = str | int | float | bool
"""A value that JSON writes without brackets, null excepted."""

WEEK_MS = 7 * 24 * 3600 * 1000
"""Longest duration accepted: beyond a week a duration is a slip of units."""

TOKEN_MIN_LENGTH = 16
TOKEN_MAX_LENGTH = 512

_HOST_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Expect:
    """Annotation that says in words what a value must be, for error messages and the reference tables."""

    text: str


@dataclass(frozen=True)
class Unit:
    """Annotation that names the unit of an integer."""

    name: str


def unlimitable(most: int) -> Callable[[object], int | None]:
    """Validator of a positive integer that can be switched off (S1).

    Args:
        most: largest finite value.

    Returns:
        A function from a raw value to the integer, or to None for 0, inf and "unlimited". It raises
        ValueError with the reason for bools, negatives, fractions, NaN and everything non-numeric.
    """

    def check(value: object) -> int | None:
        if value is None or value == "unlimited":
            return None
        if isinstance(value, float):
            _refuse_unless_infinite(value)
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("it is no number")  # noqa: TRY004  # pydantic collects ValueError, not TypeError
        if value < 0:
            raise ValueError("it is negative")
        if value > most:
            raise ValueError(f'it is larger than {most}; write 0 or "unlimited" to have no limit')
        return value or None

    return check


def _refuse_unless_infinite(value: float) -> None:
    if math.isnan(value):
        raise ValueError("NaN is no number")
    if value < 0:
        raise ValueError("it is negative")
    if math.isinf(value):
        return
    if value.is_integer():
        raise ValueError("write it without a decimal point")
    raise ValueError("it is a fraction")


def _token(value: str) -> str:
    if not value.isascii() or not all("!" <= char <= "~" for char in value):
        raise ValueError("it holds a space or a character that is not printable ASCII")
    if not TOKEN_MIN_LENGTH <= len(value) <= TOKEN_MAX_LENGTH:
        raise ValueError(f"it is {len(value)} characters long")
    return value


def _plain_name(value: str) -> str:
    if value in {".", ".."}:
        raise ValueError("it means a folder in a URL")
    return value


def _triton_name(value: str) -> str:
    if not value.isprintable() or any(char in "/\\ " for char in value):
        raise ValueError("it holds a slash, a space or an unprintable character")
    return _plain_name(value)


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,64}")
_OWN_HEADERS = frozenset(
    {
        "authorization", "connection", "content-length", "cookie", "expect", "host", "keep-alive",
        "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip


def normalise_host(host: str) -> str:
    """The one spelling of a host name or IP address, without the brackets of an IPv6 address.

    Raises:
        ValueError: it is neither, with the reason.
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return ipaddress.ip_address(bare).compressed
    except ValueError:
        pass
    labels = bare.lower().removesuffix(".").split(".")
    if len(bare) > 253 or not all(_HOST_LABEL.fullmatch(label) for label in labels):
        raise ValueError("the host is neither a name nor an IP address")
    if labels[-1].isdecimal():
        raise ValueError("the host looks like an IPv4 address but is none")
    return ".".join(labels)


def normalise_url(url: str) -> str:
    """The one spelling of a backend's base URL: lower-case host, no default port, no trailing slash.

    Raises:
        ValueError: not http or https, no host, or anything after the port, with the reason.
    """
    base, path, query = _split_url(url)
    if path not in {"", "/"}:
        raise ValueError("it has a path; the governor adds /v2/... itself")
    if query:
        raise ValueError("it has a query")
    return base


def normalise_metrics_url(url: str) -> str:
    """The one spelling of a metrics URL; without a path `/metrics` is meant.

    Raises:
        ValueError: not http or https, no host, or with a query, with the reason.
    """
    base, path, query = _split_url(url)
    if query:
        raise ValueError("it has a query")
    return base + ("/metrics" if path in {"", "/"} else path)


def normalise_origins(value: object) -> tuple[str, ...]:
    """The one spelling of the origins of web pages: scheme, host, and the port if it is no default one.

    Args:
        value: a list of them, or of "*" alone, which stands for every page's.

    Raises:
        ValueError: it is none, with the reason.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise ValueError("it is no list of texts")
    if "*" in value:
        if len(value) > 1:
            raise ValueError('"*" stands for all of them')
        return ("*",)
    return tuple(dict.fromkeys(_normalise_origin(each) for each in value))


def normalise_header_names(value: object) -> tuple[str, ...]:
    """The one spelling of names of header fields: lower case, each once.

    Raises:
        ValueError: it is no list of such names, or one belongs to the governor or to the connection, with the reason.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise ValueError("it is no list of texts")
    names = tuple(dict.fromkeys(each.lower() for each in value))
    for name in names:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a header field")
        if name in _OWN_HEADERS:
            raise ValueError(f"{name!r} belongs to the governor, or to the connection")
    return names


def _normalise_origin(origin: str) -> str:
    base, path, query = _split_url(origin)
    if path or query:
        raise ValueError(f"{origin!r} has more than scheme, host and port")
    return base


def _split_url(url: str) -> tuple[str, str, str]:
    """Scheme, host and port in one spelling; the path; the query."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("it holds a space or a character that is not printable ASCII")
    if "://" not in url:
        raise ValueError('it does not start with "http://" or "https://"')
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("its host or port is malformed") from None
    if parts.scheme not in {"http", "https"}:
        raise ValueError('it does not start with "http://" or "https://"')
    if "@" in parts.netloc:
        raise ValueError("it holds a user name or password, which the governor does not send")
    if not parts.hostname:
        raise ValueError("it has no host")
    if "#" in url:
        raise ValueError("it has a fragment")
    if port == 0:
        raise ValueError("port 0 is no port to connect to")
    host = normalise_host(parts.hostname)
    netloc = f"[{host}]" if ":" in host else host
    if port is not None and port != {"http": 80, "https": 443}[parts.scheme]:
        netloc += f":{port}"
    return f"{parts.scheme}://{netloc}", parts.path, parts.query


def _json_scalar(value: object) -> JsonScalar:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("it is no valid Unicode text") from None
        return value
    if isinstance(value, int):
        if value not in _INT64:
            raise ValueError("it does not fit 64 bits")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("JSON cannot write it")
        return value
    raise ValueError("it is no plain JSON value")


Port = Annotated[int, Field(ge=0, le=65_535)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Slots = Annotated[int, Field(ge=1, le=1024)]
Milliseconds = Annotated[int, Field(ge=1, le=WEEK_MS), Unit("milliseconds")]
Bytes = Annotated[int, Field(ge=1, le=2**40), Unit("bytes")]

CountOrUnlimited = Annotated[
    int | None,
    PlainValidator(unlimitable(1_000_000)),
    Expect('a positive integer; 0, inf or "unlimited" for no limit'),
]
MillisecondsOrUnlimited = Annotated[
    int | None,
    PlainValidator(unlimitable(WEEK_MS)),
    Expect('a positive integer of milliseconds, at most one week; 0, inf or "unlimited" for none'),
]

Host = Annotated[
    str, AfterValidator(normalise_host), Expect('an IP address or a host name, such as "127.0.0.1" or "::"')
]
Origins = Annotated[
    tuple[str, ...],
    BeforeValidator(normalise_origins),
    Expect('a list such as ["https://chat.example"], or ["*"] for every page, which needs `tokens.api`'),
]
FilePath = Annotated[
    str,
    Field(min_length=2, max_length=4096, pattern=r"^/[^\x00]+$"),
    Expect('the absolute path of a file, such as "/var/log/governor/audit.jsonl"'),
]
HeaderNames = Annotated[
    tuple[str, ...],
    BeforeValidator(normalise_header_names),
    Expect('a list such as ["x-tenant"]; none that belongs to the governor or to the connection'),
]
BackendUrl = Annotated[
    str,
    AfterValidator(normalise_url),
    Expect('scheme, host and port only, such as "http://127.0.0.1:8000"'),
]
MetricsUrl = Annotated[
    str, AfterValidator(normalise_metrics_url), Expect('a URL such as "http://127.0.0.1:8002/metrics"')
]
BackendName = Annotated[
    str,
    Field(pattern=r"^[a-z0-9._-]{1,64}$"),
    AfterValidator(_plain_name),
    Expect('1 to 64 of the characters a-z 0-9 . _ - (but not "." or "..")'),
]
PublicName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9._-]{1,64}$"),
    AfterValidator(_plain_name),
    Expect('1 to 64 of the characters A-Z a-z 0-9 . _ - (but not "." or "..")'),
]
BackendReference = Annotated[str, Field(min_length=1), Expect("the name of one of the [[backends]]")]
TritonName = Annotated[
    str,
    Field(min_length=1, max_length=255),
    AfterValidator(_triton_name),
    Expect("the model's name on the Triton server, without slashes or spaces"),
]
TritonVersion = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,18}$"), Expect('a version number in quotes, such as "1"')]
FieldName = Annotated[str, Field(min_length=1, max_length=255), Expect("a name of 1 to 255 characters")]
Token = Annotated[
    str,
    AfterValidator(_token),
    Expect(f"{TOKEN_MIN_LENGTH} to {TOKEN_MAX_LENGTH} printable ASCII characters without spaces"),
]
ParameterValue = Annotated[
    JsonScalar, PlainValidator(_json_scalar), Expect("text, a truth value or a finite number of 64 bits")
]
