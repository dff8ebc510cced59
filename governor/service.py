"""The governor: every backend, identity and session of one configuration, and the nursery that owns them (D12)."""

from __future__ import annotations

import itertools
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from governor.backend import Backend, check_server, plain_lane
from governor.core.evidence import OnFall
from governor.entrance import Entrance
from governor.errors import DrainingError, SessionLimitError, SessionNotFoundError, UnknownModelError
from governor.identity import Identity, IdentityKey, IdentitySettings, IdentityStatistics
from governor.recent import RecentEvents
from governor.requests import RequestCheck
from governor.session import Session
from governor.totals import ServiceTotals
from governor.triton.model import TritonModel
from governor.turn import ServedModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.backend import ServerCheck
    from governor.config import BackendConfig, Config, ModelConfig
    from governor.identity.port import LanePort, ModelPort
    from governor.tracing import Tracer

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
        entrance: whether new work is accepted.
        stopped: set as soon as nothing more is accepted, for good.
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
        self.draining = False
        self.totals = ServiceTotals()
        self._tracer = tracer
        self._numbers = itertools.count(1)
        self._closed_active_s: float | None = None
        self.now_ms = now_ms
        self.recent = RecentEvents(now_ms)
        self.entrance = Entrance()
        self.stopped = trio.Event()
        self._make_port = make_port
        self._turns: trio.Nursery | None = None
        self.backends = {backend.name: Backend(backend, check, make_lane) for backend in config.backends}
        self.identities: dict[IdentityKey, Identity] = {}
        self._checks: dict[IdentityKey, RequestCheck] = {}
        self.models = {model.name: self._serve(model) for model in config.models}

    def _serve(self, model: ModelConfig) -> ServedModel:
        """Two names for one model on one server share one identity (SPEC vocabulary)."""
        backend = self.backends[model.backend]
        key = IdentityKey(model.backend, model.triton_model)
        if key not in self.identities:
            evidence = backend.config.evidence
            settings = IdentitySettings(
                slots=model.slots,
                max_waiting=self.config.limits.max_waiting_per_identity,
                lane_idle_s=model.lane_idle_ms / 1000,
                call_limit_s=model.call_limit_ms / 1000,
                poll_interval_s=evidence.poll_interval_ms / 1000,
                settle_s=evidence.settle_ms / 1000,
                on_fall=OnFall(evidence.on_fall),
                max_unprovable_age_s=(
                    evidence.max_unprovable_age_ms / 1000 if evidence.max_unprovable_age_ms is not None else None
                ),
            )
            port = self._make_port(backend.config, model.triton_model)
            identity = Identity(key, settings, port, self.recent.note, self.entrance, self._tracer)
            self.identities[key] = backend.identities[model.triton_model] = identity
            self._checks[key] = RequestCheck(backend, identity)
        return ServedModel(model, self.identities[key], backend, self._checks[key])

    # Life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Owns every task until it is cancelled; an error in one of them ends it and is raised here."""
        try:
            async with trio.open_nursery() as nursery:
                for identity in self.identities.values():
                    await nursery.start(identity.run)
                for backend in self.backends.values():
                    nursery.start_soon(backend.run)
                nursery.start_soon(self._close_idle_sessions)
                self._turns = nursery
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
        for session in list(self.sessions.values()):
            session.die("daemon_shutdown")
        self.sessions.clear()
        for identity in self.identities.values():
            identity.drain()

    async def _close_idle_sessions(self) -> None:
        limits = self.config.limits
        idle_s, detached_s = limits.session_idle_timeout_ms / 1000, limits.session_detached_timeout_ms / 1000
        while True:
            await trio.sleep(max(1.0, min(idle_s, detached_s) / 30))
            now_s = trio.current_time()
            for session in list(self.sessions.values()):
                if session.pending_count or session.log.subscriber_count:
                    continue
                unused_s = now_s - session.last_active_s
                if unused_s > idle_s:
                    self.close_session(session.id, reason="idle_timeout")
                elif session.clients.abandoned and unused_s > detached_s:
                    self.close_session(session.id, reason="last_client_detached")

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
