"""What a contract test can do with a Triton, simulated or real."""

from __future__ import annotations

import abc
import json
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from tests.contract.wire import Reply, Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

SETTLE_S = 0.1
"""Longer than a counter lags behind its answer on an idle machine."""


def new_id() -> str:
    """A request id that no other request has."""
    return str(uuid.uuid4())


class TritonDriver(abc.ABC):
    """A Triton with the contract's models, and the hand on its power switch and its repository."""

    # -- what differs --------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def connect(self, *, metrics: bool = False) -> trio.abc.Stream:
        """A new connection; OSError where it is refused."""

    @property
    @abc.abstractmethod
    def running(self) -> bool: ...

    @property
    @abc.abstractmethod
    def server_id(self) -> str:
        """What it was started with as `--id`."""

    @abc.abstractmethod
    async def start(self) -> None: ...

    @abc.abstractmethod
    async def kill(self) -> None: ...

    @abc.abstractmethod
    async def terminate(self) -> None: ...

    @abc.abstractmethod
    def work(self) -> list[dict[str, Any]]:
        """The work log."""

    @abc.abstractmethod
    def change_model(self, name: str) -> None:
        """Change its model.py."""

    @abc.abstractmethod
    def set_instances(self, name: str, count: int) -> None:
        """Change nothing but the instance count in its configuration."""

    @abc.abstractmethod
    def set_versions(self, name: str, versions: tuple[int, ...]) -> None:
        """Add and remove version folders."""

    # -- requests ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def wire(self, *, metrics: bool = False) -> AsyncIterator[Wire]:
        """A connection for one test to play with."""
        wire = Wire(await self.connect(metrics=metrics))
        try:
            yield wire
        finally:
            await wire.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = b"",
        headers: dict[str, str] | None = None,
        *,
        metrics: bool = False,
    ) -> Reply:
        """One request on a connection of its own."""
        async with self.wire(metrics=metrics) as wire:
            return await wire.ask(method, path, body, headers)

    async def post(self, path: str, body: Any = b"{}") -> Reply:
        return await self.ask("POST", path, body)

    async def get(self, path: str) -> Reply:
        return await self.ask("GET", path)

    async def load(self, model: str) -> None:
        reply = await self.post(f"/v2/repository/models/{model}/load")
        assert reply.status == 200, reply

    async def unload(self, model: str) -> None:
        reply = await self.post(f"/v2/repository/models/{model}/unload")
        assert reply.status == 200, reply

    # -- observations --------------------------------------------------------------------------------------

    async def statistics(self, model: str) -> list[dict[str, Any]]:
        """The entries of `model_stats`, one for each loaded version."""
        reply = await self.get(f"/v2/models/{model}/stats")
        assert reply.status == 200, reply
        entries = reply.json()["model_stats"]
        assert isinstance(entries, list)
        return entries

    async def counts(self, model: str) -> tuple[int, int]:
        """S and F, summed over the versions."""
        stats = [entry["inference_stats"] for entry in await self.statistics(model)]
        return sum(one["success"]["count"] for one in stats), sum(one["fail"]["count"] for one in stats)

    async def settled_counts(self, model: str) -> tuple[int, int]:
        """S and F once two readings a settle time apart are equal."""
        last: tuple[int, int] | None = None
        with trio.fail_after(5):
            while last != (now := await self.counts(model)):
                last = now
                await trio.sleep(SETTLE_S)
        return now

    async def metric(self, family: str, model: str, **labels: str) -> int | None:
        """The sum of a family's series of a model; None where there is none."""
        reply = await self.ask("GET", "/metrics", metrics=True)
        wanted = [f'model="{model}"', *(f'{name}="{value}"' for name, value in labels.items())]
        found = [
            int(float(line.rsplit(" ", 1)[1]))
            for line in reply.body.decode().splitlines()
            if line.startswith(f"{family}{{") and all(label in line for label in wanted)
        ]
        return sum(found) if found else None

    async def index_state(self, model: str, version: str = "1") -> tuple[str, str]:
        """State and reason in the repository index."""
        reply = await self.post("/v2/repository/index")
        return next(
            (entry.get("state", ""), entry.get("reason", ""))
            for entry in reply.json()
            if entry["name"] == model and entry.get("version", version) == version
        )

    def times_of(self, execution: str) -> tuple[float | None, float | None]:
        """When an execution started and ended in the work log."""
        times = {line["what"]: line["t"] for line in self.work() if line["id"] == execution}
        return times.get("start"), times.get("end")

    async def wait_for_start(self, execution: str) -> None:
        await until(lambda: self.times_of(execution)[0] is not None, f"{execution} to start")

    async def wait_for_end(self, execution: str) -> None:
        await until(lambda: self.times_of(execution)[1] is not None, f"{execution} to end")


async def until(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]], what: str, timeout_s: float = 10.0
) -> None:
    """Wait until a condition holds, at most `timeout_s` seconds."""
    with trio.move_on_after(timeout_s):
        while True:
            holds = condition()
            if not isinstance(holds, bool):
                holds = await holds
            if holds:
                return
            await trio.sleep(0.02)
    raise AssertionError(f"waited {timeout_s} s in vain for {what}")


# -- bodies ------------------------------------------------------------------------------------------------


def sleep_body(delay_ms: int, x: int = 5, *, batch: int | None = None, **more: Any) -> dict[str, Any]:
    """An infer body for the sleep models; `batch`: with a batch dimension of that size."""
    shape, count = ([1], 1) if batch is None else ([batch, 1], batch)
    return {
        "inputs": [
            {"name": "DELAY_MS", "datatype": "INT32", "shape": shape, "data": [delay_ms] * count},
            {"name": "X", "datatype": "INT32", "shape": shape, "data": [x] * count},
        ],
        **more,
    }


def text_tensor(text: bytes, execution: str, *, shape: int = 1) -> tuple[bytes, dict[str, str]]:
    """An infer body with one binary text for a text model, and the header fields that tell where it begins."""
    raw = len(text).to_bytes(4, "little") + text
    tensor = {
        "name": "text_input",
        "datatype": "BYTES",
        "shape": [shape],
        "parameters": {"binary_data_size": len(raw)},
    }
    head = json.dumps({"id": execution, "inputs": [tensor]}).encode()
    return head + raw, {"Inference-Header-Content-Length": str(len(head))}


def with_input(body: dict[str, Any], name: str, /, **changes: Any) -> dict[str, Any]:
    """The body with one input changed."""
    inputs = [{**one, **changes} if one["name"] == name else one for one in body["inputs"]]
    return {**body, "inputs": inputs}


def events_of(body: bytes) -> list[Any]:
    """The JSON values of a server-sent event stream, held to its exact framing."""
    assert body == b"" or body.endswith(b"\n\n"), body
    pieces = body.split(b"\n\n")[:-1]
    assert all(piece.startswith(b"data: ") for piece in pieces), body
    return [json.loads(piece.removeprefix(b"data: ")) for piece in pieces]
