"""How many requests were refused, and why: one number for each stable code of a refusal, one log event for each.

A refusal is an answer that says nothing about the request's work: no room, no time, no right. Its codes are known
before the first request, so the label set of the metric is bounded by the code, whatever callers send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from governor.errors import BackendUnavailableError, BodyTooLargeError, PromptQueueFullError, RefusedError

from .errors import ForeignOriginError, InvalidHostError, PromptTooLargeError, UnauthorizedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypercorn.typing import HTTPScope

    from governor.errors import GovernorError

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_FURTHER: Final[tuple[type[GovernorError], ...]] = (
    UnauthorizedError,
    InvalidHostError,
    ForeignOriginError,
    BodyTooLargeError,
    PromptTooLargeError,
    BackendUnavailableError,
)
_PATH_MAX: Final = 200


def refusal_codes() -> set[str]:
    """The code of every refusal there is."""
    return {kind.code for kind in (*_below(RefusedError), *_FURTHER)}


def _below(base: type[GovernorError]) -> Iterator[type[GovernorError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _below(kind)


class Refused:
    """Counts the refusals of one application.

    Attributes:
        counts: how many there were, by code.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(sorted(refusal_codes()), 0)

    def note(self, error: GovernorError, scope: HTTPScope) -> None:
        """An error is the answer to a request; one that is no refusal is not counted."""
        if error.code not in self.counts:
            return
        self.counts[error.code] += 1
        if isinstance(error, PromptQueueFullError):
            return  # the session tells it, as it also refuses prompts that come another way
        client = scope["client"]
        _log.warning(
            "request_refused",
            code=error.code,
            method=scope["method"],
            path=scope["path"][:_PATH_MAX],
            client=client[0] if client is not None else None,
        )
