"""What is shown of a session's past: everything that is kept, once, and the pieces of an answer as one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from governor.core.events import SubscriberLimits
from governor.journal import SessionLog, compact, replay_of

if TYPE_CHECKING:
    from governor.errors import JsonValue


def log_of(events: list[tuple[str, str | None, str]], *, ring_size: int = 1000) -> SessionLog:
    """Events by their kind, prompt and text."""
    log = SessionLog("epoch", ring_size=ring_size, max_subscribers=1)
    for kind, prompt, text in events:
        update: JsonValue = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
        data: dict[str, JsonValue] = {"update": update} if kind.endswith("_chunk") else {"promptId": prompt}
        name = "session_update" if kind.endswith("_chunk") else kind
        log.publish(name, data, timestamp_ms=len(text), prompt_id=prompt)
    return log


KIND = st.sampled_from(
    ["agent_message_chunk", "agent_message_chunk", "user_message_chunk", "turn_complete", "turn_error", "other"]
)
EVENTS = st.lists(st.tuples(KIND, st.sampled_from([None, "p", "q"]), st.text(max_size=5)), max_size=40)


def plain(events: list[Any]) -> list[tuple[str, str | None, str]]:
    """The events without what compaction may change: the pieces of an answer are cut into characters."""
    found = []
    for event in events:
        prompt = event.get("promptId")
        if event["type"] != "session_update":
            found.append((event["type"], prompt, ""))
            continue
        update = event["data"]["update"]
        if update["sessionUpdate"] == "agent_message_chunk":
            found += [("said", prompt, letter) for letter in update["content"]["text"]]
        else:
            found.append((update["sessionUpdate"], prompt, update["content"]["text"]))
    return found


@given(EVENTS)
async def test_a_replay_is_everything_that_was_told_in_order(events: list[tuple[str, str | None, str]]) -> None:
    log = log_of(events)
    kept = log.keep()
    replay = await replay_of(kept)
    shown: list[Any] = [*replay.compacted, *replay.live]
    told = [(kind, prompt, text if kind.endswith("_chunk") else "") for kind, prompt, text in events]
    expected: list[tuple[str, str | None, str]] = []
    for kind, prompt, text in told:
        if kind == "agent_message_chunk":
            expected += [("said", prompt, letter) for letter in text]
        else:
            expected.append((kind, prompt, text))
    assert plain(shown) == expected
    ids = [event["id"] for event in shown]
    assert ids == sorted(set(ids))
    assert (ids[-1] if ids else 0) == kept.last_id == len(events)
    assert kept.whole
    assert not [event for event in replay.live if event["type"] in {"turn_complete", "turn_error"}]


def test_pieces_of_different_turns_are_not_joined() -> None:
    chunk = "agent_message_chunk"
    log = log_of([(chunk, "p", "a"), (chunk, "q", "b"), (chunk, "q", "c")])
    events = [_envelope(frame.data) for frame in log.keep().frames]
    assert plain(compact(events)) == [("said", "p", "a"), ("said", "q", "b"), ("said", "q", "c")]
    assert [event["id"] for event in compact(events)] == [1, 3]


def _envelope(frame: bytes) -> Any:
    return json.loads(frame.split(b"data: ", 1)[1])


def test_a_log_that_has_lost_its_beginning_says_so_and_its_readers_are_not_touched() -> None:
    log = log_of([("other", None, "")] * 5, ring_size=3)
    subscription = log.subscribe(lambda: None, limits=SubscriberLimits(), after_id=0)
    kept = log.keep()
    assert [frame.id for frame in kept.frames] == [3, 4, 5]
    assert not kept.whole
    assert log.subscriber_count == 1
    log.unsubscribe(subscription)
