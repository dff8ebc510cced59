"""The contract suite runs twice: against the simulated Triton and against the real one.

The simulated leg takes no real time: its clock jumps from timer to timer. The real leg installs the server
into the project folder where it is missing, starts it once, and is skipped only where the server cannot run.
"""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from governor.demo.triton import Installation, install, why_not_supported
from governor.simulator import demo_models, lab_models, simulated_triton
from tests.contract.real import RealDriver
from tests.contract.simulated import SimulatedDriver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tests.contract.driver import TritonDriver

PROJECT = Path(__file__).parent.parent.parent


def run_without_waiting(async_fn: Callable[..., Awaitable[object]], *args: object, **_options: object) -> object:
    return trio.run(async_fn, *args, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture(scope="session")
def installation() -> Installation:
    reason = why_not_supported()
    if reason is not None:
        pytest.skip(reason)
    return trio.run(partial(install, PROJECT, print))


@pytest.fixture(scope="session")
def real_session(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDriver]:
    driver = RealDriver(installation, tmp_path_factory.mktemp("triton"), _free_ports())
    trio.run(driver.start)
    try:
        yield driver
    finally:
        driver.triton.end_now()


def _free_ports() -> int:
    """A port that is free together with the two after it, below the range the kernel hands out."""
    for port in range(21000, 30000, 10):
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            try:
                for offset, each in enumerate((one, two, three)):
                    each.bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return port
    raise RuntimeError("no three free ports in a row below 30000")


@pytest.fixture
def real_driver(request: pytest.FixtureRequest) -> Iterator[RealDriver | None]:
    """The real leg's driver; whatever the test did to it is undone afterwards."""
    if request.node.callspec.params["leg"] != "real":
        yield None
        return
    driver: RealDriver = request.getfixturevalue("real_session")
    yield driver
    trio.run(driver.heal)


@pytest.fixture(
    params=[
        pytest.param("simulated", marks=pytest.mark.trio(run=run_without_waiting)),
        pytest.param("real", marks=pytest.mark.real_triton),
    ]
)
def leg(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def triton(leg: str, real_driver: RealDriver | None) -> AsyncIterator[TritonDriver]:
    if real_driver is not None:
        yield real_driver
        return
    assert leg == "simulated"
    async with simulated_triton((*lab_models(), *demo_models())) as simulated:
        yield SimulatedDriver(simulated)


@pytest.fixture
async def own_triton(leg: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TritonDriver]:
    """A Triton of the test's own, to be killed: with `nobatch` and `stream` only."""
    if leg == "simulated":
        async with simulated_triton(lab_models(), start_models=("nobatch", "stream")) as simulated:
            yield SimulatedDriver(simulated)
        return
    installation: Installation = request.getfixturevalue("installation")
    driver = RealDriver(installation, tmp_path, _free_ports(), ("nobatch", "stream"))
    try:
        await driver.start()
        yield driver
    finally:
        driver.triton.end_now()
