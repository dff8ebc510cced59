"""The pure parts of the client: limits, retries, cursors, events, and who gets which event."""

from __future__ import annotations

import math
import threading
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from governor.client import (
    AgentMessageChunk,
    DaemonEvent,
    DaemonPendingPromptLimitError,
    DaemonProtocolError,
    DaemonSession,
    RetryPolicy,
    StateResyncRequired,
    TurnComplete,
    TurnError,
    TurnStatus,
    UnknownEvent,
)
from governor.client.cursor import Cursor
from governor.client.events import decode_event, event_of
from governor.client.http import Http, checked_url
from governor.client.reservations import Reservations, normalize_pending_prompt_limit
from governor.client.retry import parse_retry_after
from governor.client.shapes import Capabilities
from governor.client.waiters import Waiter, Waiters
from tests.client import fake

# Limits and reservations


@pytest.mark.parametrize(("value", "limit"), [(None, None), (0, None), (math.inf, None), (1, 1), (5, 5)])
def test_limits_that_may_be(value: float | None, limit: int | None) -> None:
    assert normalize_pending_prompt_limit(value) == limit


@pytest.mark.parametrize("value", [-1, 1.5, 5.0, math.nan, -math.inf])
def test_limits_that_may_not_be(value: float) -> None:
    with pytest.raises(ValueError, match="whole number"):
        normalize_pending_prompt_limit(value)


@pytest.mark.parametrize("value", [True, False, "5", Fraction(5), [5]])
def test_limits_that_are_no_numbers(value: Any) -> None:
    with pytest.raises(TypeError, match="whole number"):
        normalize_pending_prompt_limit(value)


def test_a_reservation_is_released_once() -> None:
    """C2."""
    reservations = Reservations()
    first, second = reservations.reserve("s", 2), reservations.reserve("s", 2)
    with pytest.raises(DaemonPendingPromptLimitError) as caught:
        reservations.reserve("s", 2)
    assert (caught.value.limit, caught.value.pending_count, caught.value.sent) == (2, 2, False)
    for _ in range(3):
        first.release()
    assert reservations.pending("s") == 1
    with second:
        second.release()
    assert reservations.total == 0
    with reservations.reserve("s", None):
        assert reservations.pending("s") == 1
    assert reservations.pending("s") == 0


def test_threads_never_take_more_places_than_there_are() -> None:
    reservations, most, start = Reservations(), [0], threading.Barrier(8)

    def hammer() -> None:
        start.wait()
        for _ in range(2000):
            try:
                with reservations.reserve("s", 3):
                    most[0] = max(most[0], reservations.pending("s"))
            except DaemonPendingPromptLimitError:
                pass

    threads = [threading.Thread(target=hammer) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] <= 3
    assert reservations.total == 0


# Retries


def test_pauses_grow_are_scattered_and_come_to_an_end() -> None:
    late = RetryPolicy(attempts=5, first_pause_s=1, max_pause_s=3, chance=lambda: 0.0)
    assert [late.pause_s(failures) for failures in range(1, 7)] == [1, 2, 3, 3, None, None]
    early = RetryPolicy(attempts=5, first_pause_s=1, max_pause_s=3, chance=lambda: 1.0)
    assert [early.pause_s(failures) for failures in range(1, 5)] == [0.75, 1.5, 2.25, 2.25]
    assert RetryPolicy(attempts=10**9).pause_s(10**6) is not None


def test_what_the_server_asks_for_is_never_cut_short() -> None:
    for chance in (0.0, 0.5, 1.0):
        policy = RetryPolicy(max_retry_after_s=30, chance=lambda chance=chance: chance)  # type: ignore[misc]
        pause = policy.pause_s(1, 5)
        assert pause is not None
        assert 5 <= pause <= 6.25
        assert policy.pause_s(1, 31) is None
    assert RetryPolicy(attempts=1).pause_s(1, 5) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("5", 5.0),
        (" 0 ", 0.0),
        ("-1", None),
        ("soon", None),
        ("1e9", None),
        ("Thu, 01 Jan 2026 00:00:10 GMT", 10.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, now=datetime(2026, 1, 1, tzinfo=UTC)) == seconds


# Cursors


def event(event_id: int | None, event_type: str = "x", **data: Any) -> DaemonEvent:
    """An event as it is read from the wire."""
    text = fake.frame(event_id, event_type, **data).decode().split("data: ", 1)[1].strip()
    decoded = decode_event(text)
    assert decoded is not None
    return decoded


def test_a_cursor_moves_on_and_never_back() -> None:
    cursor = Cursor()
    assert cursor.headers() == {}
    assert cursor.admits(event(None))
    assert cursor.headers() == {}
    assert [cursor.admits(event(number)) for number in (5, 5, 4, 6)] == [True, False, False, True]
    cursor.connected("e1")
    assert cursor.headers() == {"Last-Event-ID": "6", "X-Qwen-Event-Epoch": "e1"}
    cursor.connected("e1")
    cursor.connected(None)
    assert cursor.last_id == 6


def test_in_another_life_of_the_log_everything_is_new() -> None:
    cursor = Cursor(6, "e1")
    cursor.connected("e2")
    assert cursor.headers() == {"Last-Event-ID": "0", "X-Qwen-Event-Epoch": "e2"}
    assert cursor.admits(event(1))
    cursor = Cursor(6, "e1")
    assert cursor.admits(event(None, "state_resync_required", reason="epoch_reset"))
    assert cursor.admits(event(1))


# Events


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", "null", '{"v": 1}', '{"v": 2, "type": "x"}', '{"type": "x"}', '{"v": true, "type": "x"}',
     '{"v": 1, "type": 3}', '{"v": 1, "type": "x", "id": 0}', '{"v": 1, "type": "x", "id": "2"}',
     '{"v": 1, "type": "x", "id": 1.5}', '{"v": 1, "type": "x", "id": null}', '{"v": 1, "type": "x", "id": true}',
     '{"v": 1, "type": "x", "id": 9007199254740992}', "[" * 100_000],
)  # fmt: skip
def test_what_is_no_event(text: str) -> None:
    assert decode_event(text) is None


def test_every_type_of_the_documentation_has_a_class() -> None:
    from governor.client.events import _KINDS

    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    table = page.split("| Type |")[1].split("\n\n")[0]
    notices = ["replay_complete", "state_resync_required", "slow_client_warning", "client_evicted", "session_snapshot"]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    documented = {name for cell in cells for name in cell.split("`")[1::2]}
    assert set(_KINDS) == {*documented, *notices, "stream_error"}


def test_an_unknown_event_keeps_all_that_it_says() -> None:
    told = event_of({"v": 1, "id": 3, "type": "new", "promptId": "p", "data": {"a": [1]}, "originatorClientId": "c",
                     "_meta": {"serverTimestamp": 5}, "more": 1})  # fmt: skip
    assert told == UnknownEvent(
        type="new", id=3, prompt_id="p", data={"a": [1]}, originator_client_id="c", server_timestamp_ms=5
    )


def test_known_events_with_nothing_in_them_are_whole_all_the_same() -> None:
    from governor.client.events import _KINDS

    for kind in _KINDS:
        told = event_of({"v": 1, "type": kind})
        assert told is not None
        assert not isinstance(told, UnknownEvent)
    complete, failed = event_of({"v": 1, "type": "turn_complete"}), event_of({"v": 1, "type": "turn_error"})
    assert isinstance(complete, TurnComplete)
    assert complete.stop_reason == "end_turn"
    assert isinstance(failed, TurnError)
    assert (failed.code, failed.message) == ("turn_error", "Prompt failed")


# Who gets which event


def said(event_id: int, prompt_id: str, text: str) -> DaemonEvent:
    return event(event_id, "session_update", promptId=prompt_id, update={"sessionUpdate": "agent_message_chunk",
                                                                          "content": {"text": text}})  # fmt: skip


def taken(waiter: Waiter) -> list[int | None]:
    found = []
    while (told := waiter.take()) is not None:
        found.append(told.id)
    return found


def test_events_before_the_202_are_kept_while_it_is_on_its_way() -> None:
    waiters = Waiters(max_answer_bytes=10_000)
    waiters.feed(said(1, "a", "nobody asked"))
    waiters.begin_post()
    for told in (said(2, "a", "x"), said(3, "b", "y"), event(4, "turn_complete", promptId="a")):
        waiters.feed(told)
    waiter, whole = waiters.accept("a", read_from_its_beginning=True)
    assert whole
    assert waiter.settled
    assert taken(waiter) == [2, 4]
    assert waiter.result().text == "x"
    waiters.end_post()
    assert waiters.idle
    waiters.begin_post()
    other, _ = waiters.accept("b", read_from_its_beginning=True)
    assert taken(other) == []


def test_too_much_before_the_202_is_not_kept_and_said() -> None:
    waiters = Waiters(max_answer_bytes=10_000, early_bytes_max=1000)
    waiters.begin_post()
    for number in range(1, 6):
        waiters.feed(said(number, "b", "x" * 100))
    waiter, whole = waiters.accept("b", read_from_its_beginning=True)
    assert not whole
    assert taken(waiter) == []
    # Read again from where the prompt began, nothing is told twice.
    for number in (1, 2, 2, 1, 3):
        waiters.feed(said(number, "b", str(number)))
    assert taken(waiter) == [1, 2, 3]
    waiters.end_post()
    waiters.begin_post()
    assert waiters.accept("c", read_from_its_beginning=True)[1]


def test_events_of_a_prompt_that_began_before_the_stream_are_not_half_told() -> None:
    waiters = Waiters(max_answer_bytes=10_000)
    waiters.begin_post()
    for told in (said(9, "a", "end"), event(10, "turn_complete", promptId="a")):
        waiters.feed(told)
    waiter, whole = waiters.accept("a", read_from_its_beginning=False)
    assert not whole
    assert not waiter.settled
    for told in (said(8, "a", "begin "), said(9, "a", "end"), event(10, "turn_complete", promptId="a")):
        waiters.feed(told)
    assert waiter.result().text == "begin end"


def test_what_is_read_again_is_not_mixed_with_what_was_kept() -> None:
    waiters = Waiters(max_answer_bytes=10_000)
    waiters.begin_post()
    waiters.feed(said(9, "a", "end"))
    waiters.begin_again()
    waiters.feed(said(8, "a", "begin "))
    waiters.feed(said(9, "a", "end"))
    waiter, whole = waiters.accept("a", read_from_its_beginning=True)
    assert whole
    assert taken(waiter) == [8, 9]


def test_an_answer_that_is_too_large_is_an_error() -> None:
    waiter = Waiter("p", max_bytes=1000)
    waiter.push(said(1, "p", "x" * 2000))
    assert waiter.settled
    with pytest.raises(DaemonProtocolError, match="max_answer_bytes"):
        waiter.result()


def test_after_the_terminal_nothing_is_taken_in() -> None:
    settled: list[str] = []
    waiter = Waiter("p", max_bytes=10_000)
    waiter.on_settled = lambda: settled.append("now")
    waiter.push(event(1, "turn_complete", promptId="p"))
    waiter.push(event(2, "turn_error", promptId="p"))
    waiter.push(said(3, "p", "late"))
    assert settled == ["now"]
    assert taken(waiter) == [1]
    assert waiter.result().stop_reason == "end_turn"


@pytest.mark.parametrize(("state", "stop_reason"), [("completed", "end_turn"), ("cancelled", "cancelled")])
def test_a_turn_whose_events_are_lost_is_told_by_its_status(state: str, stop_reason: str) -> None:
    told: dict[str, Any] = {
        "sessionId": "s",
        "promptId": "p",
        "state": state,
        "resultText": "begin",
        "resultTruncated": True,
    }
    waiter = Waiter("p", max_bytes=10_000)
    waiter.push(said(1, "p", "lost"))
    waiter.catch_up(TurnStatus.decode({**told, "state": "running"}, "x"))
    assert not waiter.settled
    waiter.catch_up(TurnStatus.decode(dict(told), "x"))
    result = waiter.result()
    assert (result.stop_reason, result.text, result.complete) == (stop_reason, "begin", False)


# Requests and shapes


@pytest.mark.parametrize(
    "url", ["", "localhost", "ftp://x", "http://", "http://x?y=1", "http://x#y", "http://u:p@x", "http://x:port"]
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL"):
        checked_url(url)
    if "u:p" in url:
        with pytest.raises(ValueError, match="give a token") as caught:
            checked_url(url)
        assert "u:p" not in str(caught.value)


def test_slashes_at_the_end_of_a_url_are_removed() -> None:
    assert checked_url("http://127.0.0.1:4170//") == "http://127.0.0.1:4170"


@pytest.mark.parametrize("token", ["a b", "a\nb", "ä", "\x00"])
def test_a_token_that_can_be_none_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII") as caught:
        Http("http://x", token=token, transport=None, request_timeout_s=1, retry=RetryPolicy())
    assert token not in str(caught.value)


def test_answers_without_what_they_must_have() -> None:
    answers: list[Any] = [None, [], {}, {"sessionId": ""}, {"sessionId": 3}]
    for value in answers:
        with pytest.raises(DaemonProtocolError):
            DaemonSession.decode(value, "POST /session")
    told = Capabilities.decode({"features": "x", "limits": [], "modelServices": [{"id": "m"}, {}, 3]}, "x")
    assert (told.features, told.models, told.max_pending_prompts_per_session) == (frozenset(), ("m",), 5)


def test_a_resync_says_where_it_stands() -> None:
    told = event(None, "state_resync_required", reason="ring_evicted", lastDeliveredId=3, earliestAvailableId=9)
    assert isinstance(told, StateResyncRequired)
    assert (told.last_delivered_id, told.earliest_available_id) == (3, 9)
    assert isinstance(said(1, "p", "x"), AgentMessageChunk)
