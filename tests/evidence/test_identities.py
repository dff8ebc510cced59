"""Two servers with a model of the same name are two identities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from governor.core.claims import ClaimState
from tests.evidence.bench import governed
from tests.evidence.lab import Lab, Model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.demo.install import Installation

pytestmark = pytest.mark.real_triton

MODELS = [Model("work", instances=4)]


@pytest.fixture(scope="module")
def second_lab(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(installation, tmp_path_factory.mktemp("second"), MODELS)
    try:
        trio.run(lab.be_idle)
        yield lab
    finally:
        lab.end_now()


async def test_neither_calls_nor_restarts_of_one_server_say_anything_of_the_other(lab: Lab, second_lab: Lab) -> None:
    """E5, E6: a broken call on the first; on the second, calls that count, a reload and a restart of the process."""
    async with governed(lab, backend="first") as first, governed(second_lab, backend="second") as second:
        assert await first.call() == 200
        assert await second.call() == 200
        broken = await first.broken(6_000)
        for _ in range(3):
            assert await second.call() == 200
        await second_lab.reload("work")
        assert await second.call() == 200
        await second_lab.kill()
        await second_lab.restart()
        assert await second.call() == 200
        assert first.states == {ClaimState.RECONCILING: 1}
        await first.freed_by_the_end(broken)
        ours, theirs = first.statistics.ledger_totals, second.statistics.ledger_totals
        assert (ours.restarts, ours.reloads, ours.proven_quiet) == (0, 0, 1)
        assert theirs.restarts == 1
        assert first.statistics.ledger.boot != second.statistics.ledger.boot
