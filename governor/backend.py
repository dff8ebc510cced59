"""One Triton server as the governor watches it: is it there, is each model ready, did it come back (A8, E6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import structlog
import trio
from trio_util import AsyncBool

from governor.errors import BackendUnavailableError, GovernorError
from governor.reads import Reads
from governor.triton.failures import of_question
from governor.triton.lane import Lane
from governor.triton.metadata import fetch_server, model_ready, server_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from governor.config import BackendConfig
    from governor.identity import Identity
    from governor.identity.port import LanePort
    from governor.triton.metadata import ServerFacts

_log = structlog.get_logger(__name__)
_CHECK_TIMEOUT_MS = 2_000
_NOT_CHECKED = "not checked yet"


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """What the last health check found.

    Attributes:
        problem: why the backend cannot be used; None when it can.
        reachable: somebody answers there; calls that were delivered may go on, and others may be delivered.
        model_problems: why a model cannot be used, by Triton's model name; only models that cannot.
        server: name, version and extensions, once it answered.
    """

    problem: str | None = _NOT_CHECKED
    reachable: bool = True
    model_problems: dict[str, str] = field(default_factory=dict)
    server: ServerFacts | None = None

    def problem_of(self, model: str) -> str | None:
        """Why this model cannot be used; None when it can."""
        return self.problem or self.model_problems.get(model)


class ServerCheck(Protocol):
    """A health check, bounded in time; never raises because of the server."""

    async def __call__(
        self, config: BackendConfig, models: Collection[str], known: ServerFacts | None
    ) -> BackendStatus:
        """What is found now. `known` is what the server said of itself before; None before it answered."""
        ...


async def check_server(config: BackendConfig, models: Collection[str], known: ServerFacts | None) -> BackendStatus:
    """The health check of a Triton server, on a connection of its own.

    A connection that stayed open between checks would delay the server's own shutdown.
    """
    lane = Lane(str(config.url), connect_timeout_ms=_CHECK_TIMEOUT_MS)
    try:
        if not await server_ready(lane, timeout_ms=_CHECK_TIMEOUT_MS):
            return BackendStatus(problem=f"{config.url} answers, but says it is not ready")
        server = known or await fetch_server(lane, timeout_ms=_CHECK_TIMEOUT_MS)
        problems = {
            model: f'Triton says model "{model}" is not ready'
            for model in models
            if not await model_ready(lane, model, timeout_ms=_CHECK_TIMEOUT_MS)
        }
    except GovernorError as error:
        return BackendStatus(
            problem=of_question(error.message), reachable=not isinstance(error, BackendUnavailableError)
        )
    finally:
        lane.close()
    return BackendStatus(problem=None, model_problems=problems, server=server)


def plain_lane(config: BackendConfig) -> LanePort:
    """A lane for questions to a server: nobody asks which process answers."""
    return Lane(str(config.url))


class Backend:
    """Watches one server for all its identities. `run` must be running for `status` to change.

    Args:
        config: the server.
        check: its health check.
        make_lane: makes a lane for questions that are no inference.

    Attributes:
        status: what the last health check found.
        identities: its identities, by Triton's model name.
        reads: for questions that are no inference.
        control: for what operators do to the server, one thing at a time: a load may take minutes.
    """

    def __init__(
        self,
        config: BackendConfig,
        check: ServerCheck = check_server,
        make_lane: Callable[[BackendConfig], LanePort] = plain_lane,
    ) -> None:
        self.config = config
        self._check = check
        self.reads = Reads(config.name, lambda: make_lane(config))
        self.control = Reads(config.name, lambda: make_lane(config), at_once=1)
        self.status = BackendStatus()
        self.identities: dict[str, Identity] = {}
        self._usable = AsyncBool(value=False)
        self._checked_at_s: float | None = None

    @property
    def check_age_s(self) -> float | None:
        """Seconds since the last health check ended; None before the first has."""
        return None if self._checked_at_s is None else trio.current_time() - self._checked_at_s

    async def wait_usable(self) -> None:
        """Returns as soon as a health check finds the server usable."""
        await self._usable.wait_value(True)

    def suspect(self) -> None:
        """A call could not reach the server: whoever waits for it waits for the next health check."""
        self._usable.value = False

    async def run(self) -> None:
        """Checks for ever, with one health interval between two checks."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.reads.run)
            nursery.start_soon(self.control.run)
            await self._watch()

    async def _watch(self) -> None:
        while True:
            before = self.status
            # A copy: a reload may add a model while the server is asked for one after the other.
            self.status = await self._check(self.config, list(self.identities), before.server)
            self._checked_at_s = trio.current_time()
            self._report(before)
            if self.status.problem is None:
                await self._look_again()
                self._usable.value = True
            else:
                self._usable.value = False
                if not self.status.reachable:
                    self._away(self.status.problem)
            await trio.sleep(self.config.health_interval_ms / 1000)

    def _report(self, before: BackendStatus) -> None:
        if before.problem != self.status.problem:
            if self.status.problem is None:
                _log.info("backend_usable", backend=self.config.name, url=str(self.config.url))
            else:
                _log.warning("backend_unusable", backend=self.config.name, reason=self.status.problem)
        for model in before.model_problems.keys() ^ self.status.model_problems.keys():
            problem = self.status.model_problems.get(model)
            if problem is not None:
                _log.warning("model_unusable", backend=self.config.name, model=model, reason=problem)
            elif self.status.problem is None:
                _log.info("model_usable", backend=self.config.name, model=model)

    def _away(self, problem: str) -> None:
        """Who waits for a credit waits for the backend too: a call that it took with it may hold the last one."""
        for identity in self.identities.values():
            identity.backend_away(lambda: BackendUnavailableError(problem))

    async def _look_again(self) -> None:
        """E6: it may be another process than before; claims that only the end of theirs can end are looked at.

        Not only after an outage: a server can be restarted between two checks.
        """
        async with trio.open_nursery() as nursery:
            for identity in self.identities.values():
                nursery.start_soon(identity.look_again)
