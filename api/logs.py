"""Logging: one event a line to standard error, JSON unless a person is watching, and never more than can be read.

What a client can cause, it can cause a thousand times a second. So each kind of event has a budget of its own: a flood
of one kind is cut, told as one `log_suppressed` event, and hides nothing of another kind.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

EVENTS_PER_S: Final = 20.0
"""Of one kind, lasting."""
BURST: Final = 200
"""Of one kind, at once."""
KINDS_MAX: Final = 512
"""Kinds that are remembered; beyond them the one that was longest not seen begins anew."""
TELL_AFTER_S: Final = 10.0
"""What was not written is told so long after the first of it, with the next event of any kind."""


@dataclass(slots=True)
class _Budget:
    """What one kind of event may still write."""

    tokens: float
    at_s: float


class RateBound(logging.Filter):
    """Lets each kind of event pass so often. A kind is an event's name, or the name of a foreign logger.

    It is used twice: as the first processor of structlog, so that an event that is not written costs next to nothing,
    and as a filter of the handler for what foreign code logs.

    Args:
        clock: monotonic seconds.

    Attributes:
        suppressed: events that were not written.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.suppressed = 0
        self._clock = clock
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()
        self._untold: Counter[str] = Counter()
        self._tell_at_s = 0.0

    def __call__(
        self, _logger: structlog.typing.WrappedLogger, _method: str, event_dict: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Passes structlog's event on. Raises DropEvent for one too many."""
        if not self._take(str(event_dict["event"])):
            raise structlog.DropEvent
        return event_dict

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a record of the standard library; structlog's have passed already."""
        return isinstance(record.msg, dict) or self._take(record.name)

    def _take(self, kind: str) -> bool:
        now_s = self._clock()
        if self._untold and now_s >= self._tell_at_s:
            self._tell()
        budget = self._budgets.get(kind)
        if budget is None:
            budget = self._budgets[kind] = _Budget(BURST, now_s)
            if len(self._budgets) > KINDS_MAX:
                self._budgets.popitem(last=False)
        self._budgets.move_to_end(kind)
        budget.tokens = min(BURST, budget.tokens + (now_s - budget.at_s) * EVENTS_PER_S)
        budget.at_s = now_s
        if budget.tokens >= 1:
            budget.tokens -= 1
            return True
        if not self._untold:
            self._tell_at_s = now_s + TELL_AFTER_S
        self._untold[kind] += 1
        self.suppressed += 1
        return False

    def _tell(self) -> None:
        untold, self._untold = self._untold, Counter()
        for kind, count in untold.items():
            _log.warning("log_suppressed", kind=kind, count=count)


_bound = RateBound()


def suppressed() -> int:
    """How many events this process has not written because too many of their kind came."""
    return _bound.suppressed


def _escape(
    _logger: structlog.typing.WrappedLogger, _method: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """What a client sent may hold sequences that a terminal obeys; JSON escapes them by itself."""
    for key, value in event_dict.items():
        if isinstance(value, str) and not value.isprintable() and key != "exception":
            event_dict[key] = repr(value)
    return event_dict


def configure_logging(stream: TextIO | None = None, *, json_lines: bool | None = None) -> None:
    """Sends what this process logs, by structlog or by the standard library, to one place in one form.

    Args:
        stream: where to; standard error by default.
        json_lines: JSON or text for people; decided by whether `stream` is a terminal if None.
    """
    stream = stream if stream is not None else sys.stderr
    json_lines = json_lines if json_lines is not None else not stream.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if json_lines
        # Plain tracebacks: the pretty ones show local variables, and those may hold a prompt's text.
        else [_escape, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            _bound,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.addFilter(_bound)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for noisy in (
        "httpx",
        "httpcore",
        "hypercorn.error",
    ):  # what they tell in good times, the governor tells better
        logging.getLogger(noisy).setLevel(logging.WARNING)
