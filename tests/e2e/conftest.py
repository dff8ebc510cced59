"""A real Triton with the demo models, once for the whole run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from governor.demo.install import Installation, install, why_not_supported
from governor.demo.ports import free_ports
from governor.demo.triton import DEMO_MODELS, RealTriton

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
MODELS = ["sentiment", "storyteller", "slow"]


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
