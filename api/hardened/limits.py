"""What clients may use of one server, and the errors of this package."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

from hypercorn.config import Config

from governor.errors import GovernorError

if TYPE_CHECKING:
    from hypercorn.trio.worker_context import WorkerContext


class UnsupportedHypercornError(GovernorError):
    """The installed hypercorn is not the version whose internals are mended here."""

    code = "hypercorn_version_unsupported"


class ClientGoneError(OSError):
    """Raised to the application by `send` once the client is gone (ASGI 2.4 asks for an OSError)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one client, or all together, may use; every number is positive, times are in seconds.

    Attributes:
        max_connections: open connections of one server.
        send_timeout_s: the longest wait for a client to take the next 64 KiB of an answer.
        head_timeout_s: from the first byte of a request's head to its last.
        body_timeout_s: waiting for a request's body; each received byte gives back 1 / body_bytes_per_s of it.
        body_bytes_per_s: the slowest lasting rate at which a body may come.
        linger_s: how long an early answer (413, 503) to a client that still sends is kept from being reset.
    """

    max_connections: int = 512
    send_timeout_s: float = 10.0
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    body_bytes_per_s: int = 16 * 1024
    linger_s: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isfinite(value) and value > 0):
                raise ValueError(f"{field.name} must be positive and finite, not {value!r}")


class LimitedConfig(Config):
    """A hypercorn configuration that brings its own limits; plain ones use those given to `install`."""

    limits = ConnectionLimits()


class OpenConnections:
    """Fault: the stock worker accepts without limit, so one client can take all memory and file descriptors.

    One counter per server. A connection beyond the limit is told 503 and closed without being read; when too many
    are being told at once, further ones are closed without a word.
    """

    _of_server: ClassVar[WeakKeyDictionary[WorkerContext, OpenConnections]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self.served = 0
        self.turned_away = 0

    @classmethod
    def of(cls, server: WorkerContext) -> OpenConnections:
        """The counter of this server."""
        return cls._of_server.setdefault(server, cls())

    @classmethod
    def total(cls) -> int:
        """Open connections of all servers of this process."""
        return sum(connections.served for connections in cls._of_server.values())
