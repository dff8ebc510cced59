"""The driver of a real Triton; one server serves the whole test session and is healed after every test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from governor.demo.triton import DEMO_MODELS, Installation, RealTriton
from tests.contract.driver import TritonDriver, until

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent / "models"
_STREAMING = {"stream", "late"}
_VERSIONS = {"multi": (1, 2)}


def build_repository(folder: Path) -> list[str]:
    """Lay out the contract's models and the demo's as a model repository; returns their names."""
    for config in sorted(HERE.glob("*.pbtxt")):
        _lay_out(folder, config.stem)
    for model in sorted(DEMO_MODELS.iterdir()):
        if (model / "config.pbtxt").exists():
            shutil.copytree(model, folder / model.name, ignore=shutil.ignore_patterns("__pycache__"))
    return sorted(model.name for model in folder.iterdir())


def _lay_out(folder: Path, name: str) -> None:
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(HERE / f"{name}.pbtxt", target / "config.pbtxt")
    versions = _VERSIONS.get(name, (1,))
    for extra in target.iterdir():
        if extra.is_dir() and int(extra.name) not in versions:
            shutil.rmtree(extra)
    for version in versions:
        (target / str(version)).mkdir(exist_ok=True)
        if name != "ens":
            shutil.copyfile(_source_of(name), target / str(version) / "model.py")


def _source_of(name: str) -> Path:
    return HERE / ("stream_model.py" if name in _STREAMING else "sleep_model.py")


class RealDriver(TritonDriver):
    def __init__(
        self, installation: Installation, folder: Path, port: int, models: Sequence[str] | None = None
    ) -> None:
        self._folder = folder / "models"
        self._worklog = folder / "work.jsonl"
        self._port = port
        in_repository = build_repository(self._folder)
        self._models = in_repository if models is None else [*models]
        self._touched: set[str] = set()
        caches = installation.server.parent.parent / "caches"
        self.triton = RealTriton(
            installation,
            run_dir=folder,
            repository=self._folder,
            models=self._models,
            http_port=port,
            env={"GOVERNOR_WORKLOG": str(self._worklog)},
            extra_args=[f"--cache-directory={caches}", "--cache-config=local,size=1048576"],
        )

    async def connect(self, *, metrics: bool = False) -> trio.abc.Stream:
        return await trio.open_tcp_stream("127.0.0.1", self._port + (2 if metrics else 0))

    @property
    def running(self) -> bool:
        return self.triton.running

    @property
    def server_id(self) -> str:
        return self.triton.server_id

    async def start(self) -> None:
        await self.triton.start()

    async def kill(self) -> None:
        await self.triton.kill()

    async def terminate(self) -> None:
        await self.triton.terminate()

    def work(self) -> list[dict[str, Any]]:
        if not self._worklog.exists():
            return []
        return [json.loads(line) for line in self._worklog.read_text().splitlines()]

    def change_model(self, name: str) -> None:
        self._touched.add(name)
        for script in (self._folder / name).glob("*/model.py"):
            script.write_text(script.read_text() + "# changed\n")

    def set_instances(self, name: str, count: int) -> None:
        self._touched.add(name)
        config = self._folder / name / "config.pbtxt"
        config.write_text(config.read_text().replace("count: 1 ", f"count: {count} "))

    def set_versions(self, name: str, versions: tuple[int, ...]) -> None:
        self._touched.add(name)
        for version in versions:
            folder = self._folder / name / str(version)
            if not folder.exists():
                folder.mkdir()
                shutil.copyfile(_source_of(name), folder / "model.py")
        for folder in (self._folder / name).iterdir():
            if folder.is_dir() and int(folder.name) not in versions:
                shutil.rmtree(folder)

    async def heal(self) -> None:
        """Make everything as it was at the start of the session, counters aside."""
        for name in self._touched:
            _lay_out(self._folder, name)
        for name in self._touched:
            await self.load(name)
        self._touched.clear()
        await until(self._all_ready, "all models to be ready")

    async def _all_ready(self) -> bool:
        index = (await self.post("/v2/repository/index")).json()
        states = {entry["name"]: entry.get("state") for entry in index if entry.get("reason") != "unloaded"}
        for name in self._models:
            if name not in states:
                await self.load(name)
        return all(states.get(name) == "READY" for name in self._models)
