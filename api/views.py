"""Sessions as clients see them, in wire spelling. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from governor.history import error_fields

from .wire import WORKSPACE_CWD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.errors import JsonValue
    from governor.session import Session

View = dict[str, "JsonValue"]


def iso(unix_ms: int) -> str:
    """A moment as the protocol writes it."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def opened(session: Session, client_id: str, *, attached: bool) -> View:
    """The answer to whoever made a session or attached to it."""
    told: View = {
        "sessionId": session.id,
        "workspaceCwd": WORKSPACE_CWD,
        "attached": attached,
        "clientId": client_id,
        "createdAt": iso(session.created_at_ms),
        "modelServiceId": session.served.config.name,
    }
    if attached:
        told |= {"hasActivePrompt": session.has_active_prompt, "hasRunningBackgroundTasks": False}
    return told


def models_state(session: Session, models: Iterable[str]) -> View:
    """Which model a session speaks to, and which it could."""
    available: list[JsonValue] = [{"modelId": name, "name": name} for name in models]
    return {"models": {"currentModelId": session.served.config.name, "availableModels": available}}


def page_of(sessions: Iterable[Session], size: int, before: int | None) -> tuple[list[Session], str | None]:
    """One page of sessions, the newest first.

    Args:
        sessions: all of them.
        size: the most that a page has.
        before: number of the last session of the page before; None for the first page.

    Returns:
        The page, and the cursor of the next one; None if there is none.
    """
    newest_first = sorted(sessions, key=lambda session: session.number, reverse=True)
    rest = [session for session in newest_first if before is None or session.number < before]
    return rest[:size], str(rest[size - 1].number) if len(rest) > size else None


def summary(session: Session) -> View:
    """A session in the list of sessions, and the answer of its status route."""
    history = session.history
    told: View = {
        "sessionId": session.id,
        "workspaceCwd": WORKSPACE_CWD,
        "createdAt": iso(session.created_at_ms),
    }
    if history.last_ended_ms is not None:
        told["updatedAt"] = iso(history.last_ended_ms)
    if session.display_name is not None:
        told |= {"displayName": session.display_name, "titleSource": "manual"}
    told |= {
        "modelServiceId": session.served.config.name,
        "clientCount": len(session.clients),
        "hasActivePrompt": session.has_active_prompt,
        "activeWorkState": "active" if session.has_active_prompt else "idle",
        "hasRunningBackgroundTasks": False,
        "isWaitingForPermission": False,
        "isWaitingForUserQuestion": False,
        "pendingInteractionCount": 0,
        "hasTurnError": history.last_error is not None,
    }
    if history.last_error is not None:
        told["turnError"] = error_fields(history.last_error)
    told["pendingInteractions"] = []
    return told
