"""Random lives of a whole governor over the fake backend, with random schedules: prompts and plain calls come, are
cancelled, removed, overtaken by deadlines, left; connections break, the server dies, comes back, reloads; and then
everything heals.

Trio's scheduler draws from a generator that Hypothesis seeds, so `random_module` makes Hypothesis choose schedules.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from governor.config import EvidenceConfig
from governor.errors import GovernorError, PromptQueueFullError
from tests.shell.harness import Listener, Service, call_request, run_jumping, send_ahead, service, until
from tests.shell.world import Break, Fault, Plan

if TYPE_CHECKING:
    from governor.core.counting import Reading
    from governor.core.evidence import Ticket, Verdict
    from governor.identity import Call, CallRequest
    from governor.identity.uploads import Upload

SESSIONS = 3
RESTARTS_MAX = 20
SETTLE_MS = 20
"""Above the world's lag of 5 ms, and short: doubt is rare."""
COUNTED_ERROR = (("Content-Type", "application/json"), ("Transfer-Encoding", "chunked"))
"""The framing that shows that an error came out of the model, so that it is certainly counted."""


@dataclass(frozen=True)
class Setting:
    """What kind of world it is."""

    slots: int = 1
    kind: str = "generate"
    boots: bool = True
    metrics: bool = False
    disconnect: bool = False
    wait: bool = False
    reading_faults: bool = False
    reloads: bool = False
    deadline_ms: int | None = None

    @property
    def provable(self) -> bool:
        """A counter shows every end."""
        return not self.reading_faults and (not self.reloads or self.metrics) and self.boots


@dataclass(frozen=True)
class Step:
    """Something that happens, and the time that passes after it."""

    deed: str
    number: int
    seconds: float
    after_s: float


DEEDS = (
    *3 * ("prompt",),
    *2 * ("prompt that breaks",),
    "prompt that fails",
    "prompt with deadline",
    "cancel",
    "remove",
    "close",
    "call",
    "call that is left",
    "upload",
    "upload that is left",
    "leave",
    "break",
    "kill",
    "start",
    "restart",
    "reload",
    "fault",
    "drain",
)
MOSTLY = st.sampled_from([True, True, True, False])
SELDOM = st.sampled_from([False, False, False, True])
SETTINGS = st.builds(
    Setting,
    slots=st.integers(1, 3),
    kind=st.sampled_from(["generate", "generate_stream"]),
    boots=MOSTLY,
    metrics=st.booleans(),
    disconnect=st.booleans(),
    wait=st.booleans(),
    reading_faults=SELDOM,
    reloads=SELDOM,
    deadline_ms=st.sampled_from([None, 700]),
)
STEPS = st.lists(
    st.builds(
        Step,
        deed=st.sampled_from(DEEDS),
        number=st.integers(0, 8),
        seconds=st.sampled_from([0.0, 0.05, 0.3, 1.5]),
        after_s=st.sampled_from([0.0, 0.0, 0.0015, 0.01, 0.2, 1.2]),
    ),
    min_size=10,
    max_size=60,
)


@dataclass
class Life:
    """One run and what must hold of it."""

    setting: Setting
    governed: Service
    heard: list[Listener] = field(default_factory=list)
    admitted: dict[str, int] = field(default_factory=dict)
    texts: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    calls: list[trio.CancelScope] = field(default_factory=list)
    count: int = 0
    reloads: int = 0
    doubted: bool = False

    def __post_init__(self) -> None:
        """Notices doubt: a counter's bound that may be too high, because a new life began so soon after an answer
        that the answer may belong to either. A call that breaks and ends under doubt is never proven.
        """
        ledger = self.governed.identity._ledger
        apply = ledger.apply

        def noticing(ticket: Ticket, reading: Reading, now_s: float) -> Verdict:
            verdict = apply(ticket, reading, now_s)
            self.doubted |= ledger._unsettled.doubtful
            return verdict

        ledger.apply = noticing  # type: ignore[method-assign]  # the same, and somebody who looks on

    @property
    def provable(self) -> bool:
        """Once all work has ended, all credits come back without a restart."""
        return self.setting.provable and not self.doubted and not self.overlooked

    @property
    def overlooked(self) -> bool:
        """A reload that no reading has shown, as the counter was no higher before it. No fall is deduced from answers
        (ADR-0012), so the process's counter is not asked for what the model's will never show; the runbook says so.
        """
        return self.governed.identity.statistics().ledger_totals.reloads < self.reloads

    def open_sessions(self) -> None:
        for _ in range(SESSIONS):
            self.heard.append(self.governed.listen(self.governed.session()))

    def do(self, step: Step) -> None:
        """One deed; those that make no sense now are left out."""
        kind = step.deed.split()[0]
        getattr(self, f"do_{kind}")(step)

    def do_leave(self, step: Step) -> None:
        if self.calls:
            self.calls[step.number % len(self.calls)].cancel()

    def do_cancel(self, step: Step) -> None:
        self.heard[step.number % SESSIONS].session.cancel()

    def do_remove(self, step: Step) -> None:
        if self.admitted:
            prompts = list(self.admitted)
            prompt = prompts[step.number % len(prompts)]
            self.heard[self.admitted[prompt]].session.remove(prompt)

    def do_close(self, step: Step) -> None:
        if step.number == 0:
            self.heard[0].session.close()

    def do_break(self, _step: Step) -> None:
        self.governed.world.break_connections()

    def do_kill(self, _step: Step) -> None:
        if self.governed.world.process is not None:
            self.governed.world.kill()

    def do_start(self, _step: Step) -> None:
        if self.governed.world.process is None:
            self.governed.world.start()

    def do_restart(self, step: Step) -> None:
        self.do_kill(step)
        self.do_start(step)

    def do_reload(self, _step: Step) -> None:
        # Without boot identity a reload passes for a restart, as the operator's `on_fall` says (E8).
        if self.setting.reloads and self.setting.boots and self.governed.world.process is not None:
            self.reloads += 1
            self.governed.world.reload()

    def do_fault(self, step: Step) -> None:
        if self.setting.reading_faults:
            self.governed.world.faults.append(list(Fault)[step.number % len(Fault)])

    def do_drain(self, step: Step) -> None:
        if step.number == 0:
            self.governed.governor.drain()

    def plan(self, step: Step) -> str:
        """A text of its own and what becomes of it."""
        self.count += 1
        text = f"call {self.count}"
        breaks = Break.NEVER
        if step.deed.endswith("breaks"):
            breaks = (Break.BEFORE_DELIVERY, Break.AFTER_DELIVERY, Break.MID_ANSWER)[step.number % 3]
        self.governed.world.plans[text] = Plan(
            seconds=step.seconds,
            texts=("a", "b"),
            breaks=breaks,
            breaks_after_s=0.02,
            deliver_s=0.01 if step.number % 4 == 0 else 0.0,
            stops_when_left=step.number % 2 == 0,
        )
        if step.deed.endswith("fails"):
            self.governed.world.plans[text] = Plan(
                seconds=step.seconds, status=500, body=b'{"error": "ill"}', headers=COUNTED_ERROR, counts=(0, 1)
            )
        return text

    def do_prompt(self, step: Step) -> None:
        number = step.number % SESSIONS
        session = self.heard[number].session
        text = self.plan(step)
        try:
            admission = session.admit(text, deadline_ms=100 if step.deed.endswith("deadline") else None)
        except PromptQueueFullError:
            assert session.pending_count == 3
            return
        except GovernorError:
            assert session.closed
            return
        self.admitted[admission.prompt_id] = number
        self.texts[number].append(text)
        if step.number < 8:
            session.let_start(admission.prompt_id)

    def do_call(self, step: Step) -> None:
        # Handed in at once: a life must not be over before a call of its last moment has begun.
        try:
            call = self.governed.identity.submit(
                call_request(self.plan(step), disconnect_on_abandon=self.setting.disconnect), key="plain"
            )
        except GovernorError:
            return
        scope = trio.CancelScope()
        self.calls.append(scope)
        self.governed.world.nursery.start_soon(self._await_call, call, scope)
        if step.deed == "call that is left":
            scope.deadline = trio.current_time() + step.after_s / 2

    def do_upload(self, step: Step) -> None:
        """A call whose body goes ahead, in pieces, where there is a slot for it (ADR-0018)."""
        upload = self.governed.identity.uploads.begin()
        if upload is None:
            return
        scope = trio.CancelScope()
        self.calls.append(scope)
        request = call_request(self.plan(step), disconnect_on_abandon=self.setting.disconnect)
        self.governed.world.nursery.start_soon(self._upload, upload, request, step.seconds / 10, scope)
        if step.deed == "upload that is left":
            scope.deadline = trio.current_time() + step.after_s

    async def _upload(self, upload: Upload, request: CallRequest, pause_s: float, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await send_ahead(upload, request, pause_s=pause_s)
                call = self.governed.identity.submit(request, key="plain", upload=upload)
            except BaseException as error:
                upload.over()
                if isinstance(error, GovernorError):
                    return
                raise
            await self._await_call(call, trio.CancelScope())

    async def _await_call(self, call: Call, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self.governed.identity.uploads.stand_by(call)
                await call.body()
        except GovernorError:
            pass
        finally:
            call.abandon()

    def check(self) -> None:
        """Holds at any time."""
        ledger = self.governed.identity.statistics().ledger
        assert ledger.free + sum(ledger.states.values()) == ledger.slots == self.setting.slots
        assert ledger.free >= 0
        assert self.governed.world.high_water <= self.setting.slots, "more execute than there are credits"

    async def heal(self) -> None:
        """Faults end, the server is there, and everything that was started comes to its end.

        A claim that no counter can prove holds its credit until the process ends, so there restarts are needed: not
        more than there are claims. Without boot identity even that may not be enough, so the governor gives up.
        """
        world = self.governed.world
        world.faults.clear()
        if world.process is None:
            world.start()
        for _ in range(RESTARTS_MAX if self.setting.boots else 1):
            with trio.move_on_after(60):
                while not self._over():
                    await trio.sleep(0.25)
                    self.check()
            if self._over():
                return
            assert not self.provable, "a credit is held although a counter showed the end"
            if self.setting.boots:
                world.restart()
        assert not self.setting.boots, "credits are held for ever"
        self.governed.governor.drain()
        await until(lambda: not world.alive, 60, step_s=0.25)

    def _over(self) -> bool:
        pending = any(listener.session.pending_count for listener in self.heard)
        under_way = self.governed.identity.uploads.under_way
        return not (pending or under_way or self.governed.world.alive) and self.governed.free == self.setting.slots

    async def end(self) -> None:
        """Nothing is left."""
        world = self.governed.world
        self.check()
        await trio.sleep(3)
        assert world.open_lanes == 0
        assert self.governed.identity.statistics().waiting == 0
        assert self.governed.identity.uploads.under_way == 0
        for prompt, number in self.admitted.items():
            self.heard[number].outcome(prompt)
        for number, listener in enumerate(self.heard):
            ids = [each["id"] for each in listener.events]
            assert ids == list(range(1, len(ids) + 1)), "ids have no gaps"
            assert listener.session.pending_count == 0
            mine = self.texts[number]
            executed = [each.text for each in world.executions if each.text in mine]
            assert executed == [text for text in mine if text in executed], "in the order of admission"


async def live(setting: Setting, steps: list[Step]) -> None:
    """One life from its beginning to its end."""
    before = trio.lowlevel.current_statistics().tasks_living
    async with service(
        boots=setting.boots,
        metrics=setting.metrics,
        limits={"max_pending_prompts_per_session": 3, "prompt_deadline_ms": setting.deadline_ms},
        model={
            "slots": setting.slots,
            "kind": setting.kind,
            "on_abandon": "disconnect" if setting.disconnect and setting.kind == "generate_stream" else "finish",
        },
        backend={
            "when_unavailable": "wait" if setting.wait else "fail",
            "unavailable_wait_ms": 3_000,
            "evidence": EvidenceConfig(poll_interval_ms=250, settle_ms=SETTLE_MS),
        },
    ) as governed:
        life = Life(setting, governed)
        life.open_sessions()
        for step in steps:
            life.do(step)
            life.check()
            await trio.sleep(step.after_s)
        await life.heal()
        await life.end()
        totals = governed.identity.statistics().ledger_totals
        event(f"provable {life.provable}, doubted {life.doubted}, overlooked {life.overlooked}")
        event(f"most at once {governed.world.high_water} of {setting.slots}")
        event(f"proven quiet {min(totals.proven_quiet, 3)}")
        event(f"ended with their process {min(totals.proven_process_ended, 3)}")
    assert trio.lowlevel.current_statistics().tasks_living == before


LIVES = given(schedule=st.random_module(), setting=SETTINGS, steps=STEPS)
WITHOUT_HASTE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])


def test_hypothesis_chooses_the_schedule() -> None:
    """What makes this module worth its time rests on private names of trio: notice when they go."""
    orders: set[tuple[int, ...]] = set()

    @settings(max_examples=30, database=None)
    @given(schedule=st.random_module())
    def collect(schedule: object) -> None:
        order: list[int] = []

        async def note(number: int) -> None:
            await trio.lowlevel.checkpoint()
            order.append(number)

        async def race() -> None:
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(note, number)

        run_jumping(race)
        orders.add(tuple(order))

    collect()
    assert len(orders) > 5


@settings(WITHOUT_HASTE, max_examples=150)
@LIVES
def test_whatever_happens_in_whatever_order(schedule: object, setting: Setting, steps: list[Step]) -> None:
    """Never more executing than slots; credits conserved; one terminal event per accepted prompt, ids without gaps,
    sessions in order; once everything has healed all credits are back and nothing runs on."""
    run_jumping(partial(live, setting, steps))


@pytest.mark.slow
@settings(WITHOUT_HASTE, max_examples=5_000)
@LIVES
def test_whatever_happens_many_times(schedule: object, setting: Setting, steps: list[Step]) -> None:
    """The same, long enough to find what is rare."""
    run_jumping(partial(live, setting, steps))
