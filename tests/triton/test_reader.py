"""E5, E7, E9: readings over real connections, whatever the backend does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from governor.core.counting import Counts, Reading
from governor.errors import BackendError, BackendUnavailableError, ConnectionLostError
from governor.triton.reader import StatisticsReader
from governor.triton.statistics import MAX_STATISTICS_BYTES, ReadingRefusedError
from tests.triton.peer import PATIENCE_S, Connection, Peer, open_peer
from tests.triton.test_statistics import ENTRY, document

if TYPE_CHECKING:
    from governor.triton.lane import FreshConnection

METRICS = b'nv_inference_request_success{model="m",version="1"} 50\nnv_inference_request_failure{model="m"} 4\n'


class Triton:
    """A server that counts what it is asked for; answers may be replaced."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.answers = {
            b"/v2/models/m/stats": (200, document(ENTRY)),
            b"/metrics": (200, METRICS),
            b"/other": (200, METRICS),
        }
        self.asked: list[bytes] = []
        self.connections: list[Connection] = []

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                connection = await self.peer.accept()
                self.connections.append(connection)
                nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: Connection) -> None:
        try:
            while True:
                path = (await connection.read_request()).split(b" ")[1]
                self.asked.append(path)
                status, body = self.answers[path]
                if status == 0:
                    await trio.sleep_forever()
                await connection.send(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        except (EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
            connection.close()


async def test_reading_holds_the_models_counts_and_reuses_its_connection() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        triton = Triton(peer)
        nursery.start_soon(triton.run)
        reader = StatisticsReader(peer.url, None, "m")
        for _ in range(3):
            reading = await reader.read()
            assert (reading.counts.ends, reading.process, reading.process_problem) == (7, None, None)
            assert (reading.generation, reading.boot) == (1, None)
        assert reading.evidence() == Reading(
            model=Counts(5, 2), versions=frozenset({"1"}), life=(500, 20, 12, 7, 1764513604087)
        )
        reader.close_idle()
        assert (await reader.read()).generation == 2
        await reader.aclose()
        nursery.cancel_scope.cancel()


async def test_stamp_of_the_statistics_connection_is_the_readings_boot_identity() -> None:
    async def stamp(connection: FreshConnection) -> str | None:
        return f"boot-{(await connection.fetch(reader._request, max_bytes=10_000)).status}"

    async with open_peer() as peer, trio.open_nursery() as nursery:
        nursery.start_soon(Triton(peer).run)
        reader = StatisticsReader(peer.url, None, "m", stamp=stamp)
        assert (await reader.read()).evidence().boot == "boot-200"
        nursery.cancel_scope.cancel()


REFUSED = {
    "unloaded": ((400, b'{"error":"requested model \'m\' is not available"}'), "model_unavailable"),
    "unknown": ((404, b'{"error":"Request for unknown model: \'m\' is not available"}'), "model_unavailable"),
    "server error": ((500, b""), "http_status"),
    "redirect": ((302, b""), "http_status"),
    "malformed": ((200, b"<html>"), "not_json"),
    "other model": ((200, document({**ENTRY, "name": "n"})), "model_missing"),
}


@pytest.mark.parametrize(("answer", "reason"), REFUSED.values(), ids=REFUSED.keys())
async def test_answer_that_is_no_reading_is_refused_and_costs_the_connection(
    answer: tuple[int, bytes], reason: str
) -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        triton = Triton(peer)
        good = triton.answers[b"/v2/models/m/stats"]
        triton.answers[b"/v2/models/m/stats"] = answer
        nursery.start_soon(triton.run)
        reader = StatisticsReader(peer.url, None, "m")
        with pytest.raises(ReadingRefusedError) as caught:
            await reader.read()
        assert caught.value.reason == reason
        triton.answers[b"/v2/models/m/stats"] = good
        assert (await reader.read()).generation == 2
        nursery.cancel_scope.cancel()


async def test_answer_of_ten_megabytes_is_not_read_to_its_end() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        triton = Triton(peer)
        triton.answers[b"/v2/models/m/stats"] = (200, b" " * 10_000_000)
        nursery.start_soon(triton.run)
        reader = StatisticsReader(peer.url, None, "m")
        with trio.fail_after(PATIENCE_S), pytest.raises(BackendError, match=str(MAX_STATISTICS_BYTES)):
            await reader.read()
        nursery.cancel_scope.cancel()


async def test_reading_that_takes_for_ever_ends_with_its_time() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        triton = Triton(peer)
        triton.answers[b"/v2/models/m/stats"] = (0, b"")
        nursery.start_soon(triton.run)
        reader = StatisticsReader(peer.url, None, "m", timeout_ms=50)
        with trio.fail_after(PATIENCE_S), pytest.raises((BackendUnavailableError, ConnectionLostError), match="50 ms"):
            await reader.read()
        nursery.cancel_scope.cancel()


async def test_backend_that_is_not_there_is_unavailable_and_found_again() -> None:
    async with open_peer() as peer:
        reader = StatisticsReader(peer.url, None, "m", timeout_ms=200)
    for _ in range(3):
        with pytest.raises(BackendUnavailableError, match="Connection refused"):
            await reader.read()


async def test_readings_asked_for_at_once_are_taken_in_turn() -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        triton = Triton(peer)
        nursery.start_soon(triton.run)
        reader = StatisticsReader(peer.url, None, "m")
        async with trio.open_nursery() as readers:
            for _ in range(10):
                readers.start_soon(reader.read)
        assert len(triton.asked) == 10
        assert peer.accepted == 1
        nursery.cancel_scope.cancel()


# The process's own counters (E7)


async def test_metrics_are_read_between_statistics_of_one_connection() -> None:
    """E7, ADR-0002: the same process before and after, and the statistics are the later of the two."""
    async with open_peer() as peer, trio.open_nursery() as nursery:
        triton = Triton(peer)
        nursery.start_soon(triton.run)
        reader = StatisticsReader(peer.url, peer.url, "m")
        reading = await reader.read()
        assert (reading.process, reading.process_ends) == (Counts(50, 4), 54)
        assert reading.evidence().process == Counts(50, 4)
        stats = b"/v2/models/m/stats"
        assert triton.asked == [stats, b"/metrics", stats], "alive before and after: the metrics are this process's"
        await reader.read()
        assert triton.asked[3:] == [b"/metrics", stats]
        reader.close_idle()
        await reader.read()
        assert triton.asked[5:] == [stats, b"/metrics", stats]
        nursery.cancel_scope.cancel()


async def test_metrics_from_around_a_reconnection_are_not_used() -> None:
    """Statistics, restart, metrics: the new process's metrics must not pass for the old one's."""
    async with open_peer() as statistics, open_peer() as metrics, trio.open_nursery() as nursery:
        old = Triton(statistics)
        nursery.start_soon(old.run)

        async def restart_between() -> None:
            connection = await metrics.accept()
            await connection.read_request()
            old.connections[0].close()  # the process behind the statistics connection is gone
            await trio.testing.wait_all_tasks_blocked(0.01)
            await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(METRICS), METRICS))

        nursery.start_soon(restart_between)
        reader = StatisticsReader(statistics.url, metrics.url, "m")
        reading = await reader.read()
        assert reading.generation == 2
        assert reading.process is None
        assert reading.process_problem == "the connection changed between statistics and metrics"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("answer", [(404, b""), (200, b'nv_inference_request_success{model="m"} -1')])
async def test_failing_metrics_cost_only_the_metrics_and_are_told(answer: tuple[int, bytes]) -> None:
    async with open_peer() as peer, trio.open_nursery() as nursery:
        triton = Triton(peer)
        triton.answers[b"/other"] = answer
        nursery.start_soon(triton.run)
        reader = StatisticsReader(peer.url, f"{peer.url}/other", "m")
        reading = await reader.read()
        assert (reading.counts.ends, reading.process, reading.process_ends) == (7, None, None)
        assert reading.process_problem is not None
        nursery.cancel_scope.cancel()


async def test_hanging_metrics_do_not_cost_the_whole_reading() -> None:
    async with open_peer() as peer, open_peer() as silent, trio.open_nursery() as nursery:
        nursery.start_soon(Triton(peer).run)
        reader = StatisticsReader(peer.url, silent.url, "m", timeout_ms=200)
        with trio.fail_after(PATIENCE_S):
            reading = await reader.read()
        assert (reading.counts.ends, reading.process) == (7, None)
        assert reading.process_problem is not None
        nursery.cancel_scope.cancel()
