"""A backend in memory, under trio's clock, and honest.

Honest means: what was delivered executes to its end, whoever left; what was cut off before its last byte never
does; counters move as the table of a real Triton says, later than the answer; a killed process takes its work with
it, a reloaded model does not. What the governor believes is held against `World.executing` and `World.high_water`.
"""

from __future__ import annotations

import enum
import json
import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import trio

from governor.errors import BackendProtocolError, BackendUnavailableError, ConnectionLostError, GovernorError
from governor.triton.metadata import ModelFacts
from governor.triton.statistics import ReadingRefusedError, Refusal

if TYPE_CHECKING:
    from governor.triton.wire import Headers, WireRequest
    from tests.shell.fakes import FakeLane, FakePort

CONNECT_LIMIT_S = 5.0
"""A lane gives a connection attempt up after this time."""
READING_LIMIT_S = 1.0
"""The port gives a reading up after this time."""
MODEL = "m"


class Break(enum.Enum):
    """Where a call's connection breaks."""

    NEVER = "never"
    BEFORE_DELIVERY = "before the last byte of the request"
    AFTER_DELIVERY = "after the last byte of the request"
    MID_ANSWER = "after the first piece of the answer"


class Fault(enum.Enum):
    """How asking the backend about itself fails."""

    REFUSED = "connection refused"
    HANGS = "no answer"
    LOST = "connection lost"
    UNLOADED = "400, model not available"
    MALFORMED = "malformed body"
    UNSENDABLE = "the request cannot be sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What becomes of one call. Times in seconds.

    Attributes:
        seconds: how long it executes.
        status: of the answer.
        body: of the answer; None for a `generate` answer or a stream made of `texts`.
        texts: what the model says; a stream sends them evenly over its time.
        headers: of the answer.
        counts: what it adds to S and F when it ends.
        counted_after_s: when it counts, from its start; None for its end plus the world's lag (E12: a decoupled
            model counts early).
        deliver_s: how long its request takes to leave.
        queue_s: how long the server keeps it before it executes.
        breaks: where its connection breaks.
        breaks_after_s: how long after the delivery, where that is the place.
        stops_when_left: the model notices a closed connection after its first piece and ends early.
    """

    seconds: float = 0.0
    status: int = 200
    body: bytes | None = None
    texts: tuple[str, ...] = ("ok",)
    headers: Headers = (("Content-Type", "application/json"),)
    counts: tuple[int, int] = (1, 0)
    counted_after_s: float | None = None
    deliver_s: float = 0.0
    queue_s: float = 0.0
    breaks: Break = Break.NEVER
    breaks_after_s: float = 0.1
    stops_when_left: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One line of the world's log."""

    at_s: float
    what: str
    detail: str = ""


@dataclass(slots=True, eq=False)
class Load:
    """One load of the model and what its statistics show."""

    facts: ModelFacts
    success: int = 0
    fail: int = 0
    busy_ms: int = 0


@dataclass(slots=True, eq=False)
class Process:
    """One life of the server."""

    boot: str
    success: int = 0
    fail: int = 0


@dataclass(slots=True, eq=False)
class Connection:
    """One connection to one process."""

    process: Process
    broken: bool = False
    response: Response | None = None

    def break_(self) -> None:
        """It is dead from now on, for both sides; what executes goes on."""
        self.broken = True
        if self.response is not None:
            self.response.notify()


class Response:
    """What has arrived of one answer."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: Headers = ()
        self.pieces: deque[bytes] = deque()
        self.complete = False
        self.left = trio.Event()
        self.changed = trio.Event()

    def notify(self) -> None:
        """Wakes whoever waits for more."""
        self.changed.set()
        self.changed = trio.Event()


@dataclass(slots=True, eq=False)
class Execution:
    """One delivered call."""

    id: int
    text: str
    plan: Plan
    process: Process
    load: Load
    connection: Connection
    response: Response
    streamed: bool
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    started_s: float | None = None
    ended_s: float | None = None
    killed: bool = False


class World:
    """One server with one model.

    Attributes:
        process: the living process; None while the server is down.
        seen: everything that happened, in order.
        executions: every call ever delivered.
        executing: those that execute now; `high_water` is the most there ever were at once.
        plans: what becomes of a call, by its text; the first number of any other text is its seconds.
        boots, metrics: whether boot identity and process counters are to be had.
        lag_s: how much later than its answer a call is counted.
        connect_s, read_s, facts_s: how long these take; `read_late_s`, one for each of the next readings, is time
            between taking a reading and its arrival.
        connects_hang: connections are not answered.
        tells_departures: what becomes of a connection that carries a request can be seen.
        asked_at_once: the most readings that were ever under way at once.
        faults, fact_faults: one for each of the next readings or questions about the model; `fault` for all.
    """

    def __init__(self, nursery: trio.Nursery, *, boots: bool = True, metrics: bool = False) -> None:
        self.nursery = nursery
        self.boots = boots
        self.metrics = metrics
        self.facts = plain_facts()
        self.seen: list[Seen] = []
        self.executions: list[Execution] = []
        self.executing: set[Execution] = set()
        self.high_water = 0
        self.plans: dict[str, Plan] = {}
        self.lag_s = 0.005
        self.connect_s = self.read_s = self.facts_s = 0.001
        self.read_late_s: deque[float] = deque()
        self.connects_hang = False
        self.tells_departures = True
        self.fault: Fault | None = None
        self.faults: deque[Fault | None] = deque()
        self.fact_faults: deque[Fault] = deque()
        self.asking = self.asked_at_once = 0
        self.lanes: list[FakeLane] = []
        self.ports: list[FakePort] = []
        self._boots_used = 0
        self._on: dict[Connection, None] = {}
        self.process: Process | None = None
        self.load = Load(self.facts)
        self.start()

    # What a test does to it

    def start(self) -> None:
        """A new process answers."""
        self._boots_used += 1
        self.process = Process(boot=f"boot-{self._boots_used}")
        self.load = Load(self.facts)
        self.note("started")

    def kill(self) -> None:
        """The process dies: its work is gone, its connections break."""
        dead, self.process = self.process, None
        assert dead is not None, "it is down already"
        self.note("killed", dead.boot)
        for execution in self.executions:
            if execution.process is dead and execution.ended_s is None:
                execution.killed = True
                execution.ended_s = trio.current_time()
                execution.scope.cancel()
                self.executing.discard(execution)
        for connection in list(self._on):
            if connection.process is dead:
                connection.break_()

    def restart(self) -> None:
        """Kills the process and starts the next one."""
        self.kill()
        self.start()

    def replace(self) -> None:
        """A new process answers while the old one finishes what it has on its open connections (SIGTERM)."""
        self.note("terminated")
        self.start()

    def reload(self, facts: ModelFacts | None = None) -> None:
        """The model is loaded anew in the same process; what executes runs on in its old load (E7)."""
        self.facts = facts or self.facts
        self.load = Load(self.facts)
        self.note("reloaded")

    def break_connections(self) -> None:
        """Every connection of a lane breaks; the process and its work live on."""
        for connection in list(self._on):
            connection.break_()

    def foreign_call(self) -> None:
        """Somebody else's call is counted."""
        self.load.success += 1
        if self.process is not None:
            self.process.success += 1

    # What a test asks of it

    @property
    def readings(self) -> list[float]:
        """When each reading was asked for."""
        return self.times("reading")

    @property
    def open_lanes(self) -> int:
        """Lanes with an open connection."""
        return sum(lane.connected for lane in self.lanes)

    @property
    def open_connections(self) -> int:
        """Connections that nobody has closed."""
        return len(self._on)

    @property
    def alive(self) -> bool:
        """Something executes, waits to execute or waits to be counted."""
        return any(execution.ended_s is None for execution in self.executions)

    def times(self, what: str) -> list[float]:
        """When something happened."""
        return [seen.at_s for seen in self.seen if seen.what == what]

    def order(self, *wanted: str) -> list[str]:
        """What happened of these, in order."""
        return [seen.what for seen in self.seen if seen.what in wanted]

    def note(self, what: str, detail: str = "") -> None:
        """Writes the log."""
        self.seen.append(Seen(trio.current_time(), what, detail))

    # The server's side

    async def connect(self) -> Connection:
        """Raises BackendUnavailableError when nobody answers."""
        with trio.move_on_after(CONNECT_LIMIT_S):
            await trio.sleep(self.connect_s)
            if self.connects_hang:
                await trio.sleep_forever()
            if self.process is None:
                raise BackendUnavailableError("connection refused")
            connection = Connection(self.process)
            self._on[connection] = None
            self.note("connect", self.process.boot)
            return connection
        raise BackendUnavailableError("no connection in time")

    def forget(self, connection: Connection) -> None:
        """The client closed it."""
        connection.break_()
        self._on.pop(connection, None)
        if connection.response is not None:
            connection.response.left.set()

    def plan_of(self, wire: WireRequest) -> tuple[str, Plan]:
        """The call's text and what becomes of it."""
        text = _text_of(wire)
        number = re.search(r"\d+(\.\d+)?", text)
        return text, self.plans.get(text) or Plan(seconds=float(number[0]) if number else 0.0)

    def deliver(self, connection: Connection, wire: WireRequest) -> Response:
        """The last byte of a request arrived: from here on it executes, whoever leaves."""
        text, plan = self.plan_of(wire)
        response = connection.response = Response()
        execution = Execution(
            len(self.executions) + 1,
            text,
            plan,
            connection.process,
            self.load,
            connection,
            response,
            wire.path.endswith("generate_stream"),
        )
        self.executions.append(execution)
        self.note("delivered", text)
        self.nursery.start_soon(self._execute, execution)
        if plan.breaks is Break.AFTER_DELIVERY:
            self.nursery.start_soon(_break_later, connection, plan.breaks_after_s)
        return response

    async def _execute(self, execution: Execution) -> None:
        plan = execution.plan
        with execution.scope:
            await trio.sleep(plan.queue_s)
            execution.started_s = trio.current_time()
            self.executing.add(execution)
            self.high_water = max(self.high_water, len(self.executing))
            self.note("start", execution.text)
            if plan.counted_after_s is not None:
                self.nursery.start_soon(self._count, execution, plan.counted_after_s)
            await self._work(execution)
            execution.ended_s = trio.current_time()
            self.executing.discard(execution)
            self.note("end", execution.text)
            if plan.counted_after_s is None:
                self.nursery.start_soon(self._count, execution, self.lag_s)
            self._finish(execution)

    async def _work(self, execution: Execution) -> None:
        plan = execution.plan
        if not execution.streamed or plan.body is not None:
            await trio.sleep(plan.seconds)
            return
        for number, text in enumerate(plan.texts):
            await trio.sleep(plan.seconds / len(plan.texts))
            if plan.stops_when_left and number and execution.response.left.is_set():
                return
            self._send(execution, b"data: " + json.dumps({"text_output": text}).encode() + b"\n\n")
            if plan.breaks is Break.MID_ANSWER:
                execution.connection.break_()

    def _finish(self, execution: Execution) -> None:
        plan = execution.plan
        if plan.body is not None:
            self._send(execution, plan.body)
        elif not execution.streamed:
            text = "".join(plan.texts)
            self._send(execution, json.dumps({"text_output": text} if plan.status == 200 else {"error": text}).encode())
        if plan.breaks is Break.MID_ANSWER:
            execution.connection.break_()
        if not execution.connection.broken:
            if execution.response.status is None:
                self._send(execution, b"")
            execution.response.complete = True
            execution.response.notify()

    def _send(self, execution: Execution, piece: bytes) -> None:
        if execution.connection.broken:
            return
        response = execution.response
        response.status, response.headers = execution.plan.status, execution.plan.headers
        response.pieces.append(piece)
        response.notify()

    async def _count(self, execution: Execution, after_s: float) -> None:
        await trio.sleep(after_s)
        success, fail = execution.plan.counts
        execution.load.success += success
        execution.load.fail += fail
        execution.load.busy_ms += int(execution.plan.seconds * 1000)
        execution.process.success += success
        execution.process.fail += fail

    async def ask(self, fault: Fault | None, seconds: float) -> Process:
        """A question about the backend. Raises GovernorError as the port would."""
        if fault is Fault.HANGS:
            await trio.sleep(READING_LIMIT_S)
            raise BackendUnavailableError("no answer in time")
        await trio.sleep(seconds)
        match fault:
            case Fault.LOST:
                raise ConnectionLostError("the connection broke")
            case Fault.UNLOADED:
                raise ReadingRefusedError(Refusal.MODEL_UNAVAILABLE, "requested model is not available")
            case Fault.MALFORMED:
                raise BackendProtocolError("not JSON")
            case Fault.UNSENDABLE:
                raise GovernorError("cannot be sent")
            case _:
                pass
        if fault is Fault.REFUSED or self.process is None:
            raise BackendUnavailableError("connection refused")
        return self.process


def plain_facts() -> ModelFacts:
    """A model whose counter counts every call once."""
    return ModelFacts(
        name=MODEL,
        decoupled=False,
        ensemble=False,
        max_batch_size=0,
        instance_count=4,
        inputs=(),
        outputs=(),
        versions=("1",),
    )


def decoupled_facts() -> ModelFacts:
    """A model that counts before its work ends (E12)."""
    return replace(plain_facts(), decoupled=True)


def ensemble_facts() -> ModelFacts:
    """A model of models; a success adds one to S, a failure up to two to F (E12)."""
    return replace(plain_facts(), ensemble=True)


def _text_of(wire: WireRequest) -> str:
    if wire.path.endswith("/infer"):
        size = next(int(value) for name, value in wire.headers if name.lower() == "inference-header-content-length")
        return bytes(wire.body[size + 4 :]).decode()
    text = json.loads(bytes(wire.body))["text_input"]
    assert isinstance(text, str)
    return text


async def _break_later(connection: Connection, seconds: float) -> None:
    await trio.sleep(seconds)
    connection.break_()
