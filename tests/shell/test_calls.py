"""Calls, lanes and the queue for credits of one identity (E1, E2, A6, D2, ADR-0008)."""

from __future__ import annotations

import pytest
import trio

from governor.core.claims import ClaimState
from governor.errors import BackendProtocolError, BackendUnavailableError, CreditQueueFullError, GovernorError
from governor.identity import CallState
from governor.triton.exchange import CallEnd
from governor.triton.outcomes import CallKind
from tests.shell.fakes import FakeExchange
from tests.shell.harness import LANE_IDLE_S, POLL_S, Bench, body_within, identity_bench, until
from tests.shell.world import Break, Plan


async def test_credits_go_round_between_keys_and_in_order_within_one() -> None:
    """A6: a key with many waiting calls delays another key's only one by one turn."""
    async with identity_bench() as bench:
        bench.submit("0.1 first", key="greedy")
        for number in range(4):
            bench.submit(f"0.1 greedy {number}", key="greedy")
        bench.submit("0.1 modest", key="modest")
        bench.submit("0.1 other 0", key="other")
        bench.submit("0.1 other 1", key="other")
        await until(lambda: bench.free == 1, 5)
        assert [execution.text for execution in bench.world.executions] == [
            "0.1 first",
            "0.1 greedy 0",
            "0.1 modest",
            "0.1 other 0",
            "0.1 greedy 1",
            "0.1 other 1",
            "0.1 greedy 2",
            "0.1 greedy 3",
        ]


async def test_a_full_queue_refuses_and_changes_nothing() -> None:
    """A6: those that wait keep their places; one that leaves makes room."""
    async with identity_bench(max_waiting=2) as bench:
        bench.submit("1")
        waiting = [bench.submit("1 a"), bench.submit("1 b")]
        with pytest.raises(CreditQueueFullError):
            bench.submit("1 c")
        assert bench.identity.statistics().totals.refused == 1
        waiting[0].abandon()
        bench.submit("1 d")
        await until(lambda: bench.free == 1, 10)
        assert [execution.text for execution in bench.world.executions] == ["1", "1 b", "1 d"]


async def test_abandoning_is_harmless_at_any_time_and_any_number_of_times() -> None:
    """ADR-0008: waiting, started, ended."""
    async with identity_bench() as bench:
        running, waiting = bench.submit("1"), bench.submit("1")
        for _ in range(3):
            waiting.abandon()
        with pytest.raises(GovernorError):
            await waiting.started()
        await body_within(running, 10)
        running.abandon()
        running.abandon()
        assert bench.free == 1
        assert bench.identity.statistics().totals.abandoned == 1, "an answered call cannot be abandoned"


async def test_a_slow_reader_holds_no_credit() -> None:
    """ADR-0008: the answer waits, the call does not."""
    async with identity_bench() as bench:
        bench.world.plans["stream"] = Plan(seconds=1, texts=("a", "b"))
        call = bench.submit("stream", kind=CallKind.GENERATE_STREAM)
        await until(lambda: bench.free == 1, 1.1)
        await trio.sleep(100)
        assert (await call.next_chunk() or b"").endswith(b'"a"}\n\n')
        assert (await call.next_chunk() or b"").endswith(b'"b"}\n\n')
        assert await call.next_chunk() is None


async def test_an_answer_larger_than_may_wait_is_read_to_its_end_and_refused() -> None:
    """ADR-0008: the caller hears the limit, the credit comes back with the end."""
    async with identity_bench() as bench:
        bench.world.plans["long"] = Plan(seconds=1, texts=10 * ("x" * 100,))
        call = bench.submit("long", kind=CallKind.GENERATE_STREAM, max_answer_bytes=300)
        with pytest.raises(BackendProtocolError, match="300 bytes"):
            await body_within(call, 10)
        assert bench.world.executing
        await until(lambda: bench.free == 1, 1.1)
        assert bench.identity.statistics().totals.answered == 1


async def test_a_reader_that_keeps_up_may_receive_more_than_may_wait() -> None:
    """ADR-0008: only what waits counts."""
    async with identity_bench() as bench:
        bench.world.plans["long"] = Plan(seconds=1, texts=10 * ("x" * 100,))
        call = bench.submit("long", kind=CallKind.GENERATE_STREAM, max_answer_bytes=300)
        received = 0
        while (chunk := await call.next_chunk()) is not None:
            received += len(chunk)
        assert received > 1_000


async def test_lanes_are_closed_soon_after_their_last_use_and_not_before() -> None:
    """D2: an idle open connection delays the backend's own shutdown; that of the readings too."""
    async with identity_bench(slots=3) as bench:
        for _ in range(3):
            bench.submit("1")
        await until(lambda: bench.world.open_lanes == 3, 1)
        await until(lambda: bench.free == 3, 2)
        assert not bench.world.ports[0].connected, "nothing waits on a reading"
        await trio.sleep(LANE_IDLE_S - 0.1)
        await body_within(bench.submit("0.5"), 1)
        await trio.sleep(0.2)
        assert bench.world.open_lanes == 1, "the one that was used again"
        await trio.sleep(LANE_IDLE_S)
        assert bench.world.open_lanes == 0
        bench.submit("10")
        await trio.sleep(2 * LANE_IDLE_S)
        assert bench.world.open_lanes == 1, "a busy one is not idle"
        assert len(bench.world.lanes) == 3, "as many as slots"


async def test_the_warmest_lane_is_taken_first() -> None:
    """D2: calls one after the other keep one connection open and let the others go."""
    async with identity_bench(slots=3) as bench:
        for _ in range(3):
            bench.submit("1")
        await until(lambda: bench.free == 3, 2)
        for _ in range(6):
            await body_within(bench.submit("0.5"), 1)
        assert bench.world.open_lanes == 1


async def test_what_arrives_for_a_caller_that_left_is_dropped() -> None:
    """ADR-0008: the rest of the answer is read for its end alone."""
    async with identity_bench() as bench:
        bench.world.plans["stream"] = Plan(seconds=3, texts=("a", "b", "c"))
        call = bench.submit("stream", kind=CallKind.GENERATE_STREAM)
        await trio.sleep(2.5)
        call.abandon()
        await until(lambda: bench.free == 1, 1)
        assert await call.next_chunk() is None


async def test_an_error_of_a_proxy_ends_nothing() -> None:
    """E1: a 502 from somebody in between arrives complete while the call goes on behind it."""
    async with identity_bench() as bench:
        html = Plan(seconds=3, status=502, body=b"<h1>Bad Gateway</h1>")
        bench.world.plans["proxied"] = html
        _answer_early(bench)
        call = bench.submit("proxied")
        assert (await call.head()).status == 502
        assert await call.body() == b"<h1>Bad Gateway</h1>"
        await trio.sleep(0.1)
        assert bench.states == {ClaimState.RECONCILING: 1}
        assert bench.world.executing
        await until(lambda: not bench.world.executing, 5)
        await until(lambda: bench.free == 1, POLL_S + 0.05)


def _answer_early(bench: Bench) -> None:
    """A proxy answers at once, while the call it forwarded executes."""
    deliver = bench.world.deliver

    def answered(*args: object) -> object:
        response = deliver(*args)  # type: ignore[arg-type]  # passed on as they are
        plan = bench.world.executions[-1].plan
        response.status, response.headers = plan.status, plan.headers
        response.pieces.append(plan.body or b"")
        response.complete = True
        return response

    bench.world.deliver = answered  # type: ignore[assignment,method-assign]  # the same function, and a proxy


@pytest.mark.parametrize("size", [1_000, 300_000])
async def test_an_error_of_the_model_ends_its_call_however_long_it_is(size: int) -> None:
    """E1: Triton repeats what it was sent in its errors; a caller must not be able to lose a credit by that."""
    async with identity_bench() as bench:
        bench.world.plans["wrong"] = Plan(
            status=400, texts=("unexpected inference input " + size * "x",), counts=(0, 0)
        )
        await body_within(bench.submit("wrong"), 10)
        assert bench.free == 1
        assert bench.identity.statistics().totals.answered == 1


async def test_a_fault_inside_one_call_costs_neither_the_others_nor_the_knowledge_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error that nobody foresaw, after the delivery: its claim waits for evidence, everything else goes on."""
    async with identity_bench(slots=2) as bench:
        other = bench.submit("2", key="other")
        await trio.sleep(0.1)
        enter = FakeExchange.__aenter__

        async def broken(self: FakeExchange) -> object:
            answer = await enter(self)
            raise KeyError(answer.status)

        with monkeypatch.context() as patched:
            patched.setattr(FakeExchange, "__aenter__", broken)
            patched.setattr(FakeExchange, "end", CallEnd.UNKNOWN)
            call = bench.submit("1")
            with pytest.raises(GovernorError, match="internal error"):
                await call.head()
        assert bench.states == {ClaimState.RUNNING: 1, ClaimState.RECONCILING: 1}
        await body_within(other, 10)
        await until(lambda: bench.free == 2, 2)


async def test_a_request_that_cannot_be_sent_is_its_caller_s_affair() -> None:
    """The lane may find only while sending that a request is none; the identity lives on."""
    async with identity_bench() as bench:
        bench.world.plans["cut"] = Plan(breaks=Break.BEFORE_DELIVERY)
        with pytest.raises(BackendUnavailableError):
            await body_within(bench.submit("cut"), 10)
        take = bench.world.connect

        async def refuse() -> object:
            raise GovernorError("cannot be sent")

        bench.world.connect = refuse  # type: ignore[assignment,method-assign]  # stands for a request that is refused
        with pytest.raises(GovernorError, match="cannot be sent"):
            await body_within(bench.submit("1"), 10)
        bench.world.connect = take  # type: ignore[method-assign]  # as it was
        await body_within(bench.submit("1"), 10)
        assert bench.free == 1


async def test_a_call_knows_where_it_stands() -> None:
    """Waiting, started, ended."""
    async with identity_bench() as bench:
        first, second = bench.submit("1"), bench.submit("1")
        assert (first.state, second.state) == (CallState.STARTED, CallState.WAITING)
        await body_within(first, 10)
        await second.started()
        assert (first.state, second.state) == (CallState.ENDED, CallState.STARTED)


async def test_a_call_that_is_given_to_a_task_that_ends_just_then_ends_with_it() -> None:
    """E2: whoever submits in the very moment in which the identity ends is told so, and does not wait for ever."""
    async with identity_bench() as bench:
        await body_within(bench.submit("0.1"), 1)
        bench.stop.cancel()
        call = bench.submit("1")
        with pytest.raises(GovernorError), trio.fail_after(5):
            await call.body()
