"""ADR-0018 (A6, E3): a large binary body goes straight through, and its last byte waits for a slot."""

from __future__ import annotations

import json
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import trio

from api.v2.ahead import PIECE_BYTES, YIELD_READS, AheadBody, text_bytes
from tests.api.harness import AsgiExchange, Service, service
from tests.shell.world import Plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from trio.testing import MockClock

INFER = "/v2/models/chat/infer"
CONFIG = "GET /v2/models/m/config"
DONE = Plan(body=b'{"outputs":[]}')


def body(floats: int = 250_000) -> tuple[bytes, dict[str, str]]:
    """An `infer` of one raw tensor, and its header fields."""
    tensor = {
        "name": "X",
        "datatype": "FP32",
        "shape": [floats],
        "parameters": {"binary_data_size": 4 * floats},
    }
    text = json.dumps({"inputs": [tensor]}).encode()
    fields = {"Inference-Header-Content-Length": str(len(text)), "Content-Type": "application/octet-stream"}
    return text + (bytes(range(251)) * (floats // 62))[: 4 * floats], fields


@dataclass(slots=True, eq=False)
class Upload(AsgiExchange):
    """A request whose server reads into buffers and tells of departures, as the governor's own does.

    Attributes:
        pieces: of the body, as they come; the rest is there at once.
        gate: the body goes on behind the first of `pieces` when it is set.
    """

    sizes: deque[int] = field(default_factory=deque)
    gate: trio.Event | None = None
    sent: int = 0
    _when_gone: list[Callable[[], None]] = field(default_factory=list)

    def scope(self) -> Any:
        offered = {"governor.departure": self._when_gone.append, "governor.body_into": self._read_into}
        return {**AsgiExchange.scope(self), "extensions": offered}

    def leave(self) -> None:
        AsgiExchange.leave(self)
        for callback in self._when_gone:
            callback()

    async def _read_into(self, room: memoryview) -> int:
        self._asked = True
        await trio.lowlevel.checkpoint()
        if self.gate is not None and self.sent and not self.sizes:
            async with trio.open_nursery() as nursery:
                for event in (self.gate, self._gone):
                    nursery.start_soon(_cancel_when, event, nursery.cancel_scope)
        if self._gone.is_set():
            return 0
        size = min(len(room), self.sizes.popleft() if self.sizes else len(room), len(self.data) - self.sent)
        room[:size] = self.data[self.sent : self.sent + size]
        self.sent += size
        return size


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def upload(up: Service, path: str = INFER, **options: Any) -> Upload:
    data, fields = body()
    return Upload(up.app, "POST", path, **{"data": data, "headers": fields, **options})


@asynccontextmanager
async def running(up: Service, *exchanges: AsgiExchange) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for exchange in exchanges:
            nursery.start_soon(exchange.run)
        await trio.sleep(0.5)
        yield
        nursery.cancel_scope.cancel()


def under_way(up: Service) -> int:
    return next(iter(up.governor.identities.values())).uploads.under_way


async def test_it_arrives_as_it_was_sent_and_is_never_here_as_a_whole(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(DONE)
        exchange = upload(up, sizes=deque([1, 20, 100_000]), query=b"a=b")
        async with running(up, exchange):
            assert (await exchange.whole()).status == 200
        wire = up.world.wires[0]
        assert bytes(wire.body) == exchange.data
        assert wire.path == "/v2/models/m/infer?a=b"
        assert ("inference-header-content-length", exchange.headers["Inference-Header-Content-Length"]) in wire.headers
        assert up.world.times("begun")


async def test_it_holds_no_slot_while_it_comes(autojump_clock: MockClock) -> None:
    """One slot: a call that is whole earlier is served meanwhile."""
    async with service() as up:
        up.world.next_plans.extend([Plan(seconds=1, body=b"{}"), DONE])
        slow = upload(up, sizes=deque([300]), gate=trio.Event())
        async with running(up, slow):
            assert up.free == 1
            assert up.world.times("begun")
            assert (await up.ask("POST", INFER, data=b"{}")).status == 200
            assert slow.gate is not None
            slow.gate.set()
            assert (await slow.whole()).status == 200
        assert [len(wire.body) for wire in up.world.wires] == [2, len(slow.data)]


async def test_without_a_place_the_body_is_kept_here_until_there_is_one(autojump_clock: MockClock) -> None:
    """One slot: one request may stand ready behind the one that executes."""
    async with service() as up:
        up.world.next_plans.extend([Plan(seconds=5, body=b"{}"), Plan(seconds=5, body=b"{}"), DONE])
        first, second, third = AsgiExchange(up.app, "POST", INFER, data=b"{}"), upload(up), upload(up)
        async with running(up, first), running(up, second), running(up, third):
            assert third.sent == len(third.data)
            assert len(up.world.times("begun")) == 1
            assert (await second.whole()).status == 200
            assert len(up.world.times("begun")) == 2, "who waited for the place has got it"
            assert (await third.whole()).status == 200
        assert [len(wire.body) for wire in up.world.wires] == [2, len(second.data), len(third.data)]
        assert bytes(up.world.wires[2].body) == third.data


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(autojump_clock: MockClock) -> None:
    async with service() as up:
        exchange = upload(up, sizes=deque([500, 100_000]), gate=trio.Event())
        async with running(up, exchange):
            assert under_way(up) == 1
            exchange.leave()
            await exchange.ended.wait()
            assert under_way(up) == 0
            assert (up.free, up.world.open_lanes, up.world.wires) == (1, 0, [])
        up.world.next_plans.append(DONE)
        again = upload(up)
        async with running(up, again):
            assert (await again.whole()).status == 200


async def test_a_client_that_leaves_while_it_waits_for_a_slot_leaves_nothing(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(seconds=60, body=b"{}"))
        exchange = upload(up, sizes=deque([500]), gate=trio.Event())
        async with running(up, exchange), running(up, AsgiExchange(up.app, "POST", INFER, data=b"{}")):
            assert exchange.gate is not None
            exchange.gate.set()
            await trio.sleep(1)
            assert exchange.sent == len(exchange.data)
            exchange.leave()
            with trio.fail_after(1):
                await exchange.ended.wait()
            assert under_way(up) == 0
            assert len(up.world.wires) == 1
            assert up.world.open_lanes == 1


def want_seven(up: Service) -> None:
    """The model takes seven numbers, and no more."""
    inputs = [{"name": "X", "data_type": "TYPE_FP32", "dims": ["7"]}]
    config = {"name": "m", "max_batch_size": 0, "input": inputs, "output": inputs, "instance_group": [{"count": 1}]}
    up.world.replies[CONFIG] = (200, "application/json", json.dumps(config).encode())


async def test_what_triton_would_refuse_is_refused_before_anything_is_sent(autojump_clock: MockClock) -> None:
    """D5; the rest of the body is read away first, so that the client hears it instead of a reset."""
    async with service() as up:
        want_seven(up)
        exchange = upload(up)
        async with running(up, exchange):
            answer = await exchange.whole()
        assert (answer.status, answer.code) == (400, "invalid_inference_request")
        assert "Expected [7], got [250000]" in answer.json["error"]
        assert exchange.sent == len(exchange.data)
        assert not up.world.times("begun")
        assert (up.world.wires, under_way(up)) == ([], 0)


async def test_a_shape_that_triton_would_die_of_is_refused_before_anything_is_sent(autojump_clock: MockClock) -> None:
    async with service() as up:
        tensor = {"name": "X", "datatype": "FP32", "shape": [5, 2**40], "data": [0]}
        text = json.dumps({"inputs": [tensor]}).encode()
        fields = {"Inference-Header-Content-Length": str(len(text))}
        exchange = upload(up, data=text + bytes(1_000_000), headers=fields)
        async with running(up, exchange):
            answer = await exchange.whole()
        assert (answer.status, answer.code) == (500, "invalid_tensor_data")
        assert not up.world.times("begun")
        assert under_way(up) == 0


async def test_a_backend_that_does_not_answer_is_an_error_as_ever(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.kill()
        exchange = upload(up)
        async with running(up, exchange):
            answer = await exchange.whole()
        assert (answer.status, answer.code) == (503, "backend_unavailable")
        assert (under_way(up), up.free) == (0, 1)


async def test_a_backend_that_dies_in_the_middle(autojump_clock: MockClock) -> None:
    """Never delivered: the credit is free at once, and the client hears why."""
    async with service() as up:
        up.world.next_plans.append(DONE)
        exchange = upload(up, sizes=deque([500, 100_000]), gate=trio.Event())
        async with running(up, exchange):
            up.world.kill()
            assert exchange.gate is not None
            exchange.gate.set()
            answer = await exchange.whole()
            assert (answer.status, answer.code) == (503, "backend_unavailable")
            assert (under_way(up), up.free, up.world.wires) == (0, 1, [])


async def test_its_wait_for_a_slot_counts_from_when_its_body_is_here(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(seconds=600, body=b"{}"))
        fields = {**body()[1], "triton-timeout": "2000000"}
        late = upload(up, headers=fields, sizes=deque([500]), gate=trio.Event())
        async with running(up, late), running(up, AsgiExchange(up.app, "POST", INFER, data=b"{}")):
            await trio.sleep(60)
            assert late.gate is not None
            late.gate.set()
            began = trio.current_time()
            answer = await late.whole()
            assert (answer.status, answer.code) == (503, "credit_wait_timeout")
            assert trio.current_time() - began == pytest.approx(2, abs=0.1)
            assert under_way(up) == 0


async def test_an_unknown_model_is_refused_as_ever(autojump_clock: MockClock) -> None:
    async with service() as up:
        exchange = upload(up, "/v2/models/none/infer")
        async with running(up, exchange):
            answer = await exchange.whole()
        assert (answer.status, answer.code) == (404, "unknown_model")
        assert exchange.sent == len(exchange.data)


@pytest.mark.parametrize(
    ("fields", "declared", "expected"),
    [
        ({"inference-header-content-length": "100"}, PIECE_BYTES + 1, 100),
        ({"inference-header-content-length": "100", "content-encoding": "identity"}, PIECE_BYTES + 1, 100),
        ({"inference-header-content-length": "100"}, PIECE_BYTES, None),
        ({"inference-header-content-length": "100", "content-encoding": "gzip"}, 10**7, None),
        ({"inference-header-content-length": "16385"}, 10**7, None),
        ({"inference-header-content-length": "0"}, 10**7, None),
        ({"inference-header-content-length": "-1"}, 10**7, None),
        ({"inference-header-content-length": "1e3"}, 10**7, None),
        ({}, 10**7, None),
    ],
)
def test_only_what_can_be_checked_from_its_beginning_goes_ahead(
    fields: dict[str, str], declared: int, expected: int | None
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    assert text_bytes(raw, declared) == expected


async def test_a_refused_one_lets_go_of_the_backend_before_the_rest_of_it_has_come(autojump_clock: MockClock) -> None:
    """A caller that is slow with the rest of a faulty body keeps no other from going ahead."""
    async with service() as up:
        want_seven(up)
        exchange = upload(up, sizes=deque([300]), gate=trio.Event())
        async with running(up, exchange):
            assert under_way(up) == 0
            assert exchange.gate is not None
            exchange.gate.set()
            assert (await exchange.whole()).status == 400
            assert exchange.sent == len(exchange.data)


@pytest.mark.parametrize("drained", [True, False])
async def test_a_body_that_never_has_to_be_waited_for_starves_nobody(*, drained: bool) -> None:
    """A near client and a near backend: neither a read nor a write waits then, for as long as the body lasts."""
    turns = reads = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def read_into(room: memoryview) -> int:
        nonlocal reads
        reads += 1
        return min(len(room), 1000)

    class Greedy:
        async def send(self, piece: memoryview) -> None:
            assert len(piece) <= PIECE_BYTES

        def keep_back(self, end: bytes) -> None:
            assert len(end) == 1

    ahead = AheadBody(read_into, 300_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await (ahead.drain() if drained else ahead.pass_to(Greedy()))  # type: ignore[arg-type]  # all it needs
        nursery.cancel_scope.cancel()
    assert reads == 300
    assert turns >= reads / YIELD_READS - 1
