"""The servers and models of one configuration: what serves each model, and the tasks of all of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio
from trio_util import periodic

from governor.backend import Backend
from governor.core.evidence import OnFall
from governor.entrance import Entrance
from governor.identity import Identity, IdentityKey, IdentitySettings
from governor.requests import RequestCheck
from governor.triton.text import preload_tensor_codec
from governor.turn import ServedModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.backend import ServerCheck
    from governor.config import BackendConfig, Config, EvidenceConfig, LimitsConfig, ModelConfig
    from governor.identity.port import LanePort, ModelPort
    from governor.recent import RecentEvents
    from governor.tracing import Tracer

_log = structlog.get_logger(__name__)
_LEAVING_LOOK_S: Final = 0.25


class Fleet:
    """Made from a valid configuration; its tasks run from `start` on, and their nursery ends them.

    Args:
        config: the configuration.
        recent: is told what happens.
        make_port: makes what an identity reaches its model through, from its backend and Triton's name of it.
        check: a server's health check.
        make_lane: makes a lane for questions to a server that are no inference.
        has_prompts: a session has pending prompts for this identity.
        tracer: is told of calls; None where nothing is traced.

    Attributes:
        backends: by name.
        identities: by key.
        models: by public name.
        entrance: whether new work is accepted for them.
        on_gone: called with an identity and its server's URL when it has ended because no model has it any more.
    """

    def __init__(
        self,
        config: Config,
        recent: RecentEvents,
        *,
        make_port: Callable[[BackendConfig, str], ModelPort],
        check: ServerCheck,
        make_lane: Callable[[BackendConfig], LanePort],
        has_prompts: Callable[[Identity], bool],
        tracer: Tracer | None,
    ) -> None:
        self._config = config
        self._recent = recent
        self._make_port = make_port
        self._make_backend = partial(Backend, check=check, make_lane=make_lane)
        self._has_prompts = has_prompts
        self._tracer = tracer
        self._nursery: trio.Nursery | None = None
        self._owned: dict[Identity | Backend, trio.CancelScope] = {}
        self._leaving: set[IdentityKey] = set()
        self._checks: dict[IdentityKey, RequestCheck] = {}
        self.on_gone: Callable[[IdentityKey, str], None] = _nobody_cares
        self.backends = {backend.name: self._make_backend(backend) for backend in config.backends}
        self.identities: dict[IdentityKey, Identity] = {}
        self.models: dict[str, ServedModel] = {}
        self.entrance = Entrance(self.models)
        self.models.update({model.name: self._serve(model) for model in config.models})

    def start(self, nursery: trio.Nursery) -> None:
        """Everything runs in this nursery from now on."""
        self._nursery = nursery
        for identity in self.identities.values():
            self._own(identity)
        for backend in self.backends.values():
            self._own(backend)

    def is_served(self, identity: Identity) -> bool:
        """Some model has it. One that none has takes nothing new, and ends when nothing of it is left."""
        return any(served.identity is identity for served in self.models.values())

    def reconfigure(self, config: Config) -> None:
        """Puts another configuration in force. Synchronous; see `Governor.reconfigure`. Only after `start`."""
        self._config = config
        for wanted in config.backends:
            if wanted.name in self.backends:
                self.backends[wanted.name].config = wanted
            else:
                self.backends[wanted.name] = self._make_backend(wanted)
                self._own(self.backends[wanted.name])
        self._replace_models(config)
        for identity in self.identities.values():
            if identity.key not in self._leaving and not self.is_served(identity):
                self._leaving.add(identity.key)
                self._started.start_soon(self._see_off, identity, name=f"see off {identity.key}")
        self._drop_backends()

    @property
    def _started(self) -> trio.Nursery:
        assert self._nursery is not None, "nothing is owned before the governor runs"
        return self._nursery

    def _serve(self, model: ModelConfig) -> ServedModel:
        """Two names for one model on one server share one identity (SPEC vocabulary)."""
        if model.kind == "infer":
            preload_tensor_codec()  # else the first prompt would wait for the import
        backend = self.backends[model.backend]
        key = IdentityKey(model.backend, model.triton_model)
        if key not in self.identities:
            settings = _settings_of(model, backend.config.evidence, self._config.limits)
            port = self._make_port(backend.config, model.triton_model)
            identity = Identity(key, settings, port, self._recent.note, self.entrance, self._tracer)
            self.identities[key] = backend.identities[model.triton_model] = identity
            self._checks[key] = RequestCheck(backend, identity)
        return ServedModel(model, self.identities[key], backend, self._checks[key])

    def _own(self, thing: Identity | Backend) -> None:
        """Runs it until its nursery ends, or the fleet lets it go."""
        self._owned[thing] = scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await thing.run()

        self._started.start_soon(run, name=f"{type(thing).__name__} {thing}")

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

    async def _see_off(self, identity: Identity) -> None:
        """Waits until nothing of the identity is left, or some model has it again."""
        async for _ in periodic(_LEAVING_LOOK_S):
            if self.is_served(identity) or not (identity.is_busy or self._has_prompts(identity)):
                break
        self._leaving.discard(identity.key)
        if self.is_served(identity):
            return
        backend = self.backends[identity.key.backend]
        del self.identities[identity.key], backend.identities[identity.key.model], self._checks[identity.key]
        identity.drain()
        self._owned.pop(identity).cancel()
        self._drop_backends()
        _log.info("identity_gone", identity=str(identity.key))
        self._recent.note("identity_gone", str(identity.key))
        self.on_gone(identity.key, backend.config.url)

    def _drop_backends(self) -> None:
        wanted = {backend.name for backend in self._config.backends}
        for name, backend in list(self.backends.items()):
            if name not in wanted and not backend.identities:
                del self.backends[name]
                self._owned.pop(backend).cancel()


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
