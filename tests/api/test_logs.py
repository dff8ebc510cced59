"""Logs: one JSON object a line, from structlog and the standard library alike."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest
import structlog

from api.logs import BURST, EVENTS_PER_S, KINDS_MAX, TELL_AFTER_S, RateBound, configure_logging, suppressed

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


def test_what_a_client_sent_moves_no_cursor_of_a_terminal() -> None:
    stream = io.StringIO()
    configure_logging(stream, json_lines=False)
    structlog.get_logger().warning("refused", path="/\x1b[2J\r\nforged=line")
    assert "\x1b[2J" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def passes(bound: RateBound, kind: str) -> bool:
    try:
        bound(None, "info", {"event": kind})
    except structlog.DropEvent:
        return False
    return True


def test_a_flood_of_one_kind_is_cut_and_hides_no_other() -> None:
    clock = Clock()
    bound = RateBound(clock)
    assert [passes(bound, "flood") for _ in range(10_000)].count(True) == BURST
    assert bound.suppressed == 10_000 - BURST
    assert passes(bound, "claim_quarantined")
    clock.now_s += 1
    assert [passes(bound, "flood") for _ in range(10_000)].count(True) == EVENTS_PER_S


def test_what_was_cut_is_told_in_one_line_a_while_later() -> None:
    clock = Clock()
    bound = RateBound(clock)
    with structlog.testing.capture_logs() as logs:
        for _ in range(BURST + 5):
            passes(bound, "flood")
        clock.now_s += TELL_AFTER_S - 0.1
        assert passes(bound, "other")
        assert logs == []
        clock.now_s += 0.2
        assert passes(bound, "other")
        assert passes(bound, "other")
    assert logs == [{"event": "log_suppressed", "kind": "flood", "count": 5, "log_level": "warning"}]


def test_foreign_loggers_are_bounded_by_their_name() -> None:
    """Their messages can hold what a client sent, so they are no kinds."""
    bound = RateBound(Clock())
    records = [logging.LogRecord("hypercorn.error", 30, "", 1, f"failed {n}", (), None) for n in range(1000)]
    assert sum(bool(bound.filter(record)) for record in records) == BURST
    assert bound.filter(logging.LogRecord("other", 30, "", 1, "x", (), None))


def test_kinds_are_forgotten_when_there_are_too_many() -> None:
    bound = RateBound(Clock())
    for number in range(KINDS_MAX * 2):
        passes(bound, f"kind {number}")
    assert len(bound._budgets) == KINDS_MAX


def test_the_bound_holds_where_logging_is_configured() -> None:
    stream = io.StringIO()
    configure_logging(stream)
    before = suppressed()
    for number in range(BURST * 2):
        structlog.get_logger("a").info("flood of structlog", number=number)
        logging.getLogger("flood.of.others").error("failed: %s", number)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len([line for line in lines if line["event"] == "flood of structlog"]) < BURST * 1.5
    assert len([line for line in lines if line["event"].startswith("failed: ")]) < BURST * 1.5
    assert suppressed() - before > BURST / 2
