"""`governor serve`: the governor and its HTTP server in one process, from the first lock to a bounded end (D12).

    outer nursery
    ├── signals    the first SIGTERM or SIGINT begins the stop, the second ends the process at once; SIGHUP reloads
    ├── governor   owns every backend call, session and watcher
    ├── heap       spares Python's collector of cycles the sessions that live
    └── server     the HTTP surface

The stop, whoever begins it: the governor drains (terminal events are out, streams end), the server stops accepting and
lets requests end within the grace, then the governor's nursery is cancelled. A governor that fails begins the stop as
well, and its failure is raised at the end: no server goes on answering over a dead governor.
"""

from __future__ import annotations

import os
import signal
from contextlib import closing
from typing import TYPE_CHECKING

import structlog
import trio

from governor.audit import Actor
from governor.errors import GovernorError
from governor.service import Governor

from .app import create_app
from .heap import settle_sessions
from .ownership import owned_identities
from .serving import ServeOptions, serve_http
from .source import FileSource
from .telemetry import telemetry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from governor.config import Config

    from .tracing import OpenTelemetryTracer

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class GovernorFailedError(GovernorError):
    """The governor broke down; its cause says why. The process must end with it."""

    code = "governor_failed"


async def serve(
    config: Config,
    *,
    load: Callable[[], Config] | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Runs until a signal asks for the end, and returns when everything has ended. Must run in the main thread.

    Args:
        config: a valid configuration.
        load: reads it again; None if there is no file to read again.
        task_status: `started` with the URLs that are served, once they are.

    Raises:
        IdentityOwnedError, OwnershipError: another process governs one of the models, or nobody can tell.
        ListenError, ApplicationFailedError: as `serve_http`.
        GovernorFailedError: the governor broke down.
    """
    with owned_identities(config) as owned, closing(telemetry(os.environ)) as traced:
        source = FileSource(load, owned) if load is not None else None
        await _Service(config, source, traced.tracer).run(task_status)


def serve_options(config: Config) -> ServeOptions:
    """The part of a configuration that the HTTP server needs."""
    server = config.server
    return ServeOptions(
        host=server.host,
        port=server.port,
        max_connections=server.max_connections,
        keep_alive_timeout_s=server.keep_alive_timeout_ms / 1000,
        graceful_timeout_s=server.graceful_timeout_ms / 1000,
        send_timeout_s=server.send_timeout_ms / 1000,
    )


class _Service:
    """The tasks and what they tell each other."""

    def __init__(self, config: Config, source: FileSource | None, tracer: OpenTelemetryTracer | None) -> None:
        self._options = serve_options(config)
        self._governor = Governor(config, tracer=tracer)
        self._app = create_app(self._governor, source)
        if source is not None:
            self._governor.fleet.on_gone = source.gone
        if tracer is not None:
            tracer.instrument(self._app)
        self._governing = trio.Event()
        self._stop = trio.Event()
        self._failure: Exception | None = None

    async def run(self, task_status: trio.TaskStatus[list[str]]) -> None:
        refused: GovernorError | None = None
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey, signals, nursery)
                nursery.start_soon(self._govern)
                nursery.start_soon(settle_sessions, lambda: len(self._governor.sessions))
                await self._governing.wait()
                try:
                    if self._failure is None:
                        announcement = _Announcement(task_status)
                        await serve_http(self._app, self._options, shutdown=self._stop, task_status=announcement)
                except GovernorError as error:
                    refused = error
                self._say_what_goes_on()
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise GovernorFailedError(f"The governor broke down: {self._failure!r}") from self._failure
        if refused is not None:
            raise refused

    async def _obey(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        stopping = False
        async for number in signals:
            if number == signal.SIGHUP:
                nursery.start_soon(self._reload)
                continue
            if stopping:
                _log.error("stopped_at_once", signal=signal.Signals(number).name)
                os._exit(128 + number)  # asked for twice: nothing may delay it, and the kernel cleans up
            stopping = True
            _log.info("stopping", signal=signal.Signals(number).name)
            self._begin_stop()

    async def _reload(self) -> None:
        await self._governing.wait()
        try:
            await self._app.operations.reload(None, Actor("SIGHUP"))
        except GovernorError as refused:
            _log.warning("reload_refused", code=refused.code, error=refused.message)

    async def _govern(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._governor.run)
                self._governing.set()
        except* Exception as failure:  # noqa: BLE001  # whatever it was, it is raised again once the server has stopped
            self._failure = failure
            _log.exception("governor_failed")
        self._governing.set()
        self._begin_stop()

    def _begin_stop(self) -> None:
        """Terminal events first, so that they are on their way before the server's grace begins."""
        self._governor.drain()
        self._stop.set()

    def _say_what_goes_on(self) -> None:
        """A call that executes beyond the end is nobody's: the next governor must not take its slot for free."""
        for identity in self._governor.statistics().identities:
            held = identity.ledger.slots - identity.ledger.free
            if held:
                _log.warning(
                    "calls_outlive_governor",
                    identity=str(identity.key),
                    slots=held,
                    advice="they may go on in the backend; a governor that starts now does not know of them",
                )


class _Announcement:
    """Says that requests are served, to the log and to whoever started the service."""

    def __init__(self, task_status: trio.TaskStatus[list[str]]) -> None:
        self._task_status = task_status

    def started(self, value: list[str] | None = None) -> None:
        _log.info("serving", urls=value, pid=os.getpid())
        self._task_status.started(value or [])
