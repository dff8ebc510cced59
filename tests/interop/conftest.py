"""A simulated Triton and a governor in front of it, each a process of its own, and the client under Node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from governor.demo.ports import free_ports
from tests.e2e.pair import governor_in_front
from tests.e2e.simulated import simulated_triton
from tests.e2e.stack import Governor, governor_config, running_governor
from tests.interop import node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def client_package() -> None:
    reason = node.why_not_here()
    if reason is not None:
        pytest.skip(reason)
    node.install()


@pytest.fixture(scope="session")
def triton_url(client_package: None) -> Iterator[str]:
    """The URL of a simulated Triton."""
    with simulated_triton() as url:
        yield url


@pytest.fixture
def govern(triton_url: str, tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Governor]]:
    """Runs a governor of the test's own; `limits`, `server` and `backend` are lines of its configuration file."""

    def run(**lines: str) -> AbstractAsyncContextManager[Governor]:
        (port,) = free_ports(1)
        config = governor_config(port=port, triton_url=triton_url, metrics_url=None, **lines)
        return running_governor(config, port, tmp_path)

    return run


@pytest.fixture(scope="session")
def shared_url(triton_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the governor of all tests that need nothing special."""
    with governor_in_front(triton_url, tmp_path_factory.mktemp("governor")) as url:
        yield url
