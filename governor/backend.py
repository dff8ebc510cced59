"""One Triton server as the governor watches it: is it there, is each model ready, did it come back (A8, E6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import trio
from trio_util import AsyncBool

from governor.errors import BackendError
from governor.triton.lane import Lane
from governor.triton.metadata import fetch_server, model_ready, server_ready

if TYPE_CHECKING:
    from governor.config import BackendConfig
    from governor.identity import Identity
    from governor.triton.metadata import ServerFacts

_log = structlog.get_logger(__name__)
_CHECK_TIMEOUT_MS = 2_000
_NOT_CHECKED = "not checked yet"


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """What the last health check found.

    Attributes:
        problem: why the backend cannot be used; None when it can.
        model_problems: why a model cannot be used, by Triton's model name; only models that cannot.
        server: name, version and extensions, once it answered.
    """

    problem: str | None = _NOT_CHECKED
    model_problems: dict[str, str] = field(default_factory=dict)
    server: ServerFacts | None = None

    def problem_of(self, model: str) -> str | None:
        """Why this model cannot be used; None when it can."""
        return self.problem or self.model_problems.get(model)


class Backend:
    """Watches one server for all its identities. `run` must be running for `status` to change."""

    def __init__(self, config: BackendConfig) -> None:
        self.config = config
        self.status = BackendStatus()
        self.identities: dict[str, Identity] = {}
        self._usable = AsyncBool(value=False)

    async def wait_usable(self) -> None:
        """Returns as soon as a health check finds the server usable."""
        await self._usable.wait_value(True)

    def suspect(self) -> None:
        """A call could not reach the server: whoever waits for it waits for the next health check."""
        self._usable.value = False

    async def run(self) -> None:
        """Checks for ever, one check per health interval, each on a connection of its own.

        A connection that stayed open between checks would delay the server's own shutdown.
        """
        while True:
            before = self.status
            self.status = await self._check()
            self._report(before)
            if self.status.problem is None:
                if before.problem is not None and before.problem != _NOT_CHECKED:
                    await self._came_back()
                self._usable.value = True
            else:
                self._usable.value = False
            await trio.sleep(self.config.health_interval_ms / 1000)

    async def _check(self) -> BackendStatus:
        lane = Lane(str(self.config.url), connect_timeout_ms=_CHECK_TIMEOUT_MS)
        try:
            if not await server_ready(lane, timeout_ms=_CHECK_TIMEOUT_MS):
                return BackendStatus(problem=f"{self.config.url} answers, but says it is not ready")
            server = self.status.server or await fetch_server(lane, timeout_ms=_CHECK_TIMEOUT_MS)
            problems = {
                model: f'Triton says model "{model}" is not ready'
                for model in self.identities
                if not await model_ready(lane, model, timeout_ms=_CHECK_TIMEOUT_MS)
            }
        except BackendError as error:
            return BackendStatus(problem=error.message)
        finally:
            lane.close()
        return BackendStatus(problem=None, model_problems=problems, server=server)

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

    async def _came_back(self) -> None:
        """E6: it may be another process now; claims that only the end of theirs can prove are looked at again."""
        async with trio.open_nursery() as nursery:
            for identity in self.identities.values():
                nursery.start_soon(identity.look_again)
