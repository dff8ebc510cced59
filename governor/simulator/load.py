"""One load of one model version: its queue, its instances, its executions and its statistics."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from governor.simulator.counters import Series, Statistics, Tally
from governor.simulator.inference import (
    Detach,
    Failure,
    Inference,
    ModelRaisedError,
    Response,
    Send,
    Sleep,
    Step,
    Twin,
)
from governor.simulator.inflight import InFlight
from governor.simulator.tensors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from governor.simulator.config import Batcher, ModelConfig
    from governor.simulator.rules import Rules
    from governor.simulator.tensors import Element

_UNHEALTHY_S = 1.0
"""How long Triton waits for a dead model process before it fails the request."""


class Surroundings(Protocol):
    """What a load needs of the process it lives in; after the process died, no callback comes any more."""

    @property
    def rules(self) -> Rules:
        """The release's rules."""

    @property
    def counter_lag_s(self) -> float:
        """How far the counters lag behind the answers."""

    def now(self) -> float:
        """Seconds on the world's clock."""

    def unix_now(self) -> float:
        """Unix seconds."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> object:
        """Call back later, unless the process is dead by then."""


class Instance:
    """One model process: works on one batch at a time."""

    def __init__(self) -> None:
        self.busy = False
        self.dead = False


class Load:
    """One load of one version of a model. A reload makes a new one; the old one works on beside it.

    Args:
        surroundings: the process it lives in.
        config: the configuration it was loaded with.
        version: the version.
        twin: what the model does.
        series: the metrics it shares with every other load of the version in this process.
    """

    def __init__(
        self, surroundings: Surroundings, config: ModelConfig, version: int, twin: Twin, series: Series
    ) -> None:
        self.config = config
        self.version = version
        self.revision = 0
        self.statistics = Statistics()
        self._around = surroundings
        self._twin = twin
        self._series = series
        self._instances = [Instance() for _ in range(config.instances)]
        self._queue: deque[Inference] = deque()
        self._cache: dict[tuple[object, ...], tuple[Response, ...]] = {}
        self._in_flight = InFlight()
        series.hold()
        if config.warmup_count:
            self.statistics.success.add(0.0, config.warmup_count)
            self.statistics.inference_count += config.warmup_count
            self.statistics.execution_count += config.warmup_count
            series.success += config.warmup_count

    @property
    def in_flight(self) -> int:
        """Inferences queued or executing, those of detached threads included."""
        return self._in_flight.count

    def resize(self, instances: int) -> None:
        """Change the number of instances; Triton keeps the load and its counters."""
        idle = [instance for instance in self._instances if not instance.busy]
        while len(self._instances) > instances and idle:
            self._instances.remove(idle.pop())
        self._instances += [Instance() for _ in range(instances - len(self._instances))]
        self._dispatch()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back once nothing is in flight; it takes no new inferences from now on."""
        self._in_flight.when_idle(callback)

    def submit(self, inference: Inference) -> None:
        """Queue an inference.

        Raises:
            RefusedError: the queue is full; it executes nothing and counts nothing.
        """
        batcher = self.config.batcher
        if batcher is not None and 0 < batcher.max_queue_size <= len(self._queue):
            label = inference.request.id or "<id_unknown>"
            raise RefusedError(503, f"[request id: {label}] Exceeds maximum queue size")
        inference.queued_at = self._around.now()
        self._in_flight.enter()
        self._series.pending += 1
        if self.config.response_cache and self._answer_from_cache(inference):
            return
        self._queue.append(inference)
        self._dispatch()

    # -- queue ---------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        while self._queue:
            instance = next((one for one in self._instances if not one.busy), None)
            if instance is None:
                return
            batch = self._next_batch()
            if not batch:
                return
            self._series.pending -= len(batch)
            self._execute(instance, batch)

    def _next_batch(self) -> list[Inference]:
        batcher = self.config.batcher
        if batcher is None:
            return [self._queue.popleft()]
        self._reject_overdue(batcher)
        room = max(1, self.config.max_batch_size)
        batch: list[Inference] = []
        for inference in self._queue:
            if batch and inference.request.batch_size > room:
                break
            room -= inference.request.batch_size
            batch.append(inference)
        if not batch:
            return []
        waited = self._around.now() - batch[0].queued_at
        if room > 0 and waited < batcher.max_queue_delay_s:
            self._around.call_later(batcher.max_queue_delay_s - waited, self._dispatch)
            return []
        for _ in batch:
            self._queue.popleft()
        return batch

    def _reject_overdue(self, batcher: Batcher) -> None:
        """Triton looks at queue timeouts only when it could start a batch."""
        now = self._around.now()
        for inference in list(self._queue):
            timeout_s = batcher.timeout_s
            if batcher.allow_timeout_override and inference.request.timeout_s is not None:
                timeout_s = inference.request.timeout_s
            if timeout_s is not None and now - inference.queued_at > timeout_s:
                self._queue.remove(inference)
                self._series.pending -= 1
                if self._around.rules.queue_timeout_counts:
                    self._count_failure(inference.queued_at, "REJECTED")
                self._in_flight.leave(inference, Failure(503, "Request timeout expired", "REJECTED"))

    # -- execution -----------------------------------------------------------------------------------------

    def _execute(self, instance: Instance, batch: list[Inference]) -> None:
        instance.busy = True
        if instance.dead:
            self._around.call_later(_UNHEALTHY_S, lambda: self._unhealthy(instance, batch))
            return
        torn = next((one.request.torn for one in batch if one.request.torn is not None), None)
        if torn is not None:
            self._fail_batch(instance, batch, Failure(400, torn, "BACKEND"))
            return
        started = self._around.now()
        answers: list[list[Response]] = [[] for _ in batch]
        self._go_on(self._twin.execute(batch), instance, batch, answers, started)

    def _go_on(
        self,
        steps: Iterator[Step],
        instance: Instance,
        batch: list[Inference],
        answers: list[list[Response]],
        started: float,
    ) -> None:
        """Follow a model's steps until it computes, returns or dies."""
        try:
            for step in steps:
                if isinstance(step, Sleep):
                    self._around.call_later(step.seconds, lambda: self._go_on(steps, instance, batch, answers, started))
                    return
                if isinstance(step, Send):
                    answers[step.index].append(step.response)
                    batch[step.index].respond(step.response)
                elif isinstance(step, Detach):
                    self._returned(batch, answers, started)
                    self._free(instance)
                    self._follow_thread(step.steps, batch)
                    return
                else:
                    self._die(instance, batch)
                    return
        except ModelRaisedError as raised:
            name = f"{self.config.name}_0_0"
            message = f"Failed to process the request(s) for model '{name}', message: {raised}"
            self._count(self._count_raise)
            self._fail_batch(instance, batch, Failure(500, message, "BACKEND"))
            return
        self._returned(batch, answers, started)
        for inference in batch:
            self._in_flight.leave(inference, None)
        self._free(instance)

    def _follow_thread(self, steps: Iterator[Step], batch: list[Inference]) -> None:
        """Go on with a thread that a model left behind: its inferences are counted, but not ended."""
        for step in steps:
            if isinstance(step, Sleep):
                self._around.call_later(step.seconds, lambda: self._follow_thread(steps, batch))
                return
            assert isinstance(step, Send), "a thread of a model can only compute and send"
            batch[step.index].respond(step.response)
        for inference in batch:
            self._in_flight.leave(inference, None)

    def _returned(self, batch: list[Inference], answers: list[list[Response]], started: float) -> None:
        """The model returned from execute(): its inferences count now."""
        now = self._around.now()
        queued = [inference.queued_at for inference in batch]
        sizes = [inference.request.batch_size if self.config.max_batch_size else 1 for inference in batch]
        errors = [any(response.error is not None for response in given) for given in answers]
        self._count(lambda: self._count_execution(now, started, queued, sizes, errors))
        if self.config.response_cache:
            for inference, given in zip(batch, answers, strict=True):
                self._cache[_cache_key(inference)] = tuple(given)

    def _die(self, instance: Instance, batch: list[Inference]) -> None:
        instance.dead = True
        self._around.call_later(_UNHEALTHY_S, lambda: self._unhealthy(instance, batch))

    def _unhealthy(self, instance: Instance, batch: list[Inference]) -> None:
        message = f"Stub process '{self.config.name}_0_0' is not healthy."
        self._fail_batch(instance, batch, Failure(500, message, "BACKEND"))

    def _fail_batch(self, instance: Instance, batch: list[Inference], failure: Failure) -> None:
        for inference in batch:
            self._count_failure(inference.queued_at, failure.reason)
            self._in_flight.leave(inference, failure)
        self._free(instance)

    def _free(self, instance: Instance) -> None:
        instance.busy = False
        self._dispatch()

    # -- counting ------------------------------------------------------------------------------------------

    def _count(self, step: Callable[[], None]) -> None:
        """Count now, or as much later as the counters lag behind the answers."""
        if self._around.counter_lag_s > 0:
            self._around.call_later(self._around.counter_lag_s, step)
        else:
            step()

    def _count_raise(self) -> None:
        """An execution that raised is an execution all the same."""
        self.statistics.execution_count += 1
        self._series.executions += 1

    def _count_failure(self, queued_at: float, reason: str) -> None:
        self._count(lambda: self._fail(queued_at, reason))

    def _fail(self, queued_at: float, reason: str) -> None:
        self.statistics.fail.add(self._around.now() - queued_at)
        self._series.failures[reason] += 1

    def _count_execution(
        self, now: float, started: float, queued: list[float], sizes: list[int], errors: list[bool]
    ) -> None:
        statistics, series = self.statistics, self._series
        for queued_at, size, error in zip(queued, sizes, errors, strict=True):
            if error and self._around.rules.error_response_fails:
                self._fail(queued_at, "BACKEND")
                continue
            statistics.success.add(now - queued_at)
            statistics.queue.add(started - queued_at)
            statistics.compute.add(now - started)
            statistics.inference_count += size
            series.success += 1
            series.inferences += size
            series.request_us += round((now - queued_at) * 1e6)
            series.compute_us += round((now - started) * 1e6)
            if self.config.response_cache:
                statistics.cache_miss.add(0.0)
        statistics.execution_count += 1
        series.executions += 1
        statistics.batches.setdefault(sum(sizes), Tally()).add(now - started)
        statistics.last_inference_ms = round(self._around.unix_now() * 1000)

    # -- response cache ------------------------------------------------------------------------------------

    def _answer_from_cache(self, inference: Inference) -> bool:
        cached = self._cache.get(_cache_key(inference))
        if cached is None:
            return False
        self._series.pending -= 1
        self._count(self._count_hit)
        for response in cached:
            # The cache keeps outputs only: an error comes back as a success without any.
            inference.respond(Response(response.outputs))
        self._in_flight.leave(inference, None)
        return True

    def _count_hit(self) -> None:
        self.statistics.success.add(0.0)
        self.statistics.queue.add(0.0)
        self.statistics.cache_hit.add(0.0)
        self._series.success += 1


def _cache_key(inference: Inference) -> tuple[tuple[str, tuple[Element, ...]], ...]:
    return tuple(sorted((name, tensor.elements) for name, tensor in inference.request.inputs.items()))
