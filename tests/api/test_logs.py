"""Logs: one JSON object a line, from structlog and the standard library alike."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest
import structlog

from api.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Logging is process-wide: what a test sets is taken back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_every_line_is_one_json_object_whoever_logs() -> None:
    stream = io.StringIO()
    configure_logging(stream)
    structlog.get_logger("a").warning("happened", claim=1, odd={"x": "ü\n"})
    logging.getLogger("b").error("failed: %s", "reason")
    try:
        raise ValueError("inside")
    except ValueError:
        structlog.get_logger("c").exception("broke")
    structlog.get_logger("d").debug("not shown")
    first, second, third = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["claim"], first["level"], first["logger"]) == ("happened", 1, "warning", "a")
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"]) == ("failed: reason", "error")
    assert "ValueError: inside" in third["exception"]


def test_a_person_gets_text() -> None:
    stream = io.StringIO()
    configure_logging(stream, json_lines=False)
    structlog.get_logger().warning("happened", claim=1)
    assert "happened" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_no_local_variable_is_shown_to_a_person_either() -> None:
    """A traceback with locals would show prompts."""
    stream = io.StringIO()
    configure_logging(stream, json_lines=False)
    secret = "the prompt's text"
    try:
        raise ValueError(len(secret))
    except ValueError:
        structlog.get_logger().exception("broke")
    assert "ValueError: 17" in stream.getvalue()
    assert secret not in stream.getvalue()


def test_configuring_twice_writes_once() -> None:
    stream = io.StringIO()
    configure_logging(stream)
    configure_logging(stream)
    logging.getLogger("b").error("once")
    assert len(stream.getvalue().splitlines()) == 1
