"""The simulation without HTTP: what a world counts, driven by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from governor.simulator import ManualScheduler, World, lab_models
from governor.simulator.inference import Failure, Inference, Request, Response
from governor.simulator.rules import rules_of
from governor.simulator.tensors import RefusedError, Tensor

if TYPE_CHECKING:
    from governor.simulator.process import Process


class Call:
    """One inference and everything that came of it."""

    def __init__(self, process: Process, model: str, delay_ms: int, x: int = 5, name: str = "DELAY_MS") -> None:
        second = "N" if model in {"stream", "late"} else "X"
        shape = (1, 1) if process.find(model).config.max_batch_size else (1,)
        inputs = {key: Tensor(key, "INT32", shape, (value,)) for key, value in ((name, delay_ms), (second, x))}
        self.responses: list[Response] = []
        self.ends: list[Failure | None] = []
        self.inference = Inference(Request("", inputs), on_response=self.responses.append, on_end=self.ends.append)
        process.submit(process.find(model), self.inference)


def counts(process: Process, model: str) -> tuple[int, int]:
    load = process.find(model)
    return load.statistics.success.count, load.statistics.fail.count


def world_of(version: str = "2.51.0") -> tuple[ManualScheduler, World, Process]:
    time = ManualScheduler()
    world = World(lab_models(), time, version=version)
    return time, world, world.boot()


@pytest.mark.parametrize(("version", "expected"), [("2.44.0", (0, 1)), ("2.45.0", (1, 0)), ("2.51.0", (1, 0))])
def test_error_response_is_a_failure_up_to_2_44(version: str, expected: tuple[int, int]) -> None:
    time, _world, process = world_of(version)
    Call(process, "nobatch", 10, -1)
    time.advance(1)
    assert counts(process, "nobatch") == expected


@pytest.mark.parametrize(("version", "failures"), [("2.47.0", 0), ("2.48.0", 1), ("2.51.0", 1)])
def test_queue_timeout_counts_from_2_48_on(version: str, failures: int) -> None:
    time, _world, process = world_of(version)
    Call(process, "sleep_q", 900)
    waiting = Call(process, "sleep_q", 1)
    time.advance(1)
    assert waiting.ends == [Failure(503, "Request timeout expired", "REJECTED")]
    assert counts(process, "sleep_q") == (1, failures)


@pytest.mark.parametrize(("version", "weight"), [("2.40.0", 2), ("2.41.0", 1), ("2.47.0", 1), ("2.48.0", 2)])
def test_failure_of_an_ensemble_weighs_one_or_two(version: str, weight: int) -> None:
    time, _world, process = world_of(version)
    Call(process, "ens", 10, -99)
    time.advance(1)
    assert counts(process, "ens") == (0, weight)


def test_versions_are_told_apart_and_nonsense_is_refused() -> None:
    assert rules_of("2.41").every_error_is_400
    assert not rules_of("2.42").every_error_is_400
    for version in ("3.0.0", "2", "2.x", "two"):
        with pytest.raises(ValueError, match=r"is no Triton version: give one like \"2\.51\.0\""):
            rules_of(version)


def test_counters_lag_behind_the_answer_when_told_to() -> None:
    time, _world, process = world_of()
    process.counter_lag_s = 0.36
    call = Call(process, "nobatch", 100)
    time.advance(0.1)
    assert call.ends == [None]
    assert counts(process, "nobatch") == (0, 0)
    time.advance(0.36)
    assert counts(process, "nobatch") == (1, 0)


def test_killed_process_ends_no_inference_and_logs_no_end() -> None:
    time, world, process = world_of()
    call = Call(process, "nobatch", 1000)
    world.kill()
    time.advance(5)
    assert call.ends == []
    assert [line["what"] for line in world.worklog.lines] == ["start"]
    assert world.boot() is not process
    assert world.boots == 2


def test_second_process_beside_a_living_one_is_refused() -> None:
    _time, world, _process = world_of()
    with pytest.raises(RuntimeError, match="kill it first"):
        world.boot()


def test_instances_work_side_by_side_and_the_log_shows_it() -> None:
    time, world, process = world_of()
    for _ in range(3):
        Call(process, "nobatch", 100)
    time.advance(1)
    assert world.worklog.highest_concurrency("nobatch") == 1
    process.find("nobatch").resize(3)
    for _ in range(3):
        Call(process, "nobatch", 100)
    time.advance(1)
    assert world.worklog.highest_concurrency("nobatch") == 3


def test_full_queue_refuses_at_once_and_counts_nothing() -> None:
    _time, _world, process = world_of()
    for _ in range(3):
        Call(process, "sleep_q", 900)
    with pytest.raises(RefusedError, match="Exceeds maximum queue size"):
        Call(process, "sleep_q", 1)
    assert process.in_flight == 3


def test_old_load_counts_in_the_metrics_of_its_process_only() -> None:
    time, world, process = world_of()
    Call(process, "nobatch", 1000)
    world.repository["nobatch"] = world.repository["nobatch"].changed()
    process.load_model("nobatch")
    time.advance(2)
    assert counts(process, "nobatch") == (0, 0)
    assert 'nv_inference_request_success{model="nobatch",version="1"} 1\n' in process.metrics()


def test_thread_of_a_model_goes_on_after_it_was_counted() -> None:
    time, world, process = world_of()
    call = Call(process, "late", 100, 3)
    assert counts(process, "late") == (1, 0)
    assert call.ends == []
    time.advance(1)
    assert (len(call.responses), call.ends) == (3, [None])
    assert [line["t"] for line in world.worklog.lines][1] == pytest.approx(world.unix_now() - 0.7)


def test_model_sees_the_cancellation_only_after_its_first_response() -> None:
    time, _world, process = world_of()
    call = Call(process, "stream", 100, 2)
    call.inference.client_left()
    assert not call.inference.is_cancelled
    time.advance(0.1)
    assert call.inference.is_cancelled
