"""The governor: every backend, identity and session of one configuration, and the nursery that owns them (D12)."""

from __future__ import annotations

import itertools
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from governor.backend import check_server, plain_lane
from governor.errors import DrainingError, SessionLimitError, SessionNotFoundError, UnknownModelError
from governor.expiry import Expiry
from governor.fleet import Fleet
from governor.recent import RecentEvents
from governor.session import Session
from governor.totals import ServiceTotals
from governor.triton.model import TritonModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.backend import ServerCheck
    from governor.config import BackendConfig, Config
    from governor.errors import JsonValue
    from governor.identity import Identity, IdentityStatistics
    from governor.identity.port import LanePort, ModelPort
    from governor.tracing import Tracer
    from governor.turn import ServedModel

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GovernorStatistics:
    """A snapshot of everything, for metrics, readiness and status pages.

    Attributes:
        draining: nothing new is accepted, for good or until an operator opens the entrance again.
        stopping: nothing new is accepted, for good.
    """

    draining: bool
    stopping: bool
    sessions: int
    pending_prompts: int
    active_prompts: int
    subscribers: int
    totals: ServiceTotals
    identities: list[IdentityStatistics]


def _wall_clock_ms() -> int:
    return int(time.time() * 1000)


class Governor:
    """Made from a valid configuration; does nothing before `run`.

    Args:
        config: the configuration.
        now_ms: wall-clock time in Unix milliseconds.
        make_port: makes what an identity reaches its model through, from its backend and Triton's name of it.
        check: a server's health check.
        make_lane: makes a lane for questions to a server that are no inference.
        tracer: is told of prompts and calls; None where nothing is traced.

    Attributes:
        recent: what happened lately, for operators.
        fleet: the servers and models, and what serves them.
        backends, identities, models: of the fleet.
        entrance: whether new work is accepted.
        stopped: set as soon as nothing more is accepted, for good.
        followers: called with each configuration that comes into force by `reconfigure`.
    """

    def __init__(
        self,
        config: Config,
        *,
        now_ms: Callable[[], int] = _wall_clock_ms,
        make_port: Callable[[BackendConfig, str], ModelPort] = TritonModel,
        check: ServerCheck = check_server,
        make_lane: Callable[[BackendConfig], LanePort] = plain_lane,
        tracer: Tracer | None = None,
    ) -> None:
        self.config = config
        self.started_at_ms = now_ms()
        self.sessions: dict[str, Session] = {}
        self._expiry = Expiry(self.sessions, lambda: self.config.limits, self._expire)
        self.draining = False
        self.totals = ServiceTotals()
        self._tracer = tracer
        self._numbers = itertools.count(1)
        self._closed_active_s: float | None = None
        self.now_ms = now_ms
        self.recent = RecentEvents(now_ms)
        self.stopped = trio.Event()
        self.followers: list[Callable[[Config], None]] = []
        self._turns: trio.Nursery | None = None
        self._at_drain: list[Callable[[], None]] = []
        self.fleet = Fleet(
            config,
            self.recent,
            make_port=make_port,
            check=check,
            make_lane=make_lane,
            has_prompts=self._has_prompts,
            tracer=tracer,
        )
        self.backends = self.fleet.backends
        self.identities = self.fleet.identities
        self.models = self.fleet.models
        self.entrance = self.fleet.entrance

    def _has_prompts(self, identity: Identity) -> bool:
        return any(session.pending_count and session.served.identity is identity for session in self.sessions.values())

    # Life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Owns every task until it is cancelled; an error in one of them ends it and is raised here."""
        try:
            async with trio.open_nursery() as nursery:
                self._turns = nursery
                self.fleet.start(nursery)
                nursery.start_soon(self._expiry.run)
                task_status.started()
        finally:
            # Whoever forgot to drain, and whatever broke: no accepted prompt is left without its terminal event (S7).
            self._turns = None
            self.drain()

    def drain(self) -> None:
        """Accepts nothing more and gives every pending prompt its terminal event (S3, S7). Synchronous."""
        if self.draining:
            return
        self.draining = True
        self.stopped.set()
        self.recent.note("stopping")
        _log.info("draining", sessions=len(self.sessions))
        told_within_s = self.config.server.graceful_timeout_ms / 1000 / 2  # what is told after the grace reaches nobody
        for session in list(self.sessions.values()):
            session.die("daemon_shutdown", told_within_s=told_within_s)
        self.sessions.clear()
        for identity in self.identities.values():
            identity.drain()
        for callback in self._at_drain:
            callback()

    def at_drain(self, callback: Callable[[], None]) -> None:
        """Has `callback` run at the end of `drain`, when every prompt has settled. It must neither block nor raise."""
        self._at_drain.append(callback)

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Runs a task that must not end with the request that asks for it. It ends with the governor at the latest.

        Raises:
            DrainingError: the governor accepts nothing more.
        """
        if self.draining or self._turns is None:
            raise DrainingError
        self._turns.start_soon(task)

    # Another configuration

    def reconfigure(self, config: Config) -> None:
        """Puts a configuration in force that differs by nothing but what `plan_reload` calls live.

        Synchronous, so that nobody sees half of it. Slots that are taken away under their holders come back with them.
        A model that is gone takes nothing new; what was accepted for it goes on, and its identity ends when nothing of
        it is left. Claims are never forgotten: an identity that comes back finds those it had.

        Raises:
            DrainingError: the governor does not run.
        """
        if self._turns is None or self.draining:
            raise DrainingError
        self.config = config
        self.fleet.reconfigure(config)
        for session in self.sessions.values():
            session.reconfigure(config.limits, self.models.get(session.served.config.name))
        self._expiry.look_at_all()
        for follow in self.followers:
            follow(config)

    # Sessions

    def create_session(self, model: str | None = None, session_id: str | None = None) -> Session:
        """Makes a session for a model; the first configured one if none is named.

        Raises:
            DrainingError: the governor accepts nothing more.
            SessionLimitError: as many sessions are live as may be.
            UnknownModelError: no model has this name.
        """
        if self.draining or self._turns is None:
            raise DrainingError
        self.entrance.check()
        if len(self.sessions) >= self.config.limits.max_sessions:
            raise SessionLimitError(self.config.limits.max_sessions)
        served = self.model(model) if model is not None else next(iter(self.models.values()))
        session = Session(
            session_id or str(uuid.uuid4()),
            served,
            self.config.limits,
            self._turns,
            self.now_ms,
            number=next(self._numbers),
            totals=self.totals,
            entrance=self.entrance,
            tracer=self._tracer,
        )
        self.sessions[session.id] = session
        self._expiry.watch(session)
        return session

    def session(self, session_id: str) -> Session:
        """The live session of this id.

        Raises:
            DrainingError: the governor accepts nothing more.
            SessionNotFoundError: there is none.
        """
        session = self.sessions.get(session_id)
        if session is not None:
            return session
        if self.draining:
            raise DrainingError
        raise SessionNotFoundError(session_id)

    def switch_model(self, session: Session, name: str, originator: str | None = None) -> ServedModel:
        """Sends the turns of a session that begin from now on to another model; its subscribers are told either way.

        Raises:
            UnknownModelError: there is none of this name; nothing has changed.
        """
        try:
            served = self.model(name)
        except UnknownModelError as unknown:
            failed: dict[str, JsonValue] = {"requestedModelId": name, "error": unknown.message}
            session.announce("model_switch_failed", failed, originator)
            raise
        session.switch_model(served, originator)
        return served

    def close_session(self, session_id: str, *, reason: str = "client_close", closed_by: str | None = None) -> None:
        """Closes a session; its pending prompts get their terminal event.

        Args:
            session_id: which.
            reason: told to its subscribers.
            closed_by: client id of whoever asked for it.

        Raises:
            DrainingError: the governor accepts nothing more.
            SessionNotFoundError: there is none.
        """
        session = self.session(session_id)
        session.close(reason=reason, closed_by=closed_by)
        self._closed_active_s = max(session.last_active_s, self._closed_active_s or 0.0)
        del self.sessions[session_id]

    def _expire(self, session_id: str, reason: str) -> None:
        self.close_session(session_id, reason=reason)

    def idle_ms(self) -> int | None:
        """Milliseconds since any session was last used; None if there was none."""
        used_s = [session.last_active_s for session in self.sessions.values()]
        if self._closed_active_s is not None:
            used_s.append(self._closed_active_s)
        return int((trio.current_time() - max(used_s)) * 1000) if used_s else None

    # Models

    def model(self, name: str) -> ServedModel:
        """The model of this public name, or the only one with this Triton name.

        Raises:
            UnknownModelError: there is none.
        """
        served = self.models.get(name)
        if served is not None:
            return served
        same = [served for served in self.models.values() if served.config.triton_model == name]
        if len(same) != 1:
            raise UnknownModelError(name, list(self.models))
        return same[0]

    def problems(self) -> dict[str, str]:
        """Why each model that cannot be used cannot, by public name (A8)."""
        reasons = {name: served.problem() for name, served in self.models.items()}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def statistics(self) -> GovernorStatistics:
        """A snapshot."""
        sessions = self.sessions.values()
        return GovernorStatistics(
            draining=self.draining or self.entrance.closed,
            stopping=self.draining,
            sessions=len(sessions),
            pending_prompts=sum(session.pending_count for session in sessions),
            active_prompts=sum(session.has_active_prompt for session in sessions),
            subscribers=sum(session.log.subscriber_count for session in sessions),
            totals=self.totals,
            identities=[identity.statistics() for identity in self.identities.values()],
        )
