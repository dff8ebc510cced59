"""An identity over a real Triton, in the test's own process, whose every released credit is held against the work."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import trio

from governor.config import BackendConfig, EvidenceConfig
from governor.core.claims import Claim
from governor.core.evidence import OnFall
from governor.identity import Call, CallRequest, Identity, IdentityKey, IdentitySettings
from governor.triton.model import TritonModel
from governor.triton.outcomes import CallKind
from governor.triton.wire import WireRequest, model_path
from tests.evidence.lab import infer_body
from tests.evidence.proxy import Proxy
from tests.evidence.work import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping

    from governor.core.claims import ClaimState
    from governor.errors import JsonValue
    from governor.identity import IdentityStatistics
    from tests.evidence.lab import Lab

POLL_S = 0.25
SETTLE_S = 0.5
"""Half the default, to be quick: what these models answer is counted within some 0.08 s."""
MARGIN_S = 1.0
"""Between the end of the work and its free credit, besides one poll: a reading, and a busy machine."""

ANSWER_S = 20.0
"""Longer than any call that is waited for."""


@dataclass
class LogBook:
    """What the governor logged in this test; the fixture in conftest.py fills it."""

    lines: list[MutableMapping[str, object]] = field(default_factory=list)


LOG = LogBook()


class ClaimBook(dict[int, Claim]):
    """A ledger's claims, with the Unix time at which each was gone: the moment in which its credit was free."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: set[int] = set()
        self.released_s: dict[int, float] = {}

    def __setitem__(self, claim_id: int, claim: Claim) -> None:
        self.opened.add(claim_id)
        super().__setitem__(claim_id, claim)

    def __delitem__(self, claim_id: int) -> None:
        super().__delitem__(claim_id)
        self.released_s[claim_id] = time.time()


@dataclass(frozen=True)
class Sent:
    """A call and the id by which the work log knows it."""

    call: Call
    id: str

    @property
    def claim_id(self) -> int:
        """The claim it got."""
        assert self.call.claim_id is not None, "it waits for a credit"
        return self.call.claim_id

    async def status(self) -> int:
        """Waits for the whole answer; returns its status."""
        with trio.fail_after(ANSWER_S):
            head = await self.call.head()
            await self.call.body()
        return head.status


class Bench:
    """One identity and the truth about it.

    Attributes:
        identity: under test.
        lab: the Triton behind it.
        proxy: between the two; None where the identity reaches Triton directly.
        sent: every call so far.
    """

    def __init__(self, identity: Identity, lab: Lab, proxy: Proxy | None) -> None:
        self.identity = identity
        self.lab = lab
        self.proxy = proxy
        self.sent: list[Sent] = []
        self._logged_before = len(LOG.lines)
        self._book = ClaimBook()
        identity._ledger.claims = self._book

    # Calls

    def submit(
        self,
        delay_ms: int = 1,
        x: int = 5,
        *,
        kind: CallKind = CallKind.INFER,
        body: Mapping[str, JsonValue] | bytes | None = None,
        version: str | None = None,
    ) -> Sent:
        """A call that computes so long; `body` replaces what would be sent, "ID" in bytes becomes its id."""
        request_id = str(uuid.uuid4())
        if body is None and kind is CallKind.INFER:
            body = infer_body(request_id, delay_ms, x)
        elif body is None:
            body = {"id": request_id, "DELAY_MS": delay_ms, "X": x}
        elif not isinstance(body, bytes):
            body = {"id": request_id, **body}
        raw = body.replace(b"ID", request_id.encode()) if isinstance(body, bytes) else json.dumps(body).encode()
        path = model_path(self.identity.key.model, version, kind.value)
        wire = WireRequest(method="POST", path=path, headers=(("Content-Type", "application/json"),), body=raw)
        request = CallRequest(wire=wire, kind=kind, max_answer_bytes=1_000_000)
        sent = Sent(self.identity.submit(request, key="caller"), request_id)
        self.sent.append(sent)
        return sent

    async def call(self, delay_ms: int = 1, x: int = 5, *, kind: CallKind = CallKind.INFER) -> int:
        """A call and its answer's status."""
        return await self.submit(delay_ms, x, kind=kind).status()

    async def delivered(self, sent: Sent) -> Sent:
        """Waits until its last byte has left."""
        await until(lambda: self._book[sent.claim_id].delivered, "the request to be delivered")
        return sent

    async def executing(self, sent: Sent) -> Sent:
        """Waits until its work has begun."""
        await until(lambda: self.lab.work.of(sent.id) is not None, "the work to begin")
        return sent

    async def broken(self, delay_ms: int, *, kind: CallKind = CallKind.INFER, version: str | None = None) -> Sent:
        """A call whose connection breaks while it executes."""
        sent = await self.executing(self.submit(delay_ms, kind=kind, version=version))
        await self.break_off(sent)
        return sent

    async def break_off(self, sent: Sent) -> None:
        """Breaks the call's connection: by a reset where there is a proxy, or else by closing it here."""
        if self.proxy is not None:
            self.proxy.reset(sent.id)
        else:
            assert sent.call.scope is not None, "it has its credit"
            sent.call.scope.cancel()
        await self.is_broken(sent)

    async def is_broken(self, sent: Sent) -> None:
        """Waits until its claim is a broken one, or gone."""
        claim_id = sent.claim_id
        await until(lambda: claim_id not in self._book or self._book[claim_id].state.is_broken, "the call to break")

    # What can be seen

    @property
    def logs(self) -> list[MutableMapping[str, object]]:
        """What was logged about this identity."""
        mine = str(self.identity.key)
        return [line for line in LOG.lines[self._logged_before :] if line.get("identity") == mine]

    @property
    def statistics(self) -> IdentityStatistics:
        """Now."""
        return self.identity.statistics()

    @property
    def free(self) -> int:
        """Free credits."""
        return self.statistics.ledger.free

    @property
    def states(self) -> dict[ClaimState, int]:
        """Claims by state, without zeros."""
        return {state: count for state, count in self.statistics.ledger.states.items() if count}

    def state(self, sent: Sent) -> ClaimState | None:
        """The state of its claim; None when the claim is gone."""
        claim = self._book.get(sent.claim_id)
        return claim.state if claim is not None else None

    def held(self, sent: Sent) -> bool:
        """Its credit is not back."""
        return sent.claim_id in self._book

    def contested(self) -> bool:
        """E10 holds."""
        return self.statistics.ledger.contested

    def proof(self, sent: Sent) -> str | None:
        """What ended its broken claim, as the log says."""
        ended = [told for told in self.logs if told["event"] == "claim_ended" and told["claim"] == sent.claim_id]
        return str(ended[0]["proof"]) if ended else None

    def logged(self, event: str) -> int:
        """How often something was logged."""
        return sum(told["event"] == event for told in self.logs)

    # Waiting

    async def readings(self, count: int, *, seconds: float = 10.0) -> None:
        """Waits for so many further readings that the ledger took."""
        ledger = self.identity._ledger
        wanted = ledger._readings + count
        await until(lambda: ledger._readings >= wanted, f"{count} readings", seconds=seconds)

    async def settle(self) -> None:
        """Waits until everything that was answered is counted, by the settings."""
        await trio.sleep(self.identity.settings.settle_s + 0.05)

    async def refusals(self, count: int, *, seconds: float = 10.0) -> None:
        """Waits for so many further readings that were refused or not to be had."""
        wanted = self.statistics.totals.readings_failed + count
        await until(
            lambda: self.statistics.totals.readings_failed >= wanted, f"{count} refused readings", seconds=seconds
        )

    async def freed(self, sent: Sent, *, seconds: float = 15.0) -> None:
        """Waits until its credit is back."""
        await until(
            lambda: not self.held(sent), lambda: f"the credit of a claim that is {self.state(sent)}", seconds=seconds
        )

    async def freed_by_the_end(self, sent: Sent, *, margin_s: float = POLL_S + MARGIN_S, seconds: float = 15.0) -> None:
        """Waits until its credit is back and holds that it came after the end of its work, and soon."""
        await self.freed(sent, seconds=seconds)
        execution = self.lab.work.of(sent.id)
        assert execution is not None
        assert execution.end_s is not None, "the credit came back while the work went on"
        delay_s = self._book.released_s[sent.claim_id] - execution.end_s
        assert 0 <= delay_s <= margin_s

    async def becomes(self, sent: Sent, state: ClaimState) -> None:
        """Waits until its claim is in this state."""
        await until(lambda: self.state(sent) is state, lambda: f"a claim that is {self.state(sent)} to be {state}")

    async def stays(self, sent: Sent, state: ClaimState, *, seconds: float) -> None:
        """For so long its claim stays as it is."""
        until_s = trio.current_time() + seconds
        while trio.current_time() < until_s:
            assert self.state(sent) is state
            await trio.sleep(0.01)

    def judge(self) -> None:
        """No credit was back before its work had ended, and never more worked than there are slots."""
        assert self._book.opened == self._book.released_s.keys() | self._book.keys(), "a claim left unseen"
        for sent in self.sent:
            execution = self.lab.work.of(sent.id)
            released_s = self._book.released_s.get(sent.call.claim_id or 0)
            if execution is not None and released_s is not None:
                assert execution.alive_until_s <= released_s, (
                    f"the credit of claim {sent.claim_id} was back {execution.alive_until_s - released_s:.3f} s before"
                    f" its work had ended (proof: {self.proof(sent) or 'its answer'})"
                )
        assert self.lab.work.peak([sent.id for sent in self.sent]) <= self.identity.settings.slots


@asynccontextmanager
async def governed(
    lab: Lab,
    model: str = "work",
    *,
    slots: int = 1,
    backend: str = "triton",
    direct: bool = False,
    metrics: bool = False,
    boot: Literal["auto", "trace", "id", "none"] = "auto",
    on_fall: OnFall = OnFall.SEEN,
    poll_s: float = POLL_S,
    poll_timeout_ms: int = 1_000,
    settle_s: float = SETTLE_S,
    lane_idle_s: float = 2.0,
    judged: bool = True,
) -> AsyncIterator[Bench]:
    """A running identity. At the end all that happened is judged, and everything is cancelled.

    Args:
        lab: its Triton.
        model: its model.
        slots: its credits.
        backend: its backend's name.
        direct: without a proxy, so that a Triton that is away refuses connections.
        metrics: the process's own counters are configured.
        boot: where boot identity comes from.
        on_fall: what a fall means without it.
        poll_s: pause between two readings.
        poll_timeout_ms: bound on one reading.
        settle_s: how long an answer may go uncounted.
        lane_idle_s: how long an unused connection stays open.
        judged: False where the documents declare that a credit may come back early.
    """
    settings = IdentitySettings(
        slots=slots,
        max_waiting=64,
        lane_idle_s=lane_idle_s,
        call_limit_s=3600.0,
        poll_interval_s=poll_s,
        settle_s=settle_s,
        on_fall=on_fall,
    )
    async with trio.open_nursery() as nursery:
        proxy = None if direct else await nursery.start(Proxy(lab.ports[0]).serve)
        config = BackendConfig(
            name=backend,
            url=lab.url if proxy is None else proxy.url,
            metrics_url=lab.metrics_url if metrics else None,
            evidence=EvidenceConfig(boot_identity=boot, poll_timeout_ms=poll_timeout_ms),
        )
        identity = Identity(IdentityKey(backend, model), settings, TritonModel(config, model))
        bench = Bench(identity, lab, proxy)
        await nursery.start(identity.run)
        yield bench
        if judged:
            bench.judge()
        nursery.cancel_scope.cancel()


async def at_once(*scenarios: Callable[[], Awaitable[None]]) -> None:
    """Runs scenarios side by side, each with a model of its own: most of their time is waiting."""
    async with trio.open_nursery() as nursery:
        for scenario in scenarios:
            nursery.start_soon(scenario)
