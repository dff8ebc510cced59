"""A real Triton with the demo models, once for the whole run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from governor.demo.install import Installation, install, why_not_supported
from governor.demo.ports import free_ports
from governor.demo.triton import DEMO_MODELS, RealTriton
from tests.contract.real import build_repository
from tests.e2e.stack import start_governor, wait_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
MODELS = ["sentiment", "storyteller", "slow"]
ADMIN = "operators-own-secret"
CLIENT_MODELS = ["every", "labelled", "adder", "nobatch", "sleep", "multi", "ens", "stream"]


@pytest.fixture(scope="session")
def installation() -> Installation:
    reason = why_not_supported()
    if reason is not None:
        pytest.skip(reason)
    return trio.run(install, ROOT)


def make_triton(installation: Installation, folder: Path) -> RealTriton:
    http_port, grpc_port, metrics_port = free_ports(3)
    return RealTriton(
        installation,
        run_dir=folder,
        repository=DEMO_MODELS,
        models=MODELS,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        env={"GOVERNOR_WORKLOG": str(folder / "work.jsonl")},
    )


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(scope="session")
def triton(installation: Installation, shared_folder: Path) -> Iterator[RealTriton]:
    server = make_triton(installation, shared_folder)
    trio.run(server.start)
    yield server
    server.end_now()


@pytest.fixture(scope="session")
def client_triton(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealTriton]:
    """A Triton with a model for everything that a client can ask for."""
    folder = tmp_path_factory.mktemp("client_triton")
    build_repository(folder / "models")
    for model in (Path(__file__).parent / "models").iterdir():
        shutil.copytree(model, folder / "models" / model.name)
    http_port, grpc_port, metrics_port = free_ports(3)
    server = RealTriton(
        installation,
        run_dir=folder,
        repository=folder / "models",
        models=CLIENT_MODELS,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        env={"GOVERNOR_WORKLOG": str(folder / "work.jsonl")},
    )
    trio.run(server.start)
    yield server
    server.end_now()


@pytest.fixture(scope="session")
def governed(client_triton: RealTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a governor in front of it; `labelled` has another name there, and operators have `ADMIN`."""
    folder = tmp_path_factory.mktemp("governed")
    [port] = free_ports(1)
    names = {"colours" if model == "labelled" else model: model for model in CLIENT_MODELS}
    tables = "".join(
        f'[[models]]\nname = "{name}"\ntriton_model = "{model}"\nbackend = "t"\nslots = 2\nkind = "infer"\n'
        for name, model in names.items()
    )
    backend = f'[[backends]]\nname = "t"\nurl = "{client_triton.url}"\n'
    head = f'[server]\nport = {port}\n[tokens]\nadmin = "{ADMIN}"\n'
    process, log = start_governor(head + backend + tables, folder)
    url = f"http://127.0.0.1:{port}"
    try:
        trio.run(wait_ready, url, process, log)
        yield url
    finally:
        process.kill()
        process.wait()
