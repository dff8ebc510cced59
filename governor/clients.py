"""Who uses a session: client ids, how often each is registered, when each was last seen. Pure.

An id is minted by the session and told to its caller; a caller that offers an id the session knows keeps it and is
counted once more. Each detachment takes one registration back. Callers without an id are not counted at all.
"""

from __future__ import annotations

import uuid
from typing import Final

from governor.errors import InvalidRequestError

CLIENTS_MAX: Final = 1024
"""Ids that a session remembers; beyond them the one that was longest not registered is forgotten."""


class Clients:
    """The registered callers of one session.

    Args:
        session_id: named in refusals.

    Attributes:
        abandoned: everybody who was ever registered has detached.
        last_seen_ms: when anybody last said that it is there, in Unix milliseconds; None before the first time.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.abandoned = False
        self.last_seen_ms: int | None = None
        self._registrations: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._registrations)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._registrations

    def register(self, offered: str | None = None) -> str:
        """Registers a caller: under the id it offers if that is known, else under a new one. Returns the id."""
        known = offered is not None and offered in self._registrations
        client_id = offered if offered is not None and known else f"client_{uuid.uuid4()}"
        self._registrations[client_id] = self._registrations.pop(client_id, 0) + 1
        if len(self._registrations) > CLIENTS_MAX:
            del self._registrations[next(iter(self._registrations))]
        self.abandoned = False
        return client_id

    def unregister(self, client_id: str | None) -> None:
        """Takes one registration back; nothing happens for an id that is not known."""
        count = self._registrations.get(client_id) if client_id is not None else None
        if client_id is None or count is None:
            return
        if count > 1:
            self._registrations[client_id] = count - 1
            return
        del self._registrations[client_id]
        self.abandoned = not self._registrations

    def require(self, client_id: str | None) -> None:
        """Anonymous callers and registered ones pass.

        Raises:
            InvalidRequestError: `invalid_client_id`: the id is none of this session's.
        """
        if client_id is not None and client_id not in self._registrations:
            raise InvalidRequestError(
                f'Client id "{client_id}" is not registered for session {self.session_id}',
                code="invalid_client_id",
                sessionId=self.session_id,
                clientId=client_id,
            )

    def seen(self, now_ms: int) -> None:
        """Somebody is there."""
        self.last_seen_ms = now_ms
