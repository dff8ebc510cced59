"""The governor under a plain ASGI server: `GOVERNOR_CONFIG=governor.toml hypercorn -k trio api.asgi:app`.

`governor serve` is the better way: it ends event streams in good order. Under a server of somebody else's

- the server's own options say where to listen and how long to wait at the end; `server.host` must still say how the
  bind is reached, as it decides about tokens and the Host gate;
- the governor lives in a nursery around the application's lifespan, none of Quart's. When it breaks down, every
  request gets 503, sessions get their terminal events, and then the lifespan reports its own failure, which ends
  hypercorn's worker. (Hypercorn 0.18 exits with 0 all the same: let a supervisor restart it always.)
- a shutdown reaches the application only after the server's grace: streams that are open by then are cut.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from governor.config import load_config
from governor.errors import ConfigError, GovernorError
from governor.service import Governor

from . import hardened
from .app import create_app
from .errors import send_error
from .logs import configure_logging
from .main import GovernorFailedError, serve_options
from .ownership import owned_identities

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
    """

    def __init__(self, configure: Callable[[], Config]) -> None:
        self._configure = configure
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
            config = self._configure()
            hardened.install(serve_options(config).limits())
            with owned_identities(config):
                await self._govern(config, scope, receive, send)
        except GovernorError as error:
            if isinstance(error, GovernorFailedError):
                await send({"type": "lifespan.shutdown.failed", "message": error.message})
            else:
                _log.error("start_refused", code=error.code, error=error.message)
                await send({"type": "lifespan.startup.failed", "message": error.message})

    async def _govern(
        self, config: Config, scope: LifespanScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        governor = Governor(config)
        app = create_app(governor)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(governor.run)
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
        if self._failure is not None:
            await trio.sleep(_FAREWELL_S)  # terminal events and 503s get out before the worker ends
            raise GovernorFailedError(f"The governor broke down: {self._failure!r}") from self._failure


configure_logging()
hardened.install()
app = PlainApplication(config_from_environment)
