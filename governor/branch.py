"""A new session that begins where another one stands (S5).

A branch is ordered behind the prompts that were accepted before it, and takes no slot of the queue. When they have all
settled, the session's events are taken as they are at that moment, before the next prompt begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import trio

from governor.errors import BranchWaitError, SessionNotFoundError
from governor.journal import replay_of

if TYPE_CHECKING:
    from governor.errors import JsonValue
    from governor.journal import Event
    from governor.service import Governor
    from governor.session import Session

WAIT_S: Final = 100.0
"""How long a branch waits for the prompts before it; the TypeScript client gives up after 120 s."""


async def branch_session(governor: Governor, source: Session, name: str | None, client_id: str | None) -> Session:
    """Makes a session with the model, the name and the texts of another one.

    Args:
        governor: makes the session.
        source: what it begins with.
        name: the new session's name; None for the source's with `(branch)`.
        client_id: of whoever asked for it.

    Raises:
        BranchWaitError: the prompts before it had not settled in time; nothing was made.
        SessionNotFoundError: the session was closed meanwhile.
        SessionLimitError, DrainingError: as `Governor.create_session`.
    """
    with trio.move_on_after(WAIT_S):
        kept = await source.after_pending()
        replay = await replay_of(kept)
        if source.closed:
            raise SessionNotFoundError(source.id, closing=True)
        branched = governor.create_session(source.served.config.name)
        branched.display_name = name if name is not None else f"{title_of(source)} (branch)"
        for event in (*replay.compacted, *replay.live):
            if event["type"] == "session_update":
                _tell_again(branched, event)
        told: dict[str, JsonValue] = {
            "sourceSessionId": source.id,
            "newSessionId": branched.id,
            "displayName": branched.display_name,
        }
        source.announce("session_branched", told, client_id)
        return branched
    raise BranchWaitError(source.id, WAIT_S)


def title_of(session: Session) -> str:
    """What a session is called; the beginning of its id where nobody has named it."""
    return session.display_name if session.display_name is not None else session.id[:8]


def _tell_again(branched: Session, event: Event) -> None:
    data = cast("dict[str, Any]", event["data"])
    originator, prompt_id = event.get("originatorClientId"), event.get("promptId")
    branched.announce(
        "session_update",
        {"update": data["update"]},
        cast("str | None", originator),
        cast("str | None", prompt_id),
    )
