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
from .callers import address_of, client_id_of, known_caller
from .errors import SessionIdConflictError
from .rate import RateLimiter, caller_name, tier_of
from .wire import WORKSPACE_CWD

if TYPE_CHECKING:
    from hypercorn.typing import HTTPScope

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

    def count_request(self, scope: HTTPScope) -> None:
        """Counts a request, before anything else of it is looked at.

        Raises:
            RateLimitError: the caller has asked too often of late.
            InvalidRequestError: `invalid_client_id`.
        """
        tier = tier_of(scope["method"], scope["path"])
        if self.rate_limiter is None or tier is None:
            return
        caller = caller_name(loopback=self.loopback, address=address_of(scope), client_id=client_id_of(scope))
        self.rate_limiter.take(caller, tier, trio.current_time())


def this_app() -> GovernorApp:
    """The application of the current request."""
    return cast("GovernorApp", current_app)


def this_scope() -> HTTPScope:
    """The ASGI scope of the current request."""
    return cast("HTTPScope", request.scope)


def caller_id() -> str | None:
    """As `client_id_of`, of the current request."""
    return client_id_of(this_scope())


def caller_of(session: Session) -> str | None:
    """As `known_caller`, of the current request."""
    return known_caller(session, this_scope())


async def check_rate() -> None:
    """As `count_request`, of the current request; runs before its route."""
    this_app().count_request(this_scope())
