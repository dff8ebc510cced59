"""A browser, a governor to look at, and pages of its own for each test. `make test-ui` installs what this needs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.ui.browser.chromium import ARGUMENTS, MISSING, find

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

    from tests.ui.browser.backstage import Backstage
    from tests.ui.browser.stage import Stage, Visitor

# Without playwright these tests cannot even be read; `make test-ui` installs it.
collect_ignore_glob = ["*"] if find_spec("playwright") is None else []


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    path = find()
    if path is None:
        pytest.fail(MISSING, pytrace=False)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=[*ARGUMENTS])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def backstage() -> Iterator[Backstage]:
    from tests.ui.browser.backstage import Backstage

    with Backstage() as running:
        yield running


@pytest.fixture(scope="session")
def whole_stage(backstage: Backstage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A governor in front of a simulated Triton whose connections can be broken."""
    from tests.ui.browser.stage import simulated_stage

    with simulated_stage(backstage, tmp_path_factory.mktemp("stage")) as running:
        yield running


@pytest.fixture(scope="module")
def stage(whole_stage: Stage) -> Iterator[Stage]:
    """The same, and nothing is left of what others did with it."""
    yield whole_stage
    whole_stage.clear()


@pytest.fixture
def visitor(browser: Browser, stage: Stage, tmp_path: Path) -> Iterator[Visitor]:
    """A page that is open and not signed in; whatever it complains about fails the test."""
    from tests.ui.browser.stage import visiting

    with visiting(browser, stage.url, tmp_path) as visiting_page:
        yield visiting_page
