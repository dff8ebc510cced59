"""A session's event log, and what of it is shown to somebody who comes later: whole turns, and the one that goes on.

A turn that is over is shown compact: the pieces of its answer as one event. What follows the last end of a turn is
shown as it was told. Both together are every event that the log still keeps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from governor.core.events import REPLAY_BYTES_MAX, EventLog, Frame

if TYPE_CHECKING:
    from governor.errors import JsonValue

Event = dict[str, "JsonValue"]

TERMINALS: Final = frozenset({"turn_complete", "turn_error"})
_DATA: Final = b"\ndata: "
_BYTES_AT_ONCE: Final = 256 * 1024
"""What is parsed before somebody else may run."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a log keeps at one moment.

    Attributes:
        frames: the newest events, as many as one replay may hold.
        last_id: id of the newest event.
        epoch: the life of the log.
        whole: nothing that was ever told is missing.
    """

    frames: list[Frame]
    last_id: int
    epoch: str
    whole: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """The events of a log for somebody who comes later.

    Attributes:
        compacted: up to the end of the last turn that is over.
        live: everything after it.
    """

    compacted: list[Event]
    live: list[Event]


class SessionLog(EventLog):
    """An event log that can be looked at as a whole."""

    def keep(self) -> Kept:
        """The newest events, as far as a replay may go back. Synchronous: one moment."""
        frames: list[Frame] = []
        size = 0
        for frame in reversed(self._ring):
            size += len(frame.data)
            if frames and size > REPLAY_BYTES_MAX:
                break
            frames.append(frame)
        frames.reverse()
        return Kept(frames, self.last_id, self.epoch, whole=len(frames) == self.last_id)


async def replay_of(kept: Kept) -> Replay:
    """Parses and compacts. Others run in between, as a log can hold megabytes."""
    events: list[Event] = []
    size = _BYTES_AT_ONCE
    for frame in kept.frames:
        if size >= _BYTES_AT_ONCE:
            await trio.lowlevel.checkpoint()
            size = 0
        events.append(envelope_of(frame))
        size += len(frame.data)
    ends = [position for position, event in enumerate(events) if event["type"] in TERMINALS]
    over = ends[-1] + 1 if ends else 0
    return Replay(compact(events[:over]), events[over:])


def envelope_of(frame: Frame) -> Event:
    """What a frame holds: the event as it was told."""
    text = frame.data.decode("utf-8", "surrogatepass")
    _, _, line = text.partition(_DATA.decode())
    return cast("Event", json.loads(line))


def compact(events: list[Event]) -> list[Event]:
    """Joins the pieces of an answer that follow one another; the joined event has the id of the last piece."""
    joined: list[Event] = []
    pieces: list[str] = []
    for event in events:
        text = _piece(event)
        if text is not None and pieces and _same_turn(joined[-1], event):
            pieces.append(text)
            joined[-1] = {**joined[-1], "id": event["id"], "_meta": event["_meta"]}
            continue
        _finish(joined, pieces)
        pieces = [text] if text is not None else []
        joined.append(event)
    _finish(joined, pieces)
    return joined


def _piece(event: Event) -> str | None:
    """The text of a piece of an answer; None for any other event."""
    if event["type"] != "session_update":
        return None
    update: Any = cast("dict[str, Any]", event["data"])["update"]
    return str(update["content"]["text"]) if update["sessionUpdate"] == "agent_message_chunk" else None


def _same_turn(one: Event, other: Event) -> bool:
    return one.get("promptId") == other.get("promptId")


def _finish(joined: list[Event], pieces: list[str]) -> None:
    if len(pieces) < 2:
        return
    data: Any = joined[-1]["data"]
    update = {**data["update"], "content": {"type": "text", "text": "".join(pieces)}}
    joined[-1] = {**joined[-1], "data": {**data, "update": update}}
