"""Large bodies are in memory once, and only as many at a time as fit: they are read when there is room (A6)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from api.v2.bodies import SMALL_BYTES, BodyBudget, BodyBytesError, read_body
from tests.api.harness import AsgiExchange, Service, service
from tests.shell.world import Plan

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from trio.testing import MockClock

INFER = "/v2/models/chat/infer"
LARGE = bytes(100_000)


def large(up: Service, **options: Any) -> AsgiExchange:
    return AsgiExchange(up.app, "POST", INFER, data=LARGE, **options)


async def start(nursery: trio.Nursery, *exchanges: AsgiExchange) -> None:
    for exchange in exchanges:
        nursery.start_soon(exchange.run)
        await trio.sleep(0.01)


async def test_a_large_body_is_read_when_there_is_room(autojump_clock: MockClock) -> None:
    async with service(server={"max_large_body_bytes": 250_000}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.extend([Plan(seconds=1, body=b"{}")] * 5)
        exchanges = [large(up) for _ in range(4)]
        await start(nursery, *exchanges)
        assert [exchange.was_read for exchange in exchanges] == [True, True, False, False]
        small = AsgiExchange(up.app, "POST", INFER, data=bytes(SMALL_BYTES))
        await start(nursery, small)
        assert small.was_read, "small ones need no room"
        for exchange in (*exchanges, small):
            assert (await exchange.whole()).status == 200
        assert [len(wire.body) for wire in up.world.wires].count(len(LARGE)) == 4


async def test_without_room_in_time_it_is_refused_unread(autojump_clock: MockClock) -> None:
    limits = {"max_credit_wait_ms": 2_000}
    async with service(server={"max_large_body_bytes": 100_000}, limits=limits) as up, trio.open_nursery() as nursery:
        up.world.next_plans.append(Plan(seconds=60, body=b"{}"))
        await start(nursery, large(up))
        began = trio.current_time()
        late = large(up)
        await start(nursery, late)
        answer = await late.whole()
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "too_many_body_bytes", "1")
        assert trio.current_time() - began == pytest.approx(2, abs=0.1)
        assert not late.was_read
        nursery.cancel_scope.cancel()


async def test_whoever_leaves_gives_the_room_back(autojump_clock: MockClock) -> None:
    """Also one that left while it waited for a slot, and one that left in the middle of its body."""
    async with service(server={"max_large_body_bytes": 100_000}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.extend([Plan(seconds=30, body=b"{}"), Plan(body=b"{}")])
        await start(nursery, AsgiExchange(up.app, "POST", INFER, data=b"{}"))
        leaving = large(up)
        await start(nursery, leaving)
        assert leaving.was_read
        leaving.leave()
        await leaving.ended.wait()
        cut = large(up, cut=True)
        await start(nursery, cut)
        assert not cut.ended.is_set()
        cut.leave()
        await cut.ended.wait()
        last = large(up)
        await start(nursery, last)
        assert last.was_read
        assert (await last.whole()).status == 200


async def test_a_body_larger_than_all_room_passes_alone(autojump_clock: MockClock) -> None:
    async with service(server={"max_large_body_bytes": 70_000}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.extend([Plan(seconds=1, body=b"{}")] * 2)
        exchanges = [large(up), large(up)]
        await start(nursery, *exchanges)
        assert [exchange.was_read for exchange in exchanges] == [True, False]
        for exchange in exchanges:
            assert (await exchange.whole()).status == 200


async def test_a_body_of_no_declared_length_keeps_no_more_than_it_needs(autojump_clock: MockClock) -> None:
    async with service(server={"max_large_body_bytes": 11_000_000}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.extend([Plan(seconds=1, body=b"{}")] * 3)
        chunked = [large(up, declares_length=False, headers={"Transfer-Encoding": "chunked"}) for _ in range(3)]
        await start(nursery, *chunked)
        assert [exchange.was_read for exchange in chunked] == [True, True, True]
        for exchange in chunked:
            assert (await exchange.whole()).status == 200


async def test_callers_get_room_in_turn(autojump_clock: MockClock) -> None:
    budget, order = BodyBudget(10), list[str]()

    async def ask(key: str) -> None:
        reserved = await budget.reserve(key, 10, give_up_at=100)
        order.append(key)
        await trio.sleep(1)
        budget.release(reserved)

    async with trio.open_nursery() as nursery:
        for key in "aaabc":
            nursery.start_soon(ask, key)
            await trio.sleep(0.01)
    assert "".join(order) == "aabca"
    assert budget.held == 0


async def test_one_that_gives_up_lets_those_behind_it_pass(autojump_clock: MockClock) -> None:
    budget = BodyBudget(10)
    assert await budget.reserve("a", 6, give_up_at=0) == 6
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(expect_refusal, budget, 10))
        await trio.sleep(0.1)
        assert await budget.reserve("c", 4, give_up_at=10) == 4
    assert trio.current_time() == pytest.approx(2, abs=0.1)
    assert budget.held == 10


async def expect_refusal(budget: BodyBudget, size: int) -> None:
    with pytest.raises(BodyBytesError):
        await budget.reserve("b", size, give_up_at=2)


async def test_pieces_become_one_body() -> None:
    async def pieces(*parts: bytes) -> AsyncGenerator[Any, None]:
        for number, part in enumerate(parts, 1):
            yield {"type": "http.request", "body": part, "more_body": number < len(parts)}
        yield {"type": "http.disconnect"}

    for parts in ((b"",), (b"a",), (b"a", b"", b"bc"), (b"", b"")):
        whole = b"".join(parts)
        for declared in {0, len(whole)}:
            source = pieces(*parts)
            assert await read_body(source.__anext__, declared) == whole
            await source.aclose()
    gone = pieces()
    assert await read_body(gone.__anext__) is None
    await gone.aclose()
