"""A simulated Triton on real ports, or on streams in memory: start, stop, kill, restart, refuse."""

from __future__ import annotations

import errno
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio
import trio.testing

from governor.simulator.app import Front
from governor.simulator.clock import TrioScheduler
from governor.simulator.connection import Connection, Limits
from governor.simulator.faults import Faults
from governor.simulator.rules import DEFAULT_VERSION
from governor.simulator.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from governor.simulator.inference import Source
    from governor.simulator.process import Process

_DRAIN_POLL_S = 0.02


class SimulatedTriton:
    """A world with an HTTP front. `simulated_triton` makes one.

    Attributes:
        world: what is simulated; its repository may be changed at any time and is read at each load.
        faults: the misbehaviours that are on; they stay on over a restart.
    """

    def __init__(
        self, world: World, nursery: trio.Nursery, *, host: str, ports: tuple[int, int], limits: Limits
    ) -> None:
        self.world = world
        self.faults = Faults()
        self._nursery = nursery
        self._host = host
        self._ports = [*ports]
        self._limits = limits
        self._boot: _Boot | None = None

    @property
    def url(self) -> str:
        """The base URL of the v2 protocol; its port stays the same over restarts."""
        return f"http://{self._host}:{self._ports[0]}"

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics."""
        return f"http://{self._host}:{self._ports[1]}/metrics"

    @property
    def running(self) -> bool:
        """Whether a process lives."""
        return self._boot is not None

    @property
    def open_connections(self) -> int:
        """How many connections the living process serves."""
        return self._boot.open_connections if self._boot is not None else 0

    @property
    def process(self) -> Process:
        """The living process.

        Raises:
            RuntimeError: none lives.
        """
        if self.world.process is None:
            raise RuntimeError("no process lives: call start() first")
        return self.world.process

    async def start(self) -> None:
        """Start a process, load the start models and listen.

        Raises:
            RuntimeError: one lives already.
            OSError: a port is taken; no process lives then.
        """
        boot = _Boot(self.world.boot(), self.faults, self._limits)
        try:
            await self._nursery.start(boot.run)
            await boot.listen(self._host, self._ports)
        except OSError:
            self.world.kill()
            boot.end()
            raise
        self._boot = boot

    async def kill(self) -> None:
        """SIGKILL: the process, its work and its connections are gone at once. Nothing happens without one."""
        self.world.kill()
        boot, self._boot = self._boot, None
        if boot is not None:
            boot.end()
            await boot.gone.wait()

    async def terminate(self, exit_timeout_s: float = 30.0) -> None:
        """SIGTERM: the open connections are served until they close, at most so many seconds.

        A new connection is accepted and closed at once, without an answer. What executes goes on meanwhile.
        """
        boot = self._boot
        if boot is None:
            return
        boot.turning_away = True
        with trio.move_on_after(exit_timeout_s):
            while boot.open_connections or self.process.in_flight:  # noqa: ASYNC110  # as coarse as the real one
                await trio.sleep(_DRAIN_POLL_S)
        await self.kill()

    async def refuse_connections(self) -> None:
        """Refuse new connections from now on; the process and the open connections live on."""
        if self._boot is not None:
            await self._boot.refuse()

    async def accept_connections(self) -> None:
        """Accept new connections again."""
        if self._boot is not None and not self._boot.listening:
            await self._boot.listen(self._host, self._ports)

    def change_model(self, name: str) -> None:
        """Change a model's model.py: its next load is a reload."""
        source = self.world.repository[name]
        self.world.repository[name] = source.changed()

    def connect_in_memory(self, *, metrics: bool = False) -> trio.abc.Stream:
        """A connection without sockets, for a clock that jumps.

        Raises:
            ConnectionRefusedError: no process lives, or it refuses connections.
        """
        if self._boot is None or not self._boot.listening:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the simulated Triton refuses connections")
        return self._boot.connect_in_memory(metrics=metrics)


@asynccontextmanager
async def simulated_triton(
    sources: Iterable[Source],
    *,
    version: str = DEFAULT_VERSION,
    server_id: str = "triton",
    start_models: Sequence[str] | None = None,
    host: str = "127.0.0.1",
    http_port: int = 0,
    metrics_port: int = 0,
    limits: Limits | None = None,
    worklog_path: str | None = None,
    unix_start: float = 1_750_000_000.0,
) -> AsyncIterator[SimulatedTriton]:
    """A running simulated Triton; everything of it is gone when the block ends.

    Args:
        sources: the models of its repository.
        version: the Triton release to behave like.
        server_id: what `GET /v2` tells as its name.
        start_models: the models it loads at each start; None: all.
        host: the address to listen on.
        http_port: the port of the v2 protocol; 0: a free one, the same over restarts.
        metrics_port: the port of the metrics; 0: a free one, the same over restarts.
        limits: what one connection may cost.
        worklog_path: a file for the work log, besides memory.
        unix_start: the unix time the simulation begins at.
    """
    scheduler = TrioScheduler()
    world = World(
        sources,
        scheduler,
        version=version,
        server_id=server_id,
        start_models=start_models,
        unix_start=unix_start,
        worklog_path=worklog_path,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduler.run)
        ports = (http_port, metrics_port)
        triton = SimulatedTriton(world, nursery, host=host, ports=ports, limits=limits or Limits())
        await triton.start()
        yield triton
        world.kill()
        nursery.cancel_scope.cancel()


class _Boot:
    """The listeners and connections of one process."""

    def __init__(self, process: Process, faults: Faults, limits: Limits) -> None:
        self.open_connections = 0
        self.turning_away = False
        self.gone = trio.Event()
        self._limits = limits
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._listening: trio.CancelScope | None = None
        self._closed = trio.Event()
        self._serve_http = partial(self._serve, Front(process, faults))
        self._serve_metrics = partial(self._serve, Front(process, faults, metrics_port=True))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold everything of this process, until `end`."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self.gone.set()

    def end(self) -> None:
        """Close everything, at once."""
        self._scope.cancel()

    @property
    def listening(self) -> bool:
        """Whether new connections are accepted."""
        return self._listening is not None

    async def listen(self, host: str, ports: list[int]) -> None:
        """Accept connections; a port 0 is replaced by the one that was found."""
        assert self._nursery is not None, "it runs"
        groups: list[list[trio.SocketListener]] = []
        try:
            for index, port in enumerate(ports):
                groups.append(await trio.open_tcp_listeners(port, host=host))
                ports[index] = groups[-1][0].socket.getsockname()[1]
        except OSError:
            for listener in (listener for group in groups for listener in group):
                listener.socket.close()
            raise
        self._listening = trio.CancelScope()
        self._closed = trio.Event()
        self._nursery.start_soon(self._accept, self._nursery, self._listening, groups)

    async def refuse(self) -> None:
        """Close the listeners; open connections stay."""
        scope, self._listening = self._listening, None
        if scope is not None:
            scope.cancel()
            await self._closed.wait()

    def connect_in_memory(self, *, metrics: bool) -> trio.abc.Stream:
        """A new connection, served like any other."""
        assert self._nursery is not None, "it runs"
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve_metrics if metrics else self._serve_http, theirs)
        return ours

    async def _accept(
        self, connections: trio.Nursery, scope: trio.CancelScope, groups: list[list[trio.SocketListener]]
    ) -> None:
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    for serve, group in zip((self._serve_http, self._serve_metrics), groups, strict=True):
                        accept = partial(trio.serve_listeners, serve, group, handler_nursery=connections)
                        nursery.start_soon(accept)
        finally:
            self._closed.set()

    async def _serve(self, front: Front, stream: trio.abc.Stream) -> None:
        if self.turning_away or self.open_connections >= self._limits.connections:
            await trio.aclose_forcefully(stream)
            return
        self.open_connections += 1
        try:
            await Connection(stream, front, self._limits).serve()
        finally:
            self.open_connections -= 1
