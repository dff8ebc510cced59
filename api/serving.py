"""Serves an ASGI application over HTTP/1.1, from a bound socket to a bounded end (D12)."""

from __future__ import annotations

import errno
import logging
import socket
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Final, Protocol

import structlog
import trio
from hypercorn.config import Sockets
from hypercorn.trio import serve
from hypercorn.utils import LifespanFailureError, LifespanTimeoutError

from api import hardened
from governor.errors import GovernorError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveCallable,
        ASGISendCallable,
        ASGISendEvent,
        LifespanScope,
        Scope,
    )

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

START_TIMEOUT_S: Final = 60.0
"""How long the application's lifespan may take to start."""
_FAMILY_MISSING: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class ListenError(GovernorError):
    """The listen address cannot be used; the message names it and says what to do."""

    code = "listen_failed"


class ApplicationFailedError(GovernorError):
    """The application's lifespan refused to start, or broke down while the server was serving."""

    code = "application_failed"


class Waitable(Protocol):
    """What is waited on for the shutdown: a `trio.Event` or anything with its `wait`."""

    async def wait(self) -> None:
        """Returns once the shutdown is to begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Where and within which bounds to serve; times in seconds.

    Attributes:
        host: address or name to listen on; of a name, all its addresses.
        port: TCP port; 0 takes a free one.
        max_connections: open connections; a further one gets 503.
        keep_alive_timeout_s: idle connections are closed after it.
        graceful_timeout_s: how long running requests may go on after the shutdown began.
        send_timeout_s: a client that takes nothing of its answer for so long is cut off.
        head_timeout_s: the longest time a request's head may take to arrive.
        body_timeout_s: the longest wait for a request's body (see `ConnectionLimits`).
        max_head_bytes: size of a request line and its headers.
        backlog: connections that the kernel keeps until they are accepted.
    """

    host: str = "127.0.0.1"
    port: int = 4170
    max_connections: int = 512
    keep_alive_timeout_s: float = 30.0
    graceful_timeout_s: float = 10.0
    send_timeout_s: float = 10.0
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    max_head_bytes: int = 16 * 1024
    backlog: int = 512

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be 0 to 65535, not {self.port}")
        if not (isfinite(self.graceful_timeout_s) and self.graceful_timeout_s >= 0):
            raise ValueError(f"graceful_timeout_s must be finite and not negative, not {self.graceful_timeout_s}")
        for name in ("keep_alive_timeout_s", "max_head_bytes", "backlog"):
            value: float = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive and finite, not {value}")
        self.limits()

    def limits(self) -> hardened.ConnectionLimits:
        """The part of the options that bounds connections; raises ValueError for a number that bounds nothing."""
        return hardened.ConnectionLimits(
            max_connections=self.max_connections,
            send_timeout_s=self.send_timeout_s,
            head_timeout_s=self.head_timeout_s,
            body_timeout_s=self.body_timeout_s,
        )


async def serve_http(
    app: ASGIFramework,
    options: ServeOptions,
    *,
    shutdown: Waitable,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves `app` until `shutdown` is set and everything has ended.

    After `shutdown`, nothing new is accepted, idle connections are closed at once, and running requests have
    `graceful_timeout_s`; then they are cancelled. It returns within `graceful_timeout_s + send_timeout_s`, whatever
    clients do (a reader that stalls in the last moment costs the second term) and whatever the application's
    lifespan does.

    Args:
        app: the ASGI application.
        options: where and within which bounds.
        shutdown: begins the shutdown.
        task_status: `started` with the bound URLs (`http://127.0.0.1:4170`) once requests are served.

    Raises:
        ListenError: the address is taken, not allowed, or not this machine's; nothing of `app` has run.
        ApplicationFailedError: the application's lifespan refused to start, or broke down while serving: a server
            whose application is dead does not go on answering.
        hardened.UnsupportedHypercornError: another hypercorn is installed.
    """
    hardened.install()
    listening = await _listen(options)
    try:
        lifespan = _LifespanWatch(app)
        ended = trio.CancelScope()
        with ended:
            await _serve(lifespan, _Config(options, listening), options, shutdown, ended, task_status)
        if ended.cancelled_caught:
            _log.warning("shutdown_cut_short", grace_s=options.graceful_timeout_s, reason="the lifespan did not end")
    finally:
        for sock in listening:
            sock.close()
    if lifespan.error is not None:
        raise ApplicationFailedError(f"The application ended while it was serving: {lifespan.error!r}") from (
            lifespan.error
        )


async def _serve(
    lifespan: _LifespanWatch,
    config: _Config,
    options: ServeOptions,
    shutdown: Waitable,
    ended: trio.CancelScope,
    task_status: trio.TaskStatus[list[str]],
) -> None:
    async def begin_of_end() -> None:
        async with trio.open_nursery() as either:
            either.start_soon(_then_cancel, shutdown.wait, either.cancel_scope)
            either.start_soon(_then_cancel, lifespan.failed.wait, either.cancel_scope)
        ended.deadline = trio.current_time() + options.graceful_timeout_s + options.send_timeout_s

    try:
        await serve(
            lifespan,
            config,
            shutdown_trigger=begin_of_end,
            task_status=_StartedUnless(lifespan, task_status),
            mode="asgi",
        )
    except* LifespanFailureError:
        pass  # `lifespan.refusal` has its message
    except* LifespanTimeoutError:
        lifespan.refusal = f"start within {START_TIMEOUT_S:g} s"
    if lifespan.refusal is not None:
        raise ApplicationFailedError(f"The application did not {lifespan.refusal}")


async def _then_cancel(wait: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()


class _Config(hardened.LimitedConfig):
    """Hypercorn's configuration for one server on sockets that listen already."""

    def __init__(self, options: ServeOptions, listening: list[socket.socket]) -> None:
        self._listening = listening
        self.limits = options.limits()
        self.keep_alive_timeout = options.keep_alive_timeout_s
        self.keep_alive_max_requests = 2**62  # what bounds a connection is its idle time, not its use
        self.graceful_timeout = options.graceful_timeout_s
        self.h11_max_incomplete_size = options.max_head_bytes
        self.backlog = options.backlog
        self.startup_timeout = START_TIMEOUT_S
        self.shutdown_timeout = inf  # `serve_http` bounds the whole shutdown
        self.include_server_header = False
        self.accesslog = None
        self.errorlog = logging.getLogger("hypercorn.error")

    def create_sockets(self) -> Sockets:
        """Hands over the sockets; hypercorn's own way reports a taken port only after the application started."""
        return Sockets(secure_sockets=[], insecure_sockets=self._listening, quic_sockets=[])


class _StartedUnless:
    """Passes `started` on unless the lifespan failed: hypercorn announces the server nevertheless."""

    def __init__(self, lifespan: _LifespanWatch, task_status: trio.TaskStatus[list[str]]) -> None:
        self._lifespan = lifespan
        self._task_status = task_status

    def started(self, value: list[str] | None = None) -> None:
        if self._lifespan.refusal is None and value is not None:
            self._task_status.started(value)


class _LifespanWatch:
    """The application, its lifespan observed: hypercorn goes on serving when the lifespan breaks down.

    An application that does not know the lifespan protocol (it raises before answering `lifespan.startup`) is served.

    Attributes:
        refusal: what `lifespan.startup.failed` or `lifespan.shutdown.failed` said.
        error: what the lifespan raised while serving.
        failed: set with `error`.
    """

    def __init__(self, app: ASGIFramework) -> None:
        self._app = app
        self.refusal: str | None = None
        self.error: BaseException | None = None
        self.failed = trio.Event()

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _run_lifespan(self, scope: LifespanScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        serving = False

        async def watched_send(message: ASGISendEvent) -> None:
            nonlocal serving
            serving = message["type"] == "lifespan.startup.complete"
            if message["type"] == "lifespan.startup.failed":
                self.refusal = f"start: {message.get('message', '')}"
            elif message["type"] == "lifespan.shutdown.failed":
                self.refusal = f"stop cleanly: {message.get('message', '')}"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except* Exception as error:
            if serving:
                self.error = error
                self.failed.set()
            raise


async def _listen(options: ServeOptions) -> list[socket.socket]:
    """Listening sockets on every address of the host, all on one port."""
    try:
        found = await trio.socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ListenError(
            f'Cannot listen on "{options.host}": {error.strerror}. Use an address of this machine, such as 127.0.0.1.'
        ) from error
    listening: list[socket.socket] = []
    missing: OSError | None = None
    port = options.port
    try:
        for family, _, _, _, address in found:
            try:
                listening.append(_bound(family, (address[0], port, *address[2:]), options.backlog))
            except OSError as error:
                if error.errno not in _FAMILY_MISSING:
                    raise
                missing = error  # a name has an address of a family that this machine does not use
            else:
                port = listening[-1].getsockname()[1]
        if missing is not None and not listening:
            raise missing
    except OSError as error:
        for sock in listening:
            sock.close()
        raise ListenError(_listen_advice(options, port, error)) from error
    return listening


def _bound(family: int, address: tuple[str | int, ...], backlog: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _listen_advice(options: ServeOptions, port: int, error: OSError) -> str:
    where = f"[{options.host}]:{port}" if ":" in options.host else f"{options.host}:{port}"
    advice = {
        errno.EADDRINUSE: "Another process listens there: stop it, or choose another port.",
        errno.EACCES: "Ports below 1024 need a privilege: choose a higher one.",
        errno.EADDRNOTAVAIL: "The address is not this machine's: use one that is, or 0.0.0.0 for all.",
    }.get(error.errno or 0, "Choose another address.")
    return f"Cannot listen on {where}: {error.strerror}. {advice}"
