"""What the routes work on, typed: the governor, and the sessions that callers share."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import trio
from quart import current_app, request
from quart_trio import QuartTrio

from governor.config.crosscheck import is_loopback
from governor.operations import Operations

from .acp.connection import Connections
from .admin.stream import StateFeed
from .errors import SessionIdConflictError
from .rate import RateLimiter, caller_name, tier_of
from .wire import WORKSPACE_CWD, decode_client_id

if TYPE_CHECKING:
    from governor.operations import ConfigSource
    from governor.service import Governor
    from governor.session import Session

    from .metrics import GovernorCollector
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
        # One that has switched to another model is shared no more.
        if session is not None and not session.closed and session.served is model:
            return session, True
        session = self._by_model[model.config.name] = governor.create_session(model.config.name)
        return session, False


class GovernorApp(QuartTrio):
    """The Quart application with what its routes need.

    Attributes:
        governor: what everything is asked of.
        shared_sessions: see `SharedSessions`.
        collector: what `/metrics` shows; set by `create_app`.
        rate_limiter: how often callers may ask; None where nothing is limited.
        operations: what operators can do to it.
        admin_feed: what operators listen to.
        acp: the connections of clients that speak ACP.
    """

    collector: GovernorCollector

    def __init__(self, governor: Governor, source: ConfigSource | None = None) -> None:
        super().__init__(__name__, static_folder=None)
        self.governor = governor
        self.shared_sessions = SharedSessions(governor)
        self.rate_limiter = RateLimiter.of(governor.config.limits)
        self.operations = Operations(governor, source)
        self.admin_feed = StateFeed(governor)
        self.acp = Connections(governor)
        self.loopback = is_loopback(governor.config.server.host)


def this_app() -> GovernorApp:
    """The application of the current request."""
    return cast("GovernorApp", current_app)


def caller_id() -> str | None:
    """The client id of the current request; None for an anonymous caller.

    Raises:
        InvalidRequestError: `invalid_client_id`: it can be none.
    """
    return decode_client_id(request.headers.get("X-Qwen-Client-Id"))


def caller_of(session: Session) -> str | None:
    """The client id of the current request, which the session must know; None for an anonymous caller.

    Whoever asks this uses the session.

    Raises:
        InvalidRequestError: `invalid_client_id`: it is none of the session's.
    """
    client_id = caller_id()
    session.clients.require(client_id)
    session.touch()
    return client_id


async def check_rate() -> None:
    """Counts the current request; runs before its route.

    Raises:
        RateLimitError: the caller has asked too often of late.
        InvalidRequestError: `invalid_client_id`.
    """
    app = this_app()
    tier = tier_of(request.method, request.path)
    if app.rate_limiter is None or tier is None:
        return
    caller = caller_name(loopback=app.loopback, address=request.remote_addr or "unknown", client_id=caller_id())
    app.rate_limiter.take(caller, tier, trio.current_time())
