"""What an identity reaches its model through, with a `World` behind it: fills `governor.identity.port`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from governor.core.counting import Counts, Reading
from governor.errors import BackendUnavailableError, ConnectionLostError
from governor.triton.exchange import CallEnd
from tests.shell.world import Break, Fault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from governor.triton.metadata import ModelFacts
    from governor.triton.wire import Body, WireRequest
    from tests.shell.world import Connection, Response, World


class FakeLane:
    """Fills `LanePort` as `governor.triton.lane.Lane` does."""

    def __init__(self, world: World) -> None:
        self.generation = 0
        self.world = world
        self._connection: Connection | None = None
        self._busy = False
        self._closes = 0

    @property
    def boot(self) -> str | None:
        connection = self._connection
        return connection.process.boot if connection is not None and self.world.boots else None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    async def connect(self) -> None:
        await self.take()
        self.give_back()

    async def take(self) -> Connection:
        """A usable connection."""
        assert not self._busy, "a lane carries one exchange at a time"
        self._busy = True
        try:
            if self._connection is not None and self._connection.broken:
                self.close()
            if self._connection is None:
                self._connection = await self._open()
                self.generation += 1
        except BaseException:
            self._busy = False
            raise
        return self._connection

    async def _open(self) -> Connection:
        closes = self._closes
        connection = await self.world.connect()
        if closes != self._closes:
            self.world.forget(connection)
            raise BackendUnavailableError("the connection was closed here while it was opened")
        return connection

    def give_back(self) -> None:
        """The connection carries nothing any more."""
        self._busy = False
        if self._connection is not None and self._connection.broken:
            self.close()

    def exchange(self, request: WireRequest, *, on_delivered: Callable[[], None] | None = None) -> FakeExchange:
        return FakeExchange(self, request, on_delivered)

    def close(self) -> None:
        self._closes += 1
        if self._connection is not None:
            self.world.forget(self._connection)
            self._connection = None


class FakeAnswer:
    """Fills `AnswerPort`."""

    def __init__(self, connection: Connection, response: Response) -> None:
        assert response.status is not None
        self.status = response.status
        self.headers = response.headers
        self.complete = False
        self._connection = connection
        self._response = response

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            while self._response.pieces:
                yield self._response.pieces.popleft()
            if self._response.complete:
                self.complete = True
                return
            if self._connection.broken:
                raise ConnectionLostError("the connection broke before the answer was complete")
            await self._response.changed.wait()


class FakeExchange:
    """Fills `ExchangePort` as `governor.triton.exchange.Exchange` does."""

    def __init__(self, lane: FakeLane, request: WireRequest, on_delivered: Callable[[], None] | None) -> None:
        self.generation = 0
        self.boot: str | None = None
        self._lane = lane
        self._request = request
        self._on_delivered = on_delivered
        self._delivered = False
        self._left = False
        self._answer: FakeAnswer | None = None
        self._response: Response | None = None
        self._entered = False
        self._connection: Connection | None = None
        self._body = b""
        self._to_come = 0

    @property
    def end(self) -> CallEnd | None:
        if not self._left:
            return None
        if not self._delivered:
            return CallEnd.NEVER_DELIVERED
        return CallEnd.ANSWERED if self._answer is not None and self._answer.complete else CallEnd.UNKNOWN

    @property
    def stands(self) -> bool:
        return self._connection is not None and not self._left and not self._connection.broken

    async def begin(self, length: int) -> None:
        if length < 1:
            raise ValueError("the head alone would deliver it")
        self._to_come = length
        self._connection = await self._take()
        self._lane.world.note("begun")

    async def send_ahead(self, piece: Body) -> None:
        if len(piece) >= self._to_come:
            raise ValueError("this would deliver the request")
        assert self._connection is not None
        await trio.lowlevel.checkpoint()
        if self._connection.broken and not self._lane.connected:
            self.give_up()
            raise BackendUnavailableError("the connection was closed here")
        self._body += bytes(piece)
        self._to_come -= len(piece)

    def end_with(self, end: Body, on_delivered: Callable[[], None] | None) -> None:
        if len(end) != self._to_come:
            raise ValueError("the body ends elsewhere")
        self._request = replace(self._request, body=self._body + bytes(end))
        self._on_delivered = on_delivered

    def give_up(self) -> None:
        if not self._entered:
            self._entered = True
            self._leave(close=True)

    async def _take(self) -> Connection:
        try:
            connection = await self._lane.take()
        except BaseException:
            self._left = True
            raise
        self.generation, self.boot = self._lane.generation, self._lane.boot
        return connection

    async def __aenter__(self) -> FakeAnswer:
        assert not self._entered, "an exchange is entered once"
        self._entered = True
        connection = self._connection or await self._take()
        try:
            self._response = response = await self._deliver(connection)
            while response.status is None:
                if connection.broken:
                    raise ConnectionLostError("the connection broke before the answer")
                await response.changed.wait()
        except BaseException:
            self._leave(close=True)
            raise
        self._answer = FakeAnswer(connection, response)
        return self._answer

    async def _deliver(self, connection: Connection) -> Response:
        _, plan = self._lane.world.plan_of(self._request)
        await trio.sleep(plan.deliver_s)  # cancelled here, the request is cut off
        if connection.broken or plan.breaks is Break.BEFORE_DELIVERY:
            raise BackendUnavailableError("the connection broke before the request had left")
        response = self._lane.world.deliver(connection, self._request)
        self._delivered = True
        if self._on_delivered is not None:
            self._on_delivered()
        return response

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._answer is not None
        assert self._response is not None
        # What had arrived already completes the answer.
        self._answer.complete |= self._response.complete
        self._leave(close=not self._answer.complete)

    def _leave(self, *, close: bool) -> None:
        if self._left:
            return
        self._left = True
        if close:
            self._lane.close()
        self._lane.give_back()


class FakePort:
    """Fills `ModelPort`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connected = False
        self.server_version: str | None = None
        world.ports.append(self)

    @property
    def tells_departures(self) -> bool:
        return self.world.tells_departures

    def make_lane(self) -> FakeLane:
        lane = FakeLane(self.world)
        self.world.lanes.append(lane)
        return lane

    async def read(self) -> Reading:
        world = self.world
        world.note("reading")
        fault = world.faults.popleft() if world.faults else world.fault
        late_s = world.read_late_s.popleft() if world.read_late_s else 0.0
        self.connected = fault not in {Fault.REFUSED, Fault.LOST}
        world.asking += 1
        world.asked_at_once = max(world.asked_at_once, world.asking)
        try:
            process = await world.ask(fault, world.read_s)
        finally:
            world.asking -= 1
        load = world.load
        reading = Reading(
            model=Counts(load.success, load.fail),
            versions=frozenset({"1"}),
            life=(load.busy_ms,),
            process=Counts(process.success, process.fail) if world.metrics else None,
            boot=process.boot if world.boots else None,
        )
        await trio.sleep(late_s)
        return reading

    async def fetch_facts(self) -> ModelFacts:
        self.world.note("facts")
        await self.world.ask(self.world.fact_faults.popleft() if self.world.fact_faults else None, 0.0)
        facts = self.world.load.facts
        self.server_version = "2.51.0"
        await trio.sleep(self.world.facts_s)
        return facts

    def close_idle(self) -> None:
        self.connected = False
