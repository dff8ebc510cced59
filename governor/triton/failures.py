"""Every exception that the parser and the sockets can raise, in one table.

Whose fault it is depends on the exception; what it means for the call depends only on what was delivered (E3).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import httptools
import trio

from governor.errors import (
    BackendProtocolError,
    BackendUnavailableError,
    ConnectionLostError,
)
from governor.triton.parser import NotHttpError
from governor.triton.transport import StalledError

if TYPE_CHECKING:
    from governor.errors import GovernorError


_MAY_EXECUTE: Final = "; the call may still execute"


class Fault(enum.Enum):
    """Where an exchange broke."""

    WIRE = "wire"
    """The connection failed, was closed or stalled."""
    PROTOCOL = "protocol"
    """The peer sent something that is not HTTP."""


FAULTS: tuple[tuple[type[Exception], Fault], ...] = (
    (NotHttpError, Fault.PROTOCOL),
    (httptools.HttpParserError, Fault.PROTOCOL),
    (httptools.HttpParserUpgrade, Fault.PROTOCOL),
    (StalledError, Fault.WIRE),
    (trio.BrokenResourceError, Fault.WIRE),
    (trio.ClosedResourceError, Fault.WIRE),
    (OSError, Fault.WIRE),
    (UnicodeError, Fault.WIRE),  # a host name that cannot be looked up
)


def fault_of(error: BaseException) -> Fault | None:
    """Where `error` places the fault; None for what is no failure of an exchange (a cancellation, a bug)."""
    return next((fault for kind, fault in FAULTS if isinstance(error, kind)), None)


def failure(error: BaseException, *, origin: str, delivered: bool, ended: bool) -> GovernorError | None:
    """The governor's error for a broken exchange.

    Args:
        error: what was raised.
        origin: the backend, for the message.
        delivered: the last byte of the request had been handed to the kernel (E3).
        ended: the peer had closed its side, so a truncated answer is a lost connection, not bad HTTP.

    Returns:
        None when `error` has no place in the table: it must be raised as it is.
    """
    fault = fault_of(error)
    if fault is None:
        return None
    reason = reason_of(error)
    if not delivered:
        return BackendUnavailableError(f"{origin} did not take the request: {reason}")
    if fault is Fault.WIRE or ended:
        return ConnectionLostError(
            f"The connection to {origin} broke before the answer was complete: {reason}{_MAY_EXECUTE}"
        )
    return BackendProtocolError(f"{origin} answered something that is not HTTP: {reason}{_MAY_EXECUTE}")


def of_question(message: str) -> str:
    """A failure's message where a question was asked, of which nothing executes."""
    return message.replace(_MAY_EXECUTE, "")


def reason_of(error: BaseException) -> str:
    """One line on what happened, without class names where the system has a sentence of its own."""
    if isinstance(error, OSError) and isinstance(error.__cause__, BaseExceptionGroup):
        # One attempt per address of the host: name each different reason once.
        return "; ".join(sorted({reason_of(each) for each in error.__cause__.exceptions}))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, trio.BrokenResourceError) and error.__cause__ is not None:
        return str(error.__cause__)
    if isinstance(error, OSError) and isinstance(error.__cause__, OSError):
        return reason_of(error.__cause__)
    return str(error) or type(error).__name__
