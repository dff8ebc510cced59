"""Readings: one consistent observation of a model's counters, taken over lanes of their own (E5, E9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import httpx
import trio

from governor.core.counting import Reading
from governor.errors import BackendError, BackendUnavailableError
from governor.triton.lane import Lane
from governor.triton.metrics import MAX_METRICS_BYTES, parse_process_counts
from governor.triton.statistics import MAX_STATISTICS_BYTES, ReadingRefusedError, Refusal, parse_statistics
from governor.triton.text import error_message
from governor.triton.wire import WireRequest, model_path

if TYPE_CHECKING:
    from governor.core.counting import Counts
    from governor.triton.lane import Stamp
    from governor.triton.statistics import ModelCounts


@dataclass(frozen=True, slots=True)
class TritonReading:
    """One observation.

    Attributes:
        counts: the model's statistics.
        process: S and F in the life of the process; None when not asked for, not exported, or not certainly from
            the same process as `counts`.
        process_problem: why `process` is missing although it was asked for; None when nothing failed.
        generation: number of the connection that carried `counts`: two readings with the same number are from
            the same process.
        boot: what that connection's stamp said (E8).
    """

    counts: ModelCounts
    process: Counts | None
    process_problem: str | None
    generation: int
    boot: str | None

    @property
    def process_ends(self) -> int | None:
        """S + F in the life of the process."""
        return None if self.process is None else self.process.success + self.process.fail

    def evidence(self) -> Reading:
        """The reading as the ledger takes it."""
        return Reading(
            model=self.counts.counts,
            versions=frozenset(each.version for each in self.counts.versions),
            life=self.counts.life,
            process=self.process,
            boot=self.boot,
        )


class StatisticsReader:
    """Reads one model's counters. Readings asked for at the same time are taken one after the other.

    The metrics port is another connection, so it may lead to another process than the statistics. Statistics on one
    connection before and after the metrics show that its process was alive on both sides, and it alone can hold the
    metrics port.

    The metrics are read before the statistics that are reported with them: a load whose warm-up is in the metrics is
    then one that the statistics show (ADR-0002).

    Args:
        base_url: Triton's HTTP port, as a lane takes it.
        metrics_url: Triton's metrics, `/metrics` when the URL names no path; None to do without.
        model: Triton's name of the model.
        timeout_ms: bound on one whole reading.
        stamp: asked on every fresh connection for the statistics.

    Raises:
        ValueError: a URL cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        metrics_url: str | None,
        model: str,
        *,
        timeout_ms: int = 2_000,
        stamp: Stamp | None = None,
    ) -> None:
        self._model = model
        self._timeout_ms = timeout_ms
        self._lane = Lane(base_url, connect_timeout_ms=timeout_ms, stamp=stamp)
        self._request = WireRequest(method="GET", path=model_path(model, None, "stats"))
        self._metrics: Lane | None = None
        if metrics_url is not None:
            url = httpx.URL(metrics_url)
            path = url.raw_path.decode("ascii")
            self._metrics_request = WireRequest(method="GET", path="/metrics" if path == "/" else path)
            self._metrics = Lane(str(url.copy_with(raw_path=b"/")), connect_timeout_ms=timeout_ms)
        self._read_on = 0
        self._turn = trio.Lock()

    async def read(self) -> TritonReading:
        """Take one reading.

        A failure of the metrics alone costs only `process`. Any failure closes the connection it happened on.

        Raises:
            ReadingRefusedError: the backend answered, but not with counts of this model.
            BackendUnavailableError: it could not be reached, or the time was up.
            ConnectionLostError, BackendProtocolError: the connection broke, or what came back is no HTTP.
        """
        with trio.move_on_after(self._timeout_ms / 1000):
            async with self._turn:
                return await self._read()
        raise BackendUnavailableError(f"{self._lane.origin} gave no reading within {self._timeout_ms} ms")

    def close_idle(self) -> None:
        """Close the connections unless a reading is under way: an open one delays Triton's own shutdown."""
        for lane in self._lanes():
            if lane.idle:
                lane.close()

    async def aclose(self) -> None:
        """Close the connections; a reading under way fails."""
        for lane in self._lanes():
            await lane.aclose()

    def _lanes(self) -> list[Lane]:
        return [self._lane] if self._metrics is None else [self._lane, self._metrics]

    async def _read(self) -> TritonReading:
        process, problem = None, None
        if self._metrics is not None:
            if not self._lane.connected or self._lane.generation != self._read_on:
                await self._read_statistics()
            before = self._lane.generation
            try:
                process = await self._read_process(self._metrics)
            except BackendError as error:
                problem = error.message
        counts = await self._read_statistics()
        if process is not None and self._lane.generation != before:
            process, problem = None, "the connection changed between statistics and metrics"
        return TritonReading(counts, process, problem, self._lane.generation, self._lane.boot)

    async def _read_statistics(self) -> ModelCounts:
        status, body = await self._lane.fetch(
            self._request, max_bytes=MAX_STATISTICS_BYTES, timeout_ms=self._timeout_ms
        )
        try:
            if status != 200:
                _refuse(status, error_message(body))
            counts = parse_statistics(body, self._model)
        except ReadingRefusedError:
            self._lane.close()
            raise
        self._read_on = self._lane.generation
        return counts

    async def _read_process(self, lane: Lane) -> Counts | None:
        # Half the time: metrics that hang must not cost the statistics.
        status, body = await lane.fetch(
            self._metrics_request, max_bytes=MAX_METRICS_BYTES, timeout_ms=self._timeout_ms // 2
        )
        try:
            if status != 200:
                _refuse(status, "no metrics")
            return parse_process_counts(body, self._model)
        except ReadingRefusedError:
            lane.close()
            raise


def _refuse(status: int, message: str) -> NoReturn:
    unavailable = status in {400, 404} and "not available" in message
    raise ReadingRefusedError(
        Refusal.MODEL_UNAVAILABLE if unavailable else Refusal.HTTP_STATUS, f"status {status}: {message}"
    )
