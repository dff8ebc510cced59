"""A governor with several models, each on a fake backend of its own; its configuration can change while it runs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from governor.backend import BackendStatus
from governor.config import BackendConfig, Config, LimitsConfig, ModelConfig
from governor.identity import IdentityKey
from governor.service import Governor
from governor.triton.metadata import ServerFacts
from tests.shell.fakes import FakePort
from tests.shell.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from governor.identity import Identity


def config_of(
    *models: dict[str, Any], backends: Collection[str] = ("b",), limits: dict[str, Any] | None = None
) -> Config:
    """Models of one slot on the backend `b` unless they say otherwise; backends at ports of their own."""
    return Config(
        limits=LimitsConfig(**{"max_pending_prompts_per_session": 50, **(limits or {})}),
        backends=tuple(
            BackendConfig(name=name, url=f"http://127.0.0.1:{8000 + ord(name[0])}", health_interval_ms=1000)
            for name in backends
        ),
        models=tuple(ModelConfig(**{"backend": "b", "slots": 1, "kind": "generate", **model}) for model in models),
    )


@dataclass(slots=True)
class Fleet:
    """A running governor and the worlds behind it.

    Attributes:
        worlds: by backend and model; those of models that are gone remain.
        checked: backends that were ever asked for their health, with the moment.
        gone: identities that have ended.
    """

    nursery: trio.Nursery
    governor: Governor
    worlds: dict[IdentityKey, World] = field(default_factory=dict)
    checked: dict[str, float] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)

    def world(self, model: str, backend: str = "b") -> World:
        """The world of one model."""
        return self.worlds[IdentityKey(backend, model)]

    def identity(self, model: str, backend: str = "b") -> Identity:
        """The identity of one model."""
        return self.governor.identities[IdentityKey(backend, model)]

    def free(self, model: str) -> int:
        """Its free credits; negative while slots were taken away."""
        return self.identity(model).statistics().ledger.free


@asynccontextmanager
async def fleet(config: Config) -> AsyncIterator[Fleet]:
    """A running governor; everything is cancelled at the end."""
    async with trio.open_nursery() as nursery:
        up: list[Fleet] = []

        def make_port(backend: BackendConfig, model: str) -> FakePort:
            world = worlds[IdentityKey(backend.name, model)] = World(nursery)
            return FakePort(world)

        async def check(config: BackendConfig, models: Collection[str], known: ServerFacts | None) -> BackendStatus:
            await trio.sleep(0.001)
            if up:
                up[0].checked[config.name] = trio.current_time()
            return BackendStatus(problem=None, server=known or ServerFacts("triton", "2.51.0", frozenset()))

        worlds: dict[IdentityKey, World] = {}
        governor = Governor(config, now_ms=lambda: int(trio.current_time() * 1000), make_port=make_port, check=check)
        up.append(Fleet(nursery, governor, worlds))
        governor.fleet.on_gone = lambda key, url: up[0].gone.append(f"{key} at {url}")
        await nursery.start(governor.run)
        await trio.sleep(0.01)
        yield up[0]
        nursery.cancel_scope.cancel()
