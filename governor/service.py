"""The governor: every backend, identity and session of one configuration, and the nursery that owns them (D12)."""

from __future__ import annotations

import itertools
import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio
from trio_util import periodic

from governor.backend import Backend, check_server, plain_lane
from governor.core.evidence import OnFall
from governor.entrance import Entrance
from governor.errors import DrainingError, SessionLimitError, SessionNotFoundError, UnknownModelError
from governor.expiry import Expiry
from governor.identity import Identity, IdentityKey, IdentitySettings, IdentityStatistics
from governor.recent import RecentEvents
from governor.requests import RequestCheck
from governor.session import Session
from governor.totals import ServiceTotals
from governor.triton.model import TritonModel
from governor.triton.text import preload_tensor_codec
from governor.turn import ServedModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.backend import ServerCheck
    from governor.config import BackendConfig, Config, EvidenceConfig, LimitsConfig, ModelConfig
    from governor.errors import JsonValue
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


_LEAVING_LOOK_S = 0.25


def _settings_of(model: ModelConfig, evidence: EvidenceConfig, limits: LimitsConfig) -> IdentitySettings:
    return IdentitySettings(
        slots=model.slots,
        max_waiting=limits.max_waiting_per_identity,
        lane_idle_s=model.lane_idle_ms / 1000,
        call_limit_s=model.call_limit_ms / 1000,
        poll_interval_s=evidence.poll_interval_ms / 1000,
        settle_s=evidence.settle_ms / 1000,
        on_fall=OnFall(evidence.on_fall),
        max_unprovable_age_s=(
            evidence.max_unprovable_age_ms / 1000 if evidence.max_unprovable_age_ms is not None else None
        ),
    )


def _nobody_cares(key: IdentityKey, url: str) -> None:
    pass


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
        followers: called with each configuration that comes into force by `reconfigure`.
        on_gone: called with an identity and its server's URL when it has ended because no model has it any more.
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
        self.on_gone: Callable[[IdentityKey, str], None] = _nobody_cares
        self.followers: list[Callable[[Config], None]] = []
        self._make_port = make_port
        self._make_backend = partial(Backend, check=check, make_lane=make_lane)
        self._turns: trio.Nursery | None = None
        self._at_drain: list[Callable[[], None]] = []
        self._owned: dict[Identity | Backend, trio.CancelScope] = {}
        self._leaving: set[IdentityKey] = set()
        self.backends = {backend.name: self._make_backend(backend) for backend in config.backends}
        self.identities: dict[IdentityKey, Identity] = {}
        self._checks: dict[IdentityKey, RequestCheck] = {}
        self.models: dict[str, ServedModel] = {}
        self.entrance = Entrance(self.models)
        self.models.update({model.name: self._serve(model) for model in config.models})

    def _serve(self, model: ModelConfig) -> ServedModel:
        """Two names for one model on one server share one identity (SPEC vocabulary)."""
        if model.kind == "infer":
            preload_tensor_codec()  # else the first prompt would wait for the import
        backend = self.backends[model.backend]
        key = IdentityKey(model.backend, model.triton_model)
        if key not in self.identities:
            settings = _settings_of(model, backend.config.evidence, self.config.limits)
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
                self._turns = nursery
                for identity in self.identities.values():
                    self._own(identity)
                for backend in self.backends.values():
                    self._own(backend)
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
        for session in list(self.sessions.values()):
            session.die("daemon_shutdown")
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

    def _own(self, thing: Identity | Backend) -> None:
        """Runs it until the governor ends or lets it go."""
        assert self._turns is not None, "nothing is owned before the governor runs"
        self._owned[thing] = scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await thing.run()

        self._turns.start_soon(run, name=f"{type(thing).__name__} {thing}")

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
        for wanted in config.backends:
            if wanted.name in self.backends:
                self.backends[wanted.name].config = wanted
            else:
                self.backends[wanted.name] = self._make_backend(wanted)
                self._own(self.backends[wanted.name])
        self._replace_models(config)
        for session in self.sessions.values():
            session.reconfigure(config.limits, self.models.get(session.served.config.name))
        self._expiry.look_at_all()
        for identity in self.identities.values():
            if identity.key not in self._leaving and not self.is_served(identity):
                self._leaving.add(identity.key)
                self._turns.start_soon(self._see_off, identity, name=f"see off {identity.key}")
        self._drop_backends()
        for follow in self.followers:
            follow(config)

    def _replace_models(self, config: Config) -> None:
        before, known = dict(self.models), set(self.identities)
        self.models.clear()
        for model in config.models:
            served = self._serve(model)
            # Who compares by identity finds an unchanged model unchanged.
            same = before.get(model.name)
            self.models[model.name] = same if same is not None and same == served else served
        first = {(model.backend, model.triton_model): model for model in reversed(config.models)}
        for (backend, triton_model), model in first.items():
            identity = self.identities[IdentityKey(backend, triton_model)]
            identity.reconfigure(_settings_of(model, config.backend(backend).evidence, config.limits))
            if identity.key not in known:
                self._own(identity)

    def is_served(self, identity: Identity) -> bool:
        """Some model has it. One that none has takes nothing new, and ends when nothing of it is left."""
        return any(served.identity is identity for served in self.models.values())

    async def _see_off(self, identity: Identity) -> None:
        """Waits until nothing of the identity is left, or some model has it again."""
        async for _ in periodic(_LEAVING_LOOK_S):
            if self.is_served(identity) or not self._is_in_use(identity):
                break
        self._leaving.discard(identity.key)
        if self.is_served(identity):
            return
        backend = self.backends[identity.key.backend]
        del self.identities[identity.key], backend.identities[identity.key.model], self._checks[identity.key]
        self._owned.pop(identity).cancel()
        self._drop_backends()
        _log.info("identity_gone", identity=str(identity.key))
        self.recent.note("identity_gone", str(identity.key))
        self.on_gone(identity.key, backend.config.url)

    def _is_in_use(self, identity: Identity) -> bool:
        return identity.is_busy or any(
            session.pending_count and session.served.identity is identity for session in self.sessions.values()
        )

    def _drop_backends(self) -> None:
        wanted = {backend.name for backend in self.config.backends}
        for name, backend in list(self.backends.items()):
            if name not in wanted and not backend.identities:
                del self.backends[name]
                self._owned.pop(backend).cancel()

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
