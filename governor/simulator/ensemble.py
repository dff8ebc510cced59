"""An ensemble: a request of its own that sends its members' requests, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from governor.simulator.counters import Series, Statistics
from governor.simulator.inference import Failure, Inference, Request, Response
from governor.simulator.inflight import InFlight
from governor.simulator.tensors import RefusedError, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.simulator.config import ModelConfig
    from governor.simulator.load import Load, Surroundings


class EnsembleLoad:
    """One load of an ensemble. Its members count what it makes them do; it counts its own ends.

    Args:
        surroundings: the process it lives in.
        config: the configuration, whose `ensemble` names the steps.
        version: the version.
        series: the metrics of the version.
        member: finds the current load of a member.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        config: ModelConfig,
        version: int,
        series: Series,
        member: Callable[[str], Load | EnsembleLoad | None],
    ) -> None:
        self.config = config
        self.version = version
        self.revision = 0
        self.statistics = Statistics()
        self._around = surroundings
        self._series = series
        self._member = member
        self._in_flight = InFlight()
        series.hold()

    @property
    def in_flight(self) -> int:
        """Requests whose members are not all done."""
        return self._in_flight.count

    def resize(self, instances: int) -> None:
        """An ensemble has no instances of its own."""

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back once nothing is in flight; it takes no new requests from now on."""
        self._in_flight.when_idle(callback)

    def submit(self, inference: Inference) -> None:
        """Begin with the first step."""
        inference.queued_at = self._around.now()
        self._in_flight.enter()
        self._step(inference, 0, dict(inference.request.inputs))

    def _step(self, inference: Inference, index: int, tensors: dict[str, Tensor]) -> None:
        if index == len(self.config.ensemble):
            self._succeed(inference, tensors)
            return
        step = self.config.ensemble[index]
        load = self._member(step.model)
        if load is None:
            self._fail(inference, 500, f"model '{step.model}' is not available")
            return
        given = {inner: replace(tensors[outer], name=inner) for inner, outer in step.inputs.items()}
        answers: list[Response] = []

        def end(failure: Failure | None) -> None:
            error = next((answer for answer in answers if answer.error is not None), None)
            if failure is not None:
                self._fail(inference, failure.status, failure.message)
            elif error is not None:
                self._fail(inference, 400 if error.blames_caller else 500, error.error or "")
            else:
                outputs = {tensor.name: tensor for answer in answers for tensor in answer.outputs}
                made = {
                    outer: replace(outputs[inner], name=outer)
                    for inner, outer in step.outputs.items()
                    if inner in outputs
                }
                self._step(inference, index + 1, {**tensors, **made})

        request = Request(id=inference.request.id, inputs=given)
        try:
            load.submit(Inference(request, on_response=answers.append, on_end=end))
        except RefusedError as refused:
            self._fail(inference, refused.status, str(refused))

    def _succeed(self, inference: Inference, tensors: dict[str, Tensor]) -> None:
        size = inference.request.batch_size if self.config.max_batch_size else 1
        took = self._around.now() - inference.queued_at
        self.statistics.success.add(took)
        self.statistics.inference_count += size
        self.statistics.execution_count += 1
        self.statistics.last_inference_ms = round(self._around.unix_now() * 1000)
        self._series.success += 1
        self._series.inferences += size
        self._series.executions += 1
        outputs = tuple(tensors[spec.name] for spec in self.config.outputs if spec.name in tensors)
        no_sequence: dict[str, str | int | float | bool | None] = {
            "sequence_id": 0,
            "sequence_start": False,
            "sequence_end": False,
        }
        inference.respond(Response(outputs, parameters={**no_sequence}))
        self._in_flight.leave(inference, None)

    def _fail(self, inference: Inference, status: int, message: str) -> None:
        times = self._around.rules.ensemble_failures
        self.statistics.fail.add(self._around.now() - inference.queued_at, times)
        self._series.failures["OTHER"] += times
        self._in_flight.leave(inference, Failure(status, f"in ensemble '{self.config.name}', {message}", "OTHER"))
