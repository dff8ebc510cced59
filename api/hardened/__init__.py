"""Hypercorn 0.18.0's trio worker, mended so that no input of a client can end or hold up the process (T2, D12).

Each class in here is one mend, and its docstring names the fault of the stock worker that it removes; ADR-0004 says
why hypercorn is mended and not replaced. `install()` puts them in force for every server that the trio worker starts
afterwards, by one assignment: the worker then makes a `HardenedConnection` where it made a `TCPServer`.

What a client meets:

- HTTP/1.0 and 1.1 only. `Upgrade: h2c` is ignored and the request answered over HTTP/1.1, as RFC 9110 7.8 allows;
  HTTP/2 by prior knowledge (505), a websocket upgrade and CONNECT (400) are refused.
- Every refusal carries a JSON `error` and `code`, and ends the connection.
- A connection beyond `max_connections` gets 503 and is closed.
- Closing the sending side counts as leaving: the request is cancelled, and answered only if the answer was quicker.
  A half-close and a close look alike until something is sent, and to notice a departed client early matters more here
  than to serve half-closers.

Modules: `connection` (the whole, from accept to close), `exchange` (the application's `receive` and `send`), `request`
and `response` (HTTP, without I/O), `watch` (deadlines, departures, the shutdown), `pieces` (sending, a body's pace),
`limits` and `refusals` (numbers and words).
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from hypercorn.config import Config
from hypercorn.trio import run as trio_worker

from .connection import HardenedConnection
from .exchange import ReadInto, body_into_of, departure_of
from .limits import ClientGoneError, ConnectionLimits, LimitedConfig, UnsupportedHypercornError

__all__ = [
    "SUPPORTED_HYPERCORN",
    "ClientGoneError",
    "ConnectionLimits",
    "LimitedConfig",
    "ReadInto",
    "UnsupportedHypercornError",
    "body_into_of",
    "departure_of",
    "install",
]

SUPPORTED_HYPERCORN: Final = "0.18.0"


def install(limits: ConnectionLimits | None = None) -> None:
    """Mends every server that hypercorn's trio worker starts after this call; calling it again is harmless.

    It also works from within the module that `hypercorn -k trio MODULE:APP` loads, as the worker loads it first.

    Args:
        limits: for servers whose configuration brings none (`LimitedConfig`); None leaves them as they are.

    Raises:
        UnsupportedHypercornError: hypercorn is not the version that these mends were written for and tested with.
    """
    installed = version("hypercorn")
    if installed != SUPPORTED_HYPERCORN:
        raise UnsupportedHypercornError(
            f"hypercorn {installed} is installed, but this server's safety rests on internals of "
            f"{SUPPORTED_HYPERCORN}: install hypercorn=={SUPPORTED_HYPERCORN}"
        )
    if limits is not None:
        HardenedConnection.default_limits = limits
    trio_worker.TCPServer = HardenedConnection  # type: ignore[attr-defined,assignment]  # the name that the worker looks up
    Config.alpn_protocols = ["http/1.1"]
