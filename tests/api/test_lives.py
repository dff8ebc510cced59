"""Random lives of sessions behind the HTTP surface, with random schedules: prompts come, are cancelled, removed,
overtaken by deadlines, their callers leave at any moment; answers are asked for beside them; readers come and go;
sessions are branched, closed, drained.

Held in every life: exactly one terminal event for each prompt that got a 202 (S7); ids without gaps; the pending count
is the length of the list of pending prompts and never above the limit (S1); turns run in the order of admission (S4);
every credit comes back; no task, subscriber, session or place in a queue is left.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from governor.journal import replay_of
from tests.api.harness import AsgiExchange, Service, service
from tests.api.test_departures import Departing, picture
from tests.shell.harness import tasks_at_work

if TYPE_CHECKING:
    from governor.session import Session

SESSIONS = 2
LIMIT = 3
DEADLINE_MS = 5_000
PROMPT_STATUS = {202, 400, 404, 503}


@dataclass(frozen=True)
class Step:
    """Something that happens, and the time that passes after it."""

    deed: str
    number: int = 0
    seconds: float = 0.0
    after_s: float = 0.0


DEEDS = [
    "prompt", "prompt", "prompt", "prompt", "prompt with deadline", "prompt and leave", "cancel", "remove", "listen",
    "listen no more", "branch", "branch and leave", "load", "model", "detach", "close", "open", "open and leave",
    "generate", "generate and leave",
]  # fmt: skip
STEP = st.builds(
    Step,
    deed=st.sampled_from(DEEDS),
    number=st.integers(0, 11),
    seconds=st.sampled_from([0.0, 0.5, 3.0]),
    after_s=st.sampled_from([0.0, 0.0, 0.0, 0.3, 0.5, 2.0, 3.0]),
)


@dataclass
class Life:
    """What the clients of one life know.

    Attributes:
        sessions: every session that there ever was, in the order of its making.
        accepted: prompts that got a 202, by session, in the order of their admission as far as it is known.
        readers: open event streams.
    """

    up: Service
    nursery: trio.Nursery
    sessions: list[Session] = field(default_factory=list)
    accepted: dict[str, list[str]] = field(default_factory=dict)
    readers: list[AsgiExchange] = field(default_factory=list)
    everybody: list[AsgiExchange] = field(default_factory=list)

    async def do(self, step: Step) -> None:
        session = self.sessions[step.number % len(self.sessions)]
        if step.deed.startswith("prompt"):
            self.prompt(session, step)
        elif step.deed == "listen no more":
            if self.readers:
                self.readers.pop(step.number % len(self.readers)).leave()
        elif step.deed == "listen":
            cursor = {"Last-Event-ID": str(step.number)}
            self.readers.append(self.send("GET", f"/session/{session.id}/events", headers=cursor))
        elif step.deed != "close" or step.number > 8:
            self.command(session, step)
        self.look_around()
        await trio.sleep(step.after_s)
        self.look_around()

    def command(self, session: Session, step: Step) -> None:
        path, known = f"/session/{session.id}", self.accepted[session.id]
        method, path, body = {
            "cancel": ("POST", f"{path}/cancel", None),
            "remove": ("DELETE", f"{path}/pending-prompts/{[*known, 'none'][step.number % (len(known) + 1)]}", None),
            "branch": ("POST", f"{path}/branch", None),
            "branch and leave": ("POST", f"{path}/branch", None),
            "load": ("POST", f"{path}/load", None),
            "detach": ("POST", f"{path}/detach", None),
            "model": ("POST", f"{path}/model", {"modelId": "chat"}),
            "close": ("DELETE", path, None),
            "generate": ("POST", f"{path}/generate", {"prompt": f"{step.seconds} generate"}),
            "generate and leave": ("POST", f"{path}/generate", {"prompt": f"{step.seconds} generate"}),
            "open": ("POST", "/session", {"sessionScope": "thread"}),
            "open and leave": ("POST", "/session", {"sessionScope": "thread"}),
        }[step.deed]
        self.send(method, path, body=body, leaves=step if step.deed.endswith("leave") else None)

    def prompt(self, session: Session, step: Step) -> None:
        body: dict[str, Any] = {"prompt": [{"type": "text", "text": f"{step.seconds} prompt"}]}
        if step.deed.endswith("deadline"):
            body["deadlineMs"] = 1 + step.number * 100
        leaves = step if step.deed.endswith("leave") else None
        exchange = self.send("POST", f"/session/{session.id}/prompt", body=body, leaves=leaves)
        self.nursery.start_soon(self.note_prompt, session, exchange)

    async def note_prompt(self, session: Session, exchange: AsgiExchange) -> None:
        await exchange.ended.wait()
        if exchange.complete:
            assert exchange.status in PROMPT_STATUS
            if exchange.status == 202:
                self.accepted[session.id].append(json.loads(b"".join(exchange._pieces))["promptId"])

    def send(
        self, method: str, path: str, *, body: object = None, headers: Any = None, leaves: Step | None = None
    ) -> AsgiExchange:
        data = json.dumps(body).encode() if body is not None else b""
        exchange = Departing(
            self.up.app, method, path, data=data, headers={"Content-Type": "application/json", **(headers or {})}
        )
        self.everybody.append(exchange)
        self.nursery.start_soon(exchange.run)
        if leaves is not None:
            self.nursery.start_soon(self.leave_soon, exchange, leaves)
        return exchange

    async def leave_soon(self, exchange: AsgiExchange, step: Step) -> None:
        for _ in range(step.number):
            await trio.lowlevel.checkpoint()
        await trio.sleep(step.seconds)
        exchange.leave()

    def look_around(self) -> None:
        """What holds at every moment."""
        for session in self.up.governor.sessions.values():
            if session not in self.sessions:
                self.sessions.append(session)
                self.accepted[session.id] = []
        for session in self.sessions:
            pending = session.history.pending
            assert session.pending_count == len(pending) <= LIMIT
            assert [record.state for record in pending[1:]] == ["queued"] * len(pending[1:])
            assert not (session.closed and pending)

    async def end(self, *, drain: bool) -> None:
        """Everybody leaves, and everything has time to end."""
        if drain:
            self.up.governor.drain()
            self.look_around()
        await trio.sleep(50)
        for exchange in self.everybody:
            exchange.leave()
        await trio.sleep(50)
        for session in self.sessions:
            assert session.pending_count == 0
            assert session.log.subscriber_count == 0
            assert not session.in_use
            assert len(session._places) == 0
            assert not session._pending
            await self.check_events(session)
        assert self.up.free == 1

    async def check_events(self, session: Session) -> None:
        kept = session.log.keep()
        assert kept.whole
        assert [frame.id for frame in kept.frames] == list(range(1, kept.last_id + 1))
        replay = await replay_of(kept)
        events: list[Any] = [*replay.compacted, *replay.live]
        terminals = Counter(
            event["data"]["promptId"] for event in events if event["type"] in {"turn_complete", "turn_error"}
        )
        assert set(terminals.values()) <= {1}, "nothing ends twice"
        assert set(self.accepted[session.id]) <= set(terminals), "every 202 has its terminal event"
        admitted = [record.prompt_id for record in session.history.settled]
        assert set(terminals) == set(admitted)
        ended: set[str] = set()
        for event in events:
            prompt = event.get("promptId")
            if event["type"] in {"turn_complete", "turn_error"}:
                ended.add(prompt)
            elif event["type"] != "pending_prompt_completed" and prompt in terminals:
                assert prompt not in ended, f"{event} follows the end of its turn"
        self.check_order(events, terminals)

    def check_order(self, events: list[Any], terminals: Counter[str]) -> None:
        """Turns begin in the order in which prompts were told to wait, one after the other."""
        queued = [event["promptId"] for event in events if event["type"] == "pending_prompt_added"]
        started = [event["promptId"] for event in events if event["type"] == "pending_prompt_started"]
        assert started == [prompt for prompt in queued if prompt in started]
        running: set[str] = set()
        for event in events:
            if event["type"] == "session_update" and event["promptId"] in terminals:
                running.add(event["promptId"])
            elif event["type"] in {"turn_complete", "turn_error"}:
                running.discard(event["promptId"])
            assert len(running) <= 1


async def live(steps: list[Step], *, drain: bool, listener: bool) -> None:
    limits = {"max_pending_prompts_per_session": LIMIT, "prompt_deadline_ms": DEADLINE_MS}
    async with service(limits=limits, model={"kind": "generate_stream"}) as up:
        tasks = tasks_at_work()
        async with trio.open_nursery() as nursery:
            life = Life(up, nursery)
            for _ in range(SESSIONS):
                await up.new_session()
            life.look_around()
            if listener:
                await life.do(Step("listen"))
            for step in steps:
                await life.do(step)
            await life.end(drain=drain)
        await trio.sleep(50)
        assert tasks_at_work() == tasks
        assert picture(up)["in flight"] == 0


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.random_module(), st.lists(STEP, min_size=1, max_size=25), st.booleans(), st.booleans())
def test_whatever_clients_do_in_whatever_order(
    schedule: object, steps: list[Step], drain: bool, listener: bool
) -> None:
    async def bounded() -> None:
        with trio.fail_after(100_000):
            await live(steps, drain=drain, listener=listener)

    trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0))
