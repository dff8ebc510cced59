"""E5: what answers count, and how the target stays exact: refused requests, failures, ensembles, warm-up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from governor.triton.outcomes import CallKind
from tests.evidence.bench import governed
from tests.evidence.lab import Model, infer_body

if TYPE_CHECKING:
    from governor.errors import JsonValue
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [
    Model("work", instances=3),
    Model("ens", source="ensemble"),
]


def infer(**changes: JsonValue) -> bytes:
    """An infer body, changed."""
    return json.dumps({**infer_body("ID", 1), **changes}).encode()


def second_input(**changes: JsonValue) -> bytes:
    """An infer body whose second input is changed."""
    inputs = infer_body("ID", 1)["inputs"]
    assert isinstance(inputs, list)
    first, second = inputs
    assert isinstance(second, dict)
    return infer(inputs=[first, {**second, **changes}])


BAD_REQUESTS: dict[str, tuple[int, bytes]] = {
    "wrong shape": (400, second_input(shape=[2], data=[1, 2])),
    "wrong type": (400, second_input(datatype="FP32")),
    "missing input": (400, infer(inputs=[])),
    "unknown output": (400, infer(outputs=[{"name": "NOPE"}])),
    "not JSON": (500, b'{"id": "ID", "inputs": ['),
    "empty": (400, b""),
    "less data than the shape says": (500, second_input(data=[])),
    "more data than the shape says": (500, second_input(data=[1, 2, 3])),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
async def test_refused_request_leaves_the_target_reachable(lab: Lab, name: str) -> None:
    """E5: Triton refuses it without counting it, as 400 or 500. A call broken afterwards is still provable, and one
    that executes meanwhile does not end by it."""
    status, body = BAD_REQUESTS[name]
    async with governed(lab, slots=2, poll_s=0.1) as bench:
        assert await bench.call() == 200
        assert await bench.submit(body=body).status() == status
        broken = await bench.broken(200)
        assert await bench.submit(body=body).status() == status
        await bench.freed_by_the_end(broken)


@pytest.mark.parametrize("kind", CallKind, ids=lambda kind: kind.value)
async def test_failures_that_count_keep_the_target_exact(lab: Lab, kind: CallKind) -> None:
    """E5: an error response counts as S, a raise as F; before and beside a broken call, by every way of calling."""
    async with governed(lab, slots=2) as bench:
        for x in (-1, -99):
            assert await bench.call(x=x, kind=kind) in {400, 500}
        broken = await bench.broken(400, kind=kind)
        for x in (-1, -99, 5):
            assert await bench.call(x=x, kind=kind) in {200, 400, 500}
        await bench.freed_by_the_end(broken)
        assert bench.statistics.ledger_totals.contested == 0


async def test_unknown_version_leaves_the_target_reachable(lab: Lab) -> None:
    """E5: 404, which `infer` frames as an answer of the model's own: whether it counted is settled by a reading."""
    async with governed(lab) as bench:
        assert await bench.submit(version="7").status() == 404
        await bench.settle()
        await bench.freed_by_the_end(await bench.broken(300))


async def test_failing_ensemble_never_frees_a_broken_call(lab: Lab) -> None:
    """E5, E12: a failure counts two and could hide a missing end. Failures before a broken call and while it runs,
    and again; each credit comes back after the end of its own work."""
    async with governed(lab, "ens", slots=3) as bench:
        for _ in range(3):
            assert await bench.call(x=-99) == 500
            broken = await bench.broken(500)
            assert [await bench.call(x=x) for x in (-99, -1, 5)] == [500, 500, 200]
            await bench.freed_by_the_end(broken)


async def test_ensemble_that_succeeds_and_fails_is_quiet_in_time(lab: Lab) -> None:
    """E5, E12: successes and failures, then a pause in which they settle, then a broken call: freed by its end."""
    async with governed(lab, "ens", slots=2) as bench:
        assert [await bench.call(x=x) for x in (5, -99, 5, -1)] == [200, 500, 200, 500]
        await bench.settle()
        for _ in range(2):
            await bench.freed_by_the_end(await bench.broken(300))
            await bench.settle()
