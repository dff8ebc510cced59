"""What the shell's tests share: an identity or a whole governor over a fake backend, and sharp ways to wait."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from governor.backend import BackendStatus
from governor.config import BackendConfig, Config, EvidenceConfig, LimitsConfig, ModelConfig
from governor.core.evidence import OnFall
from governor.identity import Call, CallRequest, Identity, IdentityKey, IdentitySettings
from governor.identity.runners import IDLE
from governor.service import Governor
from governor.triton.metadata import ServerFacts
from governor.triton.outcomes import CallKind
from governor.triton.wire import WireRequest
from tests.shell.fakes import FakePort
from tests.shell.world import MODEL, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping

    from governor.core.claims import ClaimState
    from governor.identity.uploads import Upload
    from governor.session import EventStream, Session

TOO_LONG_S = 100_000.0
"""No test waits so long, in its own time; one that does is stuck."""
POLL_S = 0.25
SETTLE_S = 1.0
LANE_IDLE_S = 2.0
KEY = IdentityKey("b", MODEL)


def run_jumping(
    test: Callable[[], Awaitable[None]],
    *,
    clock: trio.abc.Clock | None = None,
    instruments: Iterable[trio.abc.Instrument] = (),
) -> None:
    """Runs a test on a clock of its own that jumps when nothing can run: no test here waits in real time."""
    assert clock is None, "the clock is the runner's affair"

    async def bounded() -> None:
        with trio.fail_after(TOO_LONG_S):
            await test()

    trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0), instruments=tuple(instruments))


def call_request(
    text: str = "1",
    *,
    kind: CallKind = CallKind.GENERATE,
    max_answer_bytes: int = 1_000_000,
    disconnect_on_abandon: bool = False,
) -> CallRequest:
    """A call whose first number is how many seconds it executes, unless the world has a plan for the text."""
    return CallRequest(
        wire=WireRequest(
            method="POST", path=f"/v2/models/{MODEL}/{kind.value}", body=json.dumps({"text_input": text}).encode()
        ),
        kind=kind,
        max_answer_bytes=max_answer_bytes,
        disconnect_on_abandon=disconnect_on_abandon,
    )


async def send_ahead(upload: Upload, request: CallRequest, *, pause_s: float = 0.0) -> None:
    """Sends all of the request but the last byte of its body, in pieces."""
    body = bytes(request.wire.body)
    await upload.send_head(replace(request.wire, body=b""), len(body))
    for start in range(0, len(body) - 1, 9):
        await trio.sleep(pause_s)
        await upload.send(body[start : min(start + 9, len(body) - 1)])
    upload.keep_back(body[-1:])


@dataclass(slots=True)
class Bench:
    """An identity over a fake backend."""

    world: World
    identity: Identity
    stop: trio.CancelScope

    def submit(self, text: str = "1", *, key: str = "k", **options: Any) -> Call:
        """Submits `call_request(text)`."""
        return self.identity.submit(call_request(text, **options), key=key)

    @property
    def free(self) -> int:
        """Free slot credits."""
        return self.identity.statistics().ledger.free

    @property
    def states(self) -> dict[ClaimState, int]:
        """Claims by state, without zeros."""
        return {state: count for state, count in self.identity.statistics().ledger.states.items() if count}


@asynccontextmanager
async def identity_bench(
    *,
    slots: int = 1,
    max_waiting: int = 64,
    on_fall: OnFall = OnFall.SEEN,
    call_limit_s: float = 3600.0,
    boots: bool = True,
    metrics: bool = False,
    max_unprovable_age_s: float | None = None,
) -> AsyncIterator[Bench]:
    """A running identity; everything is cancelled at the end."""
    settings = IdentitySettings(
        slots=slots,
        max_waiting=max_waiting,
        lane_idle_s=LANE_IDLE_S,
        call_limit_s=call_limit_s,
        poll_interval_s=POLL_S,
        settle_s=SETTLE_S,
        on_fall=on_fall,
        max_unprovable_age_s=max_unprovable_age_s,
    )
    async with trio.open_nursery() as nursery:
        world = World(nursery, boots=boots, metrics=metrics)
        identity = Identity(KEY, settings, FakePort(world))
        stop = trio.CancelScope()
        await nursery.start(_run_in, identity, stop)
        yield Bench(world, identity, stop)
        nursery.cancel_scope.cancel()


async def _run_in(
    identity: Identity, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with scope:
        await identity.run(task_status=task_status)


async def until(condition: Callable[[], bool], within_s: float, *, step_s: float = 0.01) -> float:
    """Waits for a condition and returns how long it took, in seconds; fails after `within_s`."""
    began_s = trio.current_time()
    with trio.fail_after(within_s):
        while not condition():
            await trio.sleep(step_s)
    return trio.current_time() - began_s


async def body_within(call: Call, within_s: float) -> bytes:
    """The call's whole body, as a caller with a deadline takes it: who runs out of time abandons the call."""
    try:
        with trio.fail_after(within_s):
            await call.started()
            await call.head()
            return await call.body()
    finally:
        call.abandon()


@dataclass(slots=True)
class FakeHealth:
    """A health check that sees the world as Triton's own routes would show it."""

    world: World
    not_ready: bool = False
    models_not_ready: set[str] = field(default_factory=set)
    checks: int = 0

    async def __call__(
        self, config: BackendConfig, models: Collection[str], known: ServerFacts | None
    ) -> BackendStatus:
        """What is found now."""
        self.checks += 1
        await trio.sleep(0.001)
        if self.world.process is None:
            return BackendStatus(problem=f"{config.url} refuses connections", reachable=False)
        if self.not_ready:
            return BackendStatus(problem=f"{config.url} answers, but says it is not ready")
        problems = {model: "not ready" for model in models if model in self.models_not_ready}
        server = known or ServerFacts("triton", "2.51.0", frozenset())
        return BackendStatus(problem=None, model_problems=problems, server=server)


@dataclass(slots=True)
class Service:
    """A whole governor over a fake backend."""

    world: World
    governor: Governor
    health: FakeHealth
    stop: trio.CancelScope

    @property
    def identity(self) -> Identity:
        """The only identity."""
        return next(iter(self.governor.identities.values()))

    @property
    def free(self) -> int:
        """Free slot credits of the only identity."""
        return self.identity.statistics().ledger.free

    def session(self) -> Session:
        """A new session."""
        return self.governor.create_session()

    def listen(self, session: Session) -> Listener:
        """Hears everything of a session from its first event on; reads in the background."""
        listener = Listener(session)
        self.world.nursery.start_soon(listener.run)
        return listener


@dataclass(slots=True)
class Listener:
    """A subscriber that keeps what it hears.

    Attributes:
        events: envelopes in order, those without an id left out.
        at_s: when each was heard.
        ended: the stream has ended.
    """

    session: Session
    events: list[dict[str, Any]] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    ended: bool = False
    stream: EventStream | None = None

    async def run(self) -> None:
        """Reads to the end."""
        self.stream = self.session.subscribe(after_id=0, epoch=None, max_frames=10_000)
        try:
            while (frame := await self.stream.next_frame()) is not None:
                if frame.id is not None:
                    self.events.append(envelope(frame.data))
                    self.at_s.append(trio.current_time())
            self.ended = True
        finally:
            self.stream.close()

    def types(self, prompt_id: str | None = None) -> list[str]:
        """Types of the events, of one prompt if named; agent and user chunks by their own names."""
        return [
            event["data"]["update"]["sessionUpdate"] if event["type"] == "session_update" else event["type"]
            for event in self.events
            if prompt_id is None or event.get("promptId") == prompt_id
        ]

    def terminals(self, prompt_id: str) -> list[dict[str, Any]]:
        """The terminal events of one prompt, matched as the client library does."""
        return [
            event
            for event in self.events
            if event["type"] in {"turn_complete", "turn_error"} and event["data"]["promptId"] == prompt_id
        ]

    def outcome(self, prompt_id: str) -> str:
        """How the prompt ended for its caller: its stop reason or its error code. There must be exactly one."""
        (event,) = self.terminals(prompt_id)
        return str(event["data"]["stopReason" if event["type"] == "turn_complete" else "code"])

    def text(self, prompt_id: str) -> str:
        """Everything the model said in one turn."""
        return "".join(
            event["data"]["update"]["content"]["text"]
            for event in self.events
            if event["type"] == "session_update"
            and event.get("promptId") == prompt_id
            and event["data"]["update"]["sessionUpdate"] == "agent_message_chunk"
        )


def envelope(frame: bytes) -> dict[str, Any]:
    """The JSON envelope of an SSE frame."""
    line = next(line for line in frame.decode("utf-8", "surrogatepass").split("\n") if line.startswith("data: "))
    value = json.loads(line.removeprefix("data: "))
    assert isinstance(value, dict)
    return value


def ask(session: Session, text: str, *, deadline_ms: int | None = None) -> str:
    """Admits a prompt, lets it start and returns its id: what a client's POST does."""
    admission = session.admit(text, deadline_ms=deadline_ms)
    session.let_start(admission.prompt_id)
    return admission.prompt_id


@asynccontextmanager
async def service(
    *,
    limits: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    backend: Mapping[str, Any] | None = None,
    models: tuple[ModelConfig, ...] | None = None,
    boots: bool = True,
    metrics: bool = False,
) -> AsyncIterator[Service]:
    """A running governor with one model of one slot; everything is cancelled at the end."""
    config = Config(
        limits=LimitsConfig(**(limits or {})),
        backends=(
            BackendConfig(
                name="b",
                url="http://127.0.0.1:8000",
                **{"evidence": EvidenceConfig(poll_interval_ms=250, settle_ms=1000), **(backend or {})},
            ),
        ),
        models=models
        or (ModelConfig(**{"name": MODEL, "backend": "b", "slots": 1, "kind": "generate", **(model or {})}),),
    )
    async with trio.open_nursery() as nursery:
        world = World(nursery, boots=boots, metrics=metrics)
        health = FakeHealth(world)
        clock = trio.current_time
        governor = Governor(
            config,
            now_ms=lambda: int(clock() * 1000),
            make_port=lambda _config, _model: FakePort(world),
            check=health,
        )
        stop = trio.CancelScope()
        await nursery.start(_run_governor, governor, stop)
        await trio.sleep(0.01)  # the first health check is over
        yield Service(world, governor, health, stop)
        nursery.cancel_scope.cancel()


async def _run_governor(
    governor: Governor, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with scope:
        await governor.run(task_status=task_status)


def tasks_at_work() -> int:
    """Tasks alive in this run, without those that an identity keeps for its next calls and that hold nothing."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    found, tasks = 0, [root]
    while tasks:
        task = tasks.pop()
        found += task.name != IDLE
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found
