"""What `governor check` says of a model: how it is called, its tensors, instances and slots (E12)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.check.fake import NUMBER, TEXT_IN, TEXT_OUT, FakeTriton, bad, config, model_config, only_bad

DECOUPLED = {"model_transaction_policy": {"decoupled": True}}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("infer", "Triton refuses plain infer calls"),
        ("generate", "more or less than one answer"),
        ("generate_stream", None),
    ],
)
async def test_e12_a_decoupled_model_is_called_with_generate_stream(kind: str, words: str | None) -> None:
    report = await FakeTriton(model=model_config(**DECOUPLED)).check(config(f'kind = "{kind}"'))
    if words is None:
        assert bad(report) == []
    else:
        assert words in only_bad(report)
        assert not report.ok


async def test_a_model_that_is_not_decoupled_may_stream() -> None:
    assert bad(await FakeTriton().check(config('kind = "generate_stream"'))) == []


async def test_e12_disconnecting_from_a_decoupled_model_leaves_no_proof() -> None:
    text = 'kind = "generate_stream"\non_abandon = "disconnect"'
    assert "proves nothing" in only_bad(await FakeTriton(model=model_config(**DECOUPLED)).check(config(text)))
    assert bad(await FakeTriton().check(config(text))) == []


@pytest.mark.parametrize(
    ("changes", "model", "level", "words"),
    [
        ({"input": [NUMBER]}, "", "error", 'it has no input "text_input", so prompts cannot be sent'),
        ({"input": []}, 'kind = "infer"', "warning", "call it through /v2 only"),
        ({"input": []}, 'kind = "infer"\ntext_input = "text_input"', "error", "it has no input"),
        ({"output": [NUMBER]}, "", "error", 'it has no output "text_output"'),
        ({"input": [{**TEXT_IN, "name": "PROMPT"}]}, "", "error", 'set text_input to its text input: "PROMPT"'),
        (
            {"input": [{**NUMBER, "name": "text_input"}]},
            "",
            "error",
            'its input "text_input" is INT32, not text (BYTES)',
        ),
        ({"input": [TEXT_IN, NUMBER]}, "", "error", 'it also needs the inputs "N"'),
        ({"input": [TEXT_IN, NUMBER]}, 'kind = "infer"\nparameters = { N = 1 }', "error", "To do: make them optional"),
        ({"input": [TEXT_IN, NUMBER]}, "parameters = { N = 1 }", "ok", ""),
        ({"input": [TEXT_IN, {**NUMBER, "optional": True}]}, "", "ok", ""),
        ({"output": [TEXT_OUT, NUMBER]}, "", "ok", ""),
    ],
)
async def test_the_text_tensors_exist_hold_text_and_are_enough(
    changes: dict[str, Any], model: str, level: str, words: str
) -> None:
    report = await FakeTriton(model=model_config(**changes)).check(config(model))
    if level == "ok":
        assert bad(report) == []
    else:
        line = only_bad(report)
        assert line.startswith(level)
        assert words in line


def group(count: int, *gpus: int) -> dict[str, Any]:
    return {"kind": "KIND_GPU", "count": count, "gpus": list(gpus)}


@pytest.mark.parametrize(
    ("changes", "slots", "room"),
    [
        ({"instance_group": [group(1)]}, 1, None),
        ({"instance_group": [group(1)]}, 2, "1 call at once (1 instance)"),
        ({"instance_group": [group(2, 0, 1)]}, 4, None),
        ({"instance_group": [group(2, 0, 1)]}, 5, "4 calls at once (4 instances)"),
        ({"instance_group": [group(1), group(2)]}, 4, "3 calls at once"),
        ({"max_batch_size": 8}, 3, "2 calls at once (2 instances)"),
        ({"max_batch_size": 8, "dynamic_batching": {}}, 16, None),
        ({"max_batch_size": 8, "dynamic_batching": {}}, 17, "16 calls at once (2 instances of up to 8 requests)"),
        ({"backend": "vllm"}, 100, None),
        ({"instance_group": []}, 100, None),
        ({"instance_group": [{**group(1), "passive": True}]}, 100, None),
        ({"instance_group": [{**group(1), "passive": True}, group(2)]}, 3, "2 calls at once"),
        ({"instance_group": [{"gpus": [0, 1]}]}, 3, "2 calls at once"),
    ],
)
async def test_more_slots_than_executions_is_a_warning(changes: dict[str, Any], slots: int, room: str | None) -> None:
    report = await FakeTriton(model=model_config(**changes)).check(config(f"slots = {slots}"))
    assert report.ok
    if room is None:
        assert bad(report) == []
    else:
        line = only_bad(report)
        assert f"slots = {slots}, but it runs up to {room}" in line
        assert "wait inside Triton" in line


async def test_e12_an_ensemble_is_recognised() -> None:
    ensemble = model_config(platform="ensemble", backend="", instance_group=[], ensemble_scheduling={"step": []})
    assert "one failed request counts twice" in only_bad(await FakeTriton(model=ensemble).check(config("slots = 9")))


@pytest.mark.parametrize("configured", ["3", "[]", "null", "{}", '{"name": 3}', "nonsense"])
async def test_a_configuration_that_is_none_is_survived(configured: str) -> None:
    answers = {"/v2/models/chat/config": (200, configured.encode())}
    assert "its configuration cannot be read" in only_bad(await FakeTriton(answers=answers).check(config()))


@pytest.mark.parametrize("key", ["input", "output", "instance_group", "model_transaction_policy", "max_batch_size"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [None], [{}], -1, True])
async def test_odd_model_configurations_are_survived(key: str, value: object) -> None:
    assert (await FakeTriton(model=model_config(**{key: value})).check(config())).findings
