"""A real Triton for each module, with the models that the module names in `MODELS`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from structlog.testing import capture_logs

from governor.demo.install import Installation, install, why_not_supported
from tests.evidence.bench import LOG
from tests.evidence.lab import Lab

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    with capture_logs() as lines:
        LOG.lines = lines
        yield


@pytest.fixture(scope="session")
def installation() -> Installation:
    reason = why_not_supported()
    if reason is not None:
        pytest.skip(reason)
    return trio.run(install, ROOT)


@pytest.fixture(scope="module")
def module_lab(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Lab]:
    lab = Lab(installation, tmp_path_factory.mktemp("triton"), request.module.MODELS)
    try:
        yield lab
    finally:
        lab.end_now()


@pytest.fixture
def lab(module_lab: Lab) -> Lab:
    """The module's Triton, running and idle whatever the test before did to it."""
    trio.run(module_lab.be_idle)
    return module_lab
