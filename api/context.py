"""What the routes work on, typed: the governor, and the sessions that callers share."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, cast

from quart import current_app
from quart_trio import QuartTrio

from governor.errors import InvalidRequestError

from .errors import SessionIdConflictError
from .metrics import GovernorCollector
from .wire import WORKSPACE_CWD

if TYPE_CHECKING:
    from governor.service import Governor
    from governor.session import Session

    from .wire import CreateRequest


class SharedSessions:
    """For each model the one session that its callers of `single` scope attach to.

    Everything is synchronous: of callers who come at once, exactly one makes the session.
    """

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._by_model: dict[str, Session] = {}

    def open(self, request: CreateRequest) -> tuple[Session, bool]:
        """Makes a session, or attaches to the shared one.

        Returns:
            The session, and whether it was there before.

        Raises:
            UnknownModelError, SessionLimitError, DrainingError: as `Governor.create_session`.
            SessionIdConflictError: a live session has the wanted id.
        """
        governor = self._governor
        wanted_id = request.session_id
        if wanted_id is not None and wanted_id in governor.sessions:
            raise SessionIdConflictError(wanted_id, WORKSPACE_CWD)
        if not request.shared:
            return governor.create_session(request.model, wanted_id), False
        model = governor.model(request.model) if request.model is not None else next(iter(governor.models.values()))
        session = self._by_model.get(model.config.name)
        if session is not None and not session.closed:
            return session, True
        session = self._by_model[model.config.name] = governor.create_session(model.config.name)
        return session, False


CLIENTS_MAX: Final = 1024
"""Client ids that a session remembers; beyond them the one that was longest not registered is forgotten."""


def register_client(session: Session, offered: str | None) -> str:
    """Registers a caller on a session: under the id it offers if the session knows it, else under a new one."""
    clients = session.clients
    client_id = offered if offered is not None and offered in clients else f"client_{uuid.uuid4()}"
    clients[client_id] = clients.pop(client_id, 0) + 1
    if len(clients) > CLIENTS_MAX:
        del clients[next(iter(clients))]
    return client_id


def require_registered(session: Session, client_id: str | None) -> None:
    """Anonymous callers and registered ones pass.

    Raises:
        InvalidRequestError: `invalid_client_id`: the id is none of this session's.
    """
    if client_id is not None and client_id not in session.clients:
        raise InvalidRequestError(
            f'Client id "{client_id}" is not registered for session {session.id}',
            code="invalid_client_id",
            sessionId=session.id,
            clientId=client_id,
        )


class GovernorApp(QuartTrio):
    """The Quart application with what its routes need.

    Attributes:
        governor: what everything is asked of.
        shared_sessions: see `SharedSessions`.
        collector: what `/metrics` shows.
    """

    def __init__(self, governor: Governor) -> None:
        super().__init__(__name__, static_folder=None)
        self.governor = governor
        self.shared_sessions = SharedSessions(governor)
        self.collector = GovernorCollector(governor)


def this_app() -> GovernorApp:
    """The application of the current request."""
    return cast("GovernorApp", current_app)
