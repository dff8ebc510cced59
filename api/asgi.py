"""The governor under a plain ASGI server: `GOVERNOR_CONFIG=governor.toml hypercorn -k trio api.asgi:app`.

`governor serve` is the simpler way. Under a server of somebody else's

- the server's own options say where to listen and how long to wait at the end; `server.host` must still say how the
  bind is reached, as it decides about tokens and the Host gate;
- the governor lives in a nursery around the application's lifespan, none of Quart's. When it breaks down, every
  request gets 503, sessions get their terminal events, and then the lifespan reports its own failure, which ends
  hypercorn's worker. (Hypercorn 0.18 exits with 0 all the same: let a supervisor restart it always.)
- hypercorn tells an application of a shutdown only after its grace, when open event streams have been cut. So the
  worker's own event is listened to here, and the governor drains as soon as the shutdown begins. Signals must go to
  hypercorn's parent process alone (systemd: `KillMode=mixed`): a worker that gets one dies of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import structlog
import trio
from hypercorn.trio import run as trio_worker
from hypercorn.trio.worker_context import WorkerContext

from governor.config import load_config
from governor.errors import ConfigError, GovernorError
from governor.service import Governor

from . import hardened
from .app import create_app
from .errors import send_error
from .heap import keep_freed_memory, settle_heap
from .logs import configure_logging
from .main import GovernorFailedError, serve_options
from .ownership import owned_identities
from .source import FileSource
from .telemetry import telemetry

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveCallable,
        ASGISendCallable,
        LifespanScope,
        Scope,
    )

    from governor.config import Config

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

CONFIG_VARIABLE: Final = "GOVERNOR_CONFIG"
"""Environment variable with the path of the configuration."""
_FAREWELL_S: Final = 1.0


class _Worker(WorkerContext):
    """The context of hypercorn's worker, within reach of the application that it serves.

    Attributes:
        current: of this process; None under another server.
    """

    current: ClassVar[_Worker | None] = None

    def __init__(self, max_requests: int | None) -> None:
        super().__init__(max_requests)
        _Worker.current = self


class NotRunningError(GovernorError):
    """The governor does not run: it never started, broke down, or has ended."""

    code = "governor_not_running"
    status = 503
    retry_after_s = 5


def config_from_environment() -> Config:
    """The configuration that `GOVERNOR_CONFIG` names, with the environment's other settings laid over it.

    Raises:
        ConfigError: the variable is missing, or the configuration cannot work.
    """
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        raise ConfigError([f"{CONFIG_VARIABLE} is not set; it must hold the path of a configuration file"])
    return load_config(Path(path), environ=os.environ)


class PlainApplication:
    """An ASGI application that runs its governor for the time of its lifespan.

    Args:
        configure: called at start-up for the configuration.
        make_governor: makes the governor from it and a `tracer`.
    """

    def __init__(self, configure: Callable[[], Config], *, make_governor: Callable[..., Governor] = Governor) -> None:
        self._configure = configure
        self._make_governor = make_governor
        self._app: ASGIFramework | None = None
        self._failure: Exception | None = None

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serves one ASGI scope."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send_error(send, NotRunningError("The governor does not run; its log says why"))

    async def _live(self, scope: LifespanScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        try:
            if not trio.lowlevel.in_trio_run():
                raise NotRunningError(
                    "The governor runs on trio, and this server's worker does not: start it as"
                    " `hypercorn -k trio api.asgi:app` with one worker, or use `governor serve`"
                )
            config = self._configure()
            hardened.install(serve_options(config).limits())
            with owned_identities(config) as owned:
                await self._govern(config, FileSource(self._configure, owned), scope, receive, send)
        except GovernorError as error:
            if isinstance(error, GovernorFailedError):
                await send({"type": "lifespan.shutdown.failed", "message": error.message})
            else:
                _log.error("start_refused", code=error.code, error=error.message)
                await send({"type": "lifespan.startup.failed", "message": error.message})

    async def _govern(
        self,
        config: Config,
        source: FileSource,
        scope: LifespanScope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> None:
        traced = telemetry(os.environ)
        governor = self._make_governor(config, tracer=traced.tracer)
        governor.fleet.on_gone = source.gone
        app = create_app(governor, source)
        if traced.tracer is not None:
            traced.tracer.instrument(app)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(governor.run)
                nursery.start_soon(_drain_with_worker, governor)
                self._app = app
                await app(scope, receive, send)
                governor.drain()
                nursery.cancel_scope.cancel()
        except* Exception as failure:  # noqa: BLE001  # whatever it was, it is raised again after the farewell
            self._failure = failure
            _log.exception("governor_failed")
        finally:
            self._app = None
            governor.drain()
            traced.close()
        if self._failure is not None:
            await trio.sleep(_FAREWELL_S)  # terminal events and 503s get out before the worker ends
            raise GovernorFailedError(f"The governor broke down: {self._failure!r}") from self._failure


async def _drain_with_worker(governor: Governor) -> None:
    if _Worker.current is not None:
        await _Worker.current.terminated.wait()
        governor.drain()


configure_logging()
keep_freed_memory()
settle_heap()
hardened.install()
trio_worker.WorkerContext = _Worker  # type: ignore[attr-defined]  # the name that the worker looks up
app = PlainApplication(config_from_environment)
