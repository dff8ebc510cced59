"""A real Triton with a model repository of its own, and the hand on its power switch."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import trio

from governor.demo.ports import free_ports
from governor.demo.triton import RealTriton
from tests.evidence.work import Work, until

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from governor.demo.install import Installation
    from governor.errors import JsonValue

HERE = Path(__file__).parent
_SOURCES = {
    "work": HERE / "models" / "work_model.py",
    "bulk": HERE / "models" / "bulk_model.py",
    "stream": HERE.parent / "contract" / "models" / "stream_model.py",
}


@dataclass(frozen=True)
class Model:
    """One model of a lab.

    Attributes:
        name: its name.
        source: `work` (DELAY_MS, X -> Y), `bulk` (DELAY_MS, N -> N numbers, calls merged into batches), `stream`
            (decoupled; named "late" it sends from a thread), or `ensemble` (of the model "work").
        instances: executions that can run at once; more than the governor has slots, so that a call too many shows.
        warmups: how often each instance is called when it is loaded.
        warmup_ms: how long each of these calls computes.
        versions: its versions; all of them are served.
    """

    name: str
    source: str = "work"
    instances: int = 3
    warmups: int = 0
    warmup_ms: int = 0
    versions: tuple[int, ...] = (1,)

    def config(self) -> str:
        """Its config.pbtxt."""
        second = "X" if self.source in {"work", "ensemble"} else "N"
        bulk = self.source == "bulk"
        inputs = ", ".join(f'{{ name: "{name}" data_type: TYPE_INT32 dims: [ 1 ] }}' for name in ("DELAY_MS", second))
        lines = [
            f'name: "{self.name}"',
            f"max_batch_size: {8 if bulk else 0}",
            f"input [ {inputs} ]",
            f'output [ {{ name: "Y" data_type: TYPE_INT32 dims: [ {-1 if bulk else 1} ] }} ]',
        ]
        if self.source == "ensemble":
            maps = " ".join(f'input_map {{ key: "{key}" value: "{key}" }}' for key in ("DELAY_MS", "X"))
            step = f'model_name: "work" model_version: -1 {maps} output_map {{ key: "Y" value: "Y" }}'
            return "\n".join([*lines, 'platform: "ensemble"', f"ensemble_scheduling {{ step [ {{ {step} }} ] }}"])
        lines += [
            'backend: "python"',
            f"instance_group [ {{ count: {self.instances} kind: KIND_CPU }} ]",
            "version_policy: { all { } }",
        ]
        if self.source == "stream":
            lines.append("model_transaction_policy { decoupled: true }")
        if bulk:
            lines.append("dynamic_batching { max_queue_delay_microseconds: 100000 }")
        if self.warmups:
            data = {"DELAY_MS": 'input_data_file: "delay"', "X": "zero_data: true"}
            tensors = " ".join(
                f'inputs {{ key: "{key}" value: {{ data_type: TYPE_INT32 dims: [ 1 ] {value} }} }}'
                for key, value in data.items()
            )
            lines.append(f'model_warmup [ {{ name: "w" batch_size: 1 count: {self.warmups} {tensors} }} ]')
        return "\n".join(lines)


class Lab:
    """One Triton on ports of its own. Killed and started again it is another process on the same ports."""

    def __init__(
        self,
        installation: Installation,
        folder: Path,
        models: Sequence[Model],
        *,
        server_id: str | None = None,
        extra_args: Sequence[str] = (),
    ) -> None:
        self._installation = installation
        self._folder = folder
        self.models = {model.name: model for model in models}
        self._server_id = server_id
        self._extra_args = tuple(extra_args)
        self.ports = free_ports(3)
        self._worklog = folder / "work.jsonl"
        self.work = Work(self._worklog)
        for model in models:
            self.lay_out(model)
        self.triton = self._make()
        self._predecessors: list[RealTriton] = []

    @property
    def url(self) -> str:
        """Base URL of the HTTP port."""
        return self.triton.url

    @property
    def metrics_url(self) -> str:
        """URL of the metrics."""
        return self.triton.metrics_url

    # Its process

    async def be_idle(self) -> None:
        """Makes sure that it runs and that nothing computes, whatever was done to it before."""
        if self.work.computing():
            await self.kill()
        if not self.triton.running:
            await self.restart()

    async def kill(self) -> None:
        """SIGKILL to the server and its model processes, as the end of a container is."""
        await self.kill_server_alone()
        self.triton.process.kill_group()

    async def kill_server_alone(self) -> None:
        """SIGKILL to the server. Model processes notice it by themselves: a computing one within 0.3 s, an idle one
        within seconds or never; until then those begun by a reload hold the server's connections open."""
        self.triton.process.kill()
        await self.triton.process.wait()

    def freeze_model_processes(self) -> None:
        """SIGSTOP to the model processes, to follow the end of their server at once: they do not notice it."""
        group = self.triton.process.pid
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == group:
                continue
            with contextlib.suppress(OSError):  # it ended meanwhile
                if os.getpgid(int(entry.name)) == group:
                    os.kill(int(entry.name), signal.SIGSTOP)

    def end_predecessors(self) -> None:
        """Ends what is left of the processes before the current one."""
        for each in self._predecessors:
            each.end_now()

    async def restart(self) -> None:
        """Starts another process at once, as a supervisor does."""
        self._predecessors.append(self.triton)
        self.triton = self._make()
        await self.triton.start()

    async def terminate(self) -> int:
        """SIGTERM, as an operator would; returns the exit code."""
        return await self.triton.terminate()

    def end_now(self) -> None:
        """Ends everything that is left of it."""
        self.end_predecessors()
        self.triton.end_now()

    def _make(self) -> RealTriton:
        http, grpc, metrics = self.ports
        return RealTriton(
            self._installation,
            run_dir=self._folder,
            repository=self._folder / "models",
            models=list(self.models),
            http_port=http,
            grpc_port=grpc,
            metrics_port=metrics,
            env={"GOVERNOR_WORKLOG": str(self._worklog)},
            exit_timeout_s=10,
            server_id=self._server_id,
            extra_args=self._extra_args,
        )

    # Its repository

    def lay_out(self, model: Model) -> None:
        """Writes one model into the repository, in place of what was there under its name."""
        self.models[model.name] = model
        target = self._folder / "models" / model.name
        target.mkdir(parents=True, exist_ok=True)
        (target / "config.pbtxt").write_text(model.config())
        delay = target / "warmup" / "delay"
        delay.parent.mkdir(exist_ok=True)
        raw = model.warmup_ms.to_bytes(4, "little")
        if not delay.exists() or delay.read_bytes() != raw:  # a file that is touched makes the next load a reload
            delay.write_bytes(raw)
        for extra in target.iterdir():
            if extra.name.isdigit() and int(extra.name) not in model.versions:
                shutil.rmtree(extra)
        for version in model.versions:
            folder = target / str(version)
            folder.mkdir(exist_ok=True)
            if model.source != "ensemble" and not (folder / "model.py").exists():
                shutil.copyfile(_SOURCES[model.source], folder / "model.py")

    def touch(self, name: str) -> None:
        """Changes its model.py, so that the next load is a reload."""
        for script in (self._folder / "models" / name).glob("*/model.py"):
            script.write_text(script.read_text() + "# changed\n")

    async def load(self, name: str) -> None:
        """Loads it as it is in the repository."""
        await self.post(f"/v2/repository/models/{name}/load")

    async def unload(self, name: str) -> None:
        """Unloads it; what executes goes on."""
        await self.post(f"/v2/repository/models/{name}/unload")

    async def reload(self, name: str) -> None:
        """Loads it anew: the counters start at zero, what executes goes on beside the new instances."""
        self.touch(name)
        await self.load(name)

    # Requests past the governor

    async def post(self, path: str, body: Mapping[str, JsonValue] | None = None) -> httpx.Response:
        """A request that must succeed."""
        async with httpx.AsyncClient(base_url=self.url, timeout=30) as client:
            answer = await client.post(path, json=dict(body or {}))
        assert answer.status_code == 200, answer.text
        return answer

    async def get(self, path: str) -> dict[str, JsonValue]:
        """An answer that must be a JSON object."""
        async with httpx.AsyncClient(base_url=self.url, timeout=30) as client:
            answer = await client.get(path)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert isinstance(told, dict)
        return told

    async def foreign_calls(self, name: str, count: int, *, delay_ms: int = 1) -> None:
        """Calls of somebody else, one after the other."""
        for _ in range(count):
            await self.post(f"/v2/models/{name}/infer", infer_body(f"foreign-{uuid.uuid4()}", delay_ms))

    async def ends(self, name: str) -> int:
        """S + F, summed over versions."""
        told = await self.get(f"/v2/models/{name}/stats")
        entries = told["model_stats"]
        assert isinstance(entries, list)
        return sum(_ends(entry) for entry in entries)

    async def wait_counted(self, name: str, ends: int) -> None:
        """Waits until the end counter stands there: it lags the answers."""
        with trio.fail_after(5):
            while await self.ends(name) < ends:
                await trio.sleep(0.01)

    async def wait_ended(self, request_ids: Collection[str], *, seconds: float = 15.0) -> None:
        """Waits until the work of these requests has ended."""
        await until(lambda: all(map(self.work.ended, request_ids)), f"{request_ids} to end", seconds=seconds)


def _ends(entry: JsonValue) -> int:
    assert isinstance(entry, dict)
    statistics = entry["inference_stats"]
    assert isinstance(statistics, dict)
    success, fail = statistics["success"], statistics["fail"]
    assert isinstance(success, dict)
    assert isinstance(fail, dict)
    return int(str(success["count"])) + int(str(fail["count"]))


def infer_body(request_id: str, delay_ms: int, x: int = 5) -> dict[str, JsonValue]:
    """An infer body for `work`."""
    return {
        "id": request_id,
        "inputs": [
            {"name": "DELAY_MS", "datatype": "INT32", "shape": [1], "data": [delay_ms]},
            {"name": "X", "datatype": "INT32", "shape": [1], "data": [x]},
        ],
    }
