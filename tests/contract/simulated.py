"""The driver of the simulated Triton: over streams in memory, on a clock that jumps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.contract.driver import TritonDriver

if TYPE_CHECKING:
    import trio

    from governor.simulator import SimulatedTriton


class SimulatedDriver(TritonDriver):
    def __init__(self, triton: SimulatedTriton) -> None:
        self._triton = triton

    async def connect(self, *, metrics: bool = False) -> trio.abc.Stream:
        return self._triton.connect_in_memory(metrics=metrics)

    @property
    def running(self) -> bool:
        return self._triton.running

    @property
    def server_id(self) -> str:
        return self._triton.world.server_id

    async def start(self) -> None:
        await self._triton.start()

    async def kill(self) -> None:
        await self._triton.kill()

    async def terminate(self) -> None:
        await self._triton.terminate(exit_timeout_s=10)

    def work(self) -> list[dict[str, Any]]:
        return [dict(line) for line in self._triton.world.worklog.lines]

    def change_model(self, name: str) -> None:
        self._triton.change_model(name)

    def set_instances(self, name: str, count: int) -> None:
        source = self._triton.world.repository[name]
        config = replace(source.config, instances=count)
        self._triton.world.repository[name] = replace(source, config=config)

    def set_versions(self, name: str, versions: tuple[int, ...]) -> None:
        source = self._triton.world.repository[name]
        self._triton.world.repository[name] = replace(source, versions=versions)
