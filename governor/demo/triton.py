"""Runs a real Triton server as a child: start, wait until ready, stop, kill, start again on its ports."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import httpx
import trio

from governor.demo.install import Installation, TritonSetupError, install, last_lines, why_not_supported
from governor.demo.process import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from governor.errors import JsonValue

__all__ = ["DEMO_MODELS", "Installation", "RealTriton", "TritonSetupError", "install", "why_not_supported"]

DEMO_MODELS: Final = Path(__file__).parent / "models"
"""The demo model repository: `sentiment`, `storyteller`, `slow`."""

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # where Triton's python backend puts its regions
_READY_POLL_S: Final = 0.05
_MODEL_PROCESSES_S: Final = 5.0
"""How long the model processes get to notice that their server was killed: they need one to three seconds."""
_EXIT_MARGIN_S: Final = 5.0


class RealTriton:
    """One Triton server on fixed ports; an async context manager that starts it and always ends it at once.

    Args:
        installation: what `install` returned.
        run_dir: folder for its log file (`triton.log`); made when absent.
        repository: the model repository; it is only read.
        models: the models to load at start.
        http_port: port of the v2 HTTP protocol; gRPC and metrics take the next two unless given.
        grpc_port: port of the gRPC protocol.
        metrics_port: port of `/metrics`.
        server_id: what `GET /v2` tells as its name. None: a new unique one at each start. Triton's own
            default is "triton".
        extra_args: further arguments for `tritonserver`; they win over ours.
        env: further environment variables, for the server and its models.
        exit_timeout_s: how long Triton waits for running inferences and open connections after SIGTERM.
        ready_timeout_s: how long loading all models may take.
    """

    def __init__(
        self,
        installation: Installation,
        *,
        run_dir: Path,
        repository: Path = DEMO_MODELS,
        models: Sequence[str] = (),
        http_port: int = 8000,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        server_id: str | None = None,
        extra_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        exit_timeout_s: int = 10,
        ready_timeout_s: float = 60,
    ) -> None:
        self._installation = installation
        self._run_dir = run_dir.absolute()
        self._repository = repository.absolute()
        self._models = tuple(models)
        self._ports = (
            http_port,
            http_port + 1 if grpc_port is None else grpc_port,
            http_port + 2 if metrics_port is None else metrics_port,
        )
        self._fixed_id = server_id
        self._extra_args = tuple(extra_args)
        self._env = dict(env or {})
        self._exit_timeout_s = exit_timeout_s
        self._ready_timeout_s = ready_timeout_s
        self._process: ChildProcess | None = None
        self._shared_memory_prefix = ""
        self.server_id = server_id or ""

    @property
    def url(self) -> str:
        """The base URL of the v2 HTTP protocol."""
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def metrics_url(self) -> str:
        """The URL of the Prometheus metrics."""
        return f"http://127.0.0.1:{self._ports[2]}/metrics"

    @property
    def log(self) -> Path:
        """Its log file; starting again appends to it."""
        return self._run_dir / "triton.log"

    @property
    def process(self) -> ChildProcess:
        """The server process of the latest start.

        Raises:
            RuntimeError: it was never started.
        """
        if self._process is None:
            raise RuntimeError("this Triton was never started: call start() first")
        return self._process

    @property
    def running(self) -> bool:
        """Whether the server process lives."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the server and wait until it is ready.

        Raises:
            RuntimeError: it already runs.
            TritonSetupError: it ended or was not ready in time; the message has the end of its log. Nothing
                of it is left then.
        """
        if self.running:
            raise RuntimeError("this Triton already runs: stop it first")
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self.server_id = self._fixed_id or str(uuid.uuid4())
        self._shared_memory_prefix = f"governor_{uuid.uuid4().hex[:12]}_"
        environment = {**self._installation.environment(), **self._env}
        self._process = ChildProcess(self._command(), log=self.log, env=environment)
        ready = False
        try:
            with trio.move_on_after(self._ready_timeout_s):
                ready = await self._wait_until_ready(self._process)
            if not ready:
                raise TritonSetupError(self._why_not_ready(self._process))
        finally:
            if not ready:
                self.end_now()

    async def wait(self) -> int:
        """Wait until the server ends by itself or by a signal; returns its exit code."""
        return await self.process.wait()

    async def terminate(self) -> int:
        """End it as an operator would: SIGTERM, its exit timeout and a margin, then SIGKILL.

        Triton takes about a second for each model instance, one after the other.

        Returns:
            the exit code.
        """
        try:
            return await self.process.stop(self._exit_timeout_s + _EXIT_MARGIN_S)
        finally:
            self.end_now()

    async def kill(self) -> None:
        """End it as a crash would: SIGKILL to the server alone.

        Its model processes notice and end themselves (a computing one within 0.3 s, an idle one within three);
        this waits for that, so that no work of theirs is left when it returns.
        """
        self.process.kill()
        await self.process.wait()
        try:
            await self.process.wait_for_group(_MODEL_PROCESSES_S)
        finally:
            self.end_now()

    def end_now(self) -> None:
        """SIGKILL to the server and its model processes, and remove what they would leave behind.

        Nothing happens where nothing runs; it never waits for the models, so it fits a cleanup.
        """
        if self._process is not None:
            self._process.end_now()
            self._remove_shared_memory()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_now()

    def _command(self) -> list[str]:
        http, grpc, metrics = self._ports
        return [
            str(self._installation.server),
            f"--id={self.server_id}",
            f"--model-repository={self._repository}",
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in self._models),
            f"--backend-directory={self._installation.backends}",
            f"--backend-config=python,shm-region-prefix-name={self._shared_memory_prefix}",
            "--disable-auto-complete-config",
            *("--http-address=127.0.0.1", f"--http-port={http}"),
            *("--grpc-address=127.0.0.1", f"--grpc-port={grpc}"),
            *("--metrics-address=127.0.0.1", f"--metrics-port={metrics}"),
            "--allow-gpu-metrics=false",
            f"--exit-timeout-secs={self._exit_timeout_s}",
            *self._extra_args,
        ]

    async def _wait_until_ready(self, process: ChildProcess) -> bool:
        """True once this very server is ready; False when its process ended."""
        async with httpx.AsyncClient(base_url=self.url, timeout=5) as client:
            while process.returncode is None:
                try:
                    ready = await client.get("/v2/health/ready")
                    # Another server may hold the port while ours is still about to fail on it.
                    if ready.status_code == 200 and _name_of(await client.get("/v2")) == self.server_id:
                        return True
                except httpx.TransportError:
                    pass  # connections are refused until every model is loaded
                await trio.sleep(_READY_POLL_S)
        return False

    def _why_not_ready(self, process: ChildProcess) -> str:
        code = process.returncode
        happened = f"ended with exit code {code}" if code is not None else "was not ready"
        lines = last_lines(self.log, 200)
        telling = [line for line in lines if line.startswith(("E", "error"))] or lines
        told = "\n  ".join(["", *telling[-6:]])
        return f"Triton {happened} within {self._ready_timeout_s:.0f} s; its log {self.log} ends with:{told}"

    def _remove_shared_memory(self) -> None:
        """A killed server leaves its shared memory regions behind."""
        if self._shared_memory_prefix:
            for region in _SHARED_MEMORY.glob(f"{self._shared_memory_prefix}*"):
                region.unlink(missing_ok=True)


def _name_of(answer: httpx.Response) -> JsonValue:
    try:
        told = json.loads(answer.content)
    except ValueError:
        return None
    return told.get("name") if isinstance(told, dict) else None
