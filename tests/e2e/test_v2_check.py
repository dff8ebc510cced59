"""Nothing is refused before delivery that Triton would accept, and what is refused is refused in its words (D5)."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import TYPE_CHECKING

import httpx
import pytest

from governor.triton.metadata import parse_model
from governor.triton.outcomes import CallKind
from governor.triton.requestcheck import Fault, RequestHead, find_fault
from tests.e2e.oddities import PLAIN, Made, faulty, generate, good, odd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.demo.triton import RealTriton
    from governor.triton.metadata import ModelFacts

pytestmark = pytest.mark.real_triton

SEED = 20_260_101
REQUESTS = 1_500
STRUCTURE = {*PLAIN, "data missing", "data short", "data odd", "data nested", "binary size", "raw longer"}
"""Faults that are found after everything else was read, or make the data unreadable, which is said first."""


@pytest.fixture(scope="module")
def direct(client_triton: RealTriton) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=client_triton.url, timeout=30) as client:
        yield client


def facts_of(direct: httpx.Client, model: str) -> ModelFacts:
    return parse_model(direct.get(f"/v2/models/{model}/config").json(), {})


def fault_of(made: Made, facts: ModelFacts) -> Fault | None:
    """What the governor would say to an `infer` request."""
    body, fields = made.body()
    text = body[: int(fields.get("Inference-Header-Content-Length", len(body)))]
    head = RequestHead.of(CallKind.INFER, None, text, len(body) - len(text))
    return find_fault(head, facts)


def in_one_order(sentence: str) -> str:
    """Without what depends on the order in which Triton looks at its inputs."""
    sentence = re.sub(r"(for )?input '[^']*'", "input ?", sentence)
    return re.sub(r"\[('[^\]]*')\]", lambda names: ",".join(sorted(names[1].split(","))), sentence)


def assert_same(fault: Fault, answer: httpx.Response, made: Made) -> None:
    told = in_one_order(answer.json()["error"])
    assert (answer.status_code, told) == (fault.status, in_one_order(fault.sentence)), made


def test_infer_is_refused_as_triton_refuses_it(direct: httpx.Client) -> None:
    """Good requests, such with one fault, and odd ones, against every kind of model."""
    dice, seen = random.Random(SEED), Counter[tuple[str, int]]()
    changes = {"good": lambda made, _dice: made, "faulty": faulty, "odd": odd}
    models = {name: facts_of(direct, name) for name in ("every", "labelled", "nobatch", "sleep", "multi", "ens")}
    for _ in range(REQUESTS):
        name = dice.choice(sorted(models))
        how = dice.choice(["good", "faulty", "faulty", "odd", "odd"])
        made = changes[how](good(models[name], dice), dice)
        body, fields = made.body()
        answer = direct.post(f"/v2/models/{name}/infer", content=body, headers=fields)
        fault = fault_of(made, models[name])
        seen[how, answer.status_code] += 1
        if answer.status_code == 200:
            assert fault is None, made
        elif how == "faulty":
            assert fault is not None, (made, answer.text)
            assert_same(fault, answer, made)
        elif fault is not None and set(made.faults) <= STRUCTURE:
            assert answer.status_code == fault.status, (made, answer.text)
    assert set(seen) >= {("good", 200), ("faulty", 200), ("faulty", 400), ("odd", 200), ("odd", 400), ("odd", 500)}, (
        seen
    )


def test_a_batch_of_zero_beside_another_is_left_to_triton(direct: httpx.Client) -> None:
    """It refuses the request, but for another reason where it looks at the input with the zero first."""
    facts, told = facts_of(direct, "multi"), set()
    for counts in ((0, 3), (3, 0)):
        inputs = [
            {"name": name, "datatype": "INT32", "shape": [count, 1], "data": [0] * count}
            for name, count in zip(("X", "DELAY_MS"), counts, strict=True)
        ]
        made = Made({"inputs": inputs})
        answer = direct.post("/v2/models/multi/infer", content=made.body()[0])
        assert answer.status_code == 400
        told.add(in_one_order(answer.json()["error"]).removeprefix("[request id: <id_unknown>] "))
        assert fault_of(made, facts) is None
    assert len(told) == 2, told


def test_generate_is_refused_as_triton_refuses_it(direct: httpx.Client) -> None:
    dice, seen = random.Random(SEED), Counter[tuple[bool, int]]()
    models = {name: facts_of(direct, name) for name in ("nobatch", "multi", "ens", "stream")}
    for _ in range(REQUESTS // 4):
        name, kind = dice.choice(sorted(models)), dice.choice(["generate", "generate_stream"])
        made = generate(models[name], dice)
        body, _fields = made.body()
        answer = direct.post(f"/v2/models/{name}/{kind}", content=body)
        fault = find_fault(RequestHead.of(CallKind(kind), None, body), models[name])
        seen[fault is not None, answer.status_code] += 1
        if answer.status_code == 200:
            assert fault is None, made
        elif made.faults and "odd" not in made.faults:
            assert fault is not None, (made, answer.text)
            assert_same(fault, answer, made)
    assert set(seen) >= {(False, 200), (True, 400), (False, 500)}, seen
