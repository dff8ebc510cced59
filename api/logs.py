"""Logging: one event a line to standard error, JSON unless a person is watching."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from typing import TextIO


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
        else [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
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
