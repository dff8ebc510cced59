"""A real Triton with the models that a module names in `MODELS`; modules that name the same share it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from structlog.testing import capture_logs

from governor.demo.install import Installation, install, why_not_supported
from tests.evidence.bench import LOG
from tests.evidence.lab import Lab, Model

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


@pytest.fixture(scope="session")
def labs() -> Iterator[dict[tuple[Model, ...], Lab]]:
    """Every Triton of this run, by its models."""
    made: dict[tuple[Model, ...], Lab] = {}
    try:
        yield made
    finally:
        for each in made.values():
            each.end_now()


@pytest.fixture
def lab(
    installation: Installation,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    labs: dict[tuple[Model, ...], Lab],
) -> Lab:
    """A Triton with the module's models, running and idle whatever the test before did to it."""
    models = tuple(request.module.MODELS)
    if models not in labs:
        labs[models] = Lab(installation, tmp_path_factory.mktemp("triton"), models)
    trio.run(labs[models].be_idle)
    return labs[models]
