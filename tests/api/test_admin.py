"""What operators see: A7, D13. The acts are in test_admin_acts."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from api.admin.views import state
from api.guard import Guard
from governor.config import ModelConfig
from governor.core.claims import ClaimState
from governor.recent import EVENTS_MAX
from tests.api.harness import AsgiExchange, Events, Service, service, streaming
from tests.shell.world import Break, Fault, Plan, decoupled_facts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from api.views import View
    from governor.service import Governor

ADMIN = "admin-0123456789ab"
API = "callers-0123456789"
AS_ADMIN = {"Authorization": f"Bearer {ADMIN}"}
TOKENS = {"admin": ADMIN}
ID = "b:m"
SECOND = ModelConfig(name="other", triton_model="m2", backend="b", slots=2, kind="generate")


async def look(up: Service, query: bytes = b"") -> dict[str, Any]:
    """The whole state."""
    answer = await up.ask("GET", "/admin/identities", headers=AS_ADMIN, query=query)
    assert answer.status == 200, answer
    return answer.json


async def identity(up: Service, identity_id: str = ID) -> dict[str, Any]:
    """One identity."""
    answer = await up.ask("GET", f"/admin/identities/{identity_id}", headers=AS_ADMIN)
    assert answer.status == 200, answer
    return answer.json


async def call(up: Service) -> None:
    """A call of `/v2` that is answered at once."""
    assert (await up.ask("POST", "/v2/models/chat/generate", body={"text_input": "0"})).status == 200


async def break_call(up: Service, seconds: float = 60) -> None:
    """A call of `/v2` whose connection breaks while it executes."""
    up.world.next_plans.append(Plan(seconds=seconds, body=b"{}", breaks=Break.AFTER_DELIVERY))
    await up.ask("POST", "/v2/models/chat/infer", data=b"{}")


async def quarantine_call(up: Service) -> None:
    """The same, and no counter can prove its end."""
    up.world.reload(decoupled_facts())
    await break_call(up)
    await trio.sleep(2)
    state = next(iter(up.governor.identities.values())).statistics().ledger.states
    assert state[ClaimState.QUARANTINED] == 1


@asynccontextmanager
async def watching(up: Service, **headers: str) -> AsyncIterator[Feed]:
    """A listener of the live state."""
    async with streaming(up, "/admin/events", headers={**AS_ADMIN, **headers}) as exchange:
        assert await exchange.head() == 200
        feed = Feed(exchange)
        assert await feed.events.next() == "retry: 3000"
        yield feed


class Feed:
    """Reads the live state."""

    def __init__(self, exchange: AsgiExchange) -> None:
        self.events = Events(exchange)

    async def next(self) -> tuple[str, dict[str, Any]] | None:
        """Kind and data of the next frame; comments are passed over, None at the end."""
        while (frame := await self.events.next()) is not None:
            fields = dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
            if "event" in fields:
                return fields["event"], json.loads(fields["data"])
        return None

    async def until(self, kind: str) -> dict[str, Any]:
        """The data of the next frame of this kind."""
        while (found := await self.next()) is not None:
            if found[0] == kind:
                return found[1]
        raise AssertionError(f"the stream ended before any {kind}")


PATHS = [
    ("GET", "/admin"),
    ("GET", "/admin/"),
    ("GET", "/admin/identities"),
    ("GET", f"/admin/identities/{ID}"),
    ("GET", "/admin/events"),
    ("GET", "/admin/audit"),
    ("POST", "/admin/restart"),
    ("POST", f"/admin/identities/{ID}/claims/1/release"),
    ("GET", "/admin/nothing"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_without_an_admin_token_there_is_no_such_route(method: str, path: str, autojump_clock: MockClock) -> None:
    """A7: nothing tells it from a path that never existed."""
    async with service() as up:
        unknown = await up.ask(method, "/nothing-here", body={})
        for headers in ({}, AS_ADMIN):
            answer = await up.ask(method, path, body={}, headers=headers)
            assert (answer.status, answer.json) == (unknown.status, unknown.json) == (404, unknown.json)


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_every_wrong_token_gets_one_answer(method: str, path: str, autojump_clock: MockClock) -> None:
    """Missing, malformed, wrong, or the token of callers: nothing says which, nor whether the route exists."""
    wrong = [None, "", ADMIN, f"Basic {ADMIN}", f"Bearer {API}", f"Bearer {ADMIN[:-1]}", f"Bearer {ADMIN} x", "Bearer"]
    async with service(tokens={"admin": ADMIN, "api": API}) as up:
        answers = []
        for value in wrong:
            headers = {} if value is None else {"Authorization": value}
            answers.append(await up.ask(method, path, body={}, headers=headers))
        assert {answer.status for answer in answers} == {401}
        assert len({(answer.body, tuple(sorted(answer.headers.items()))) for answer in answers}) == 1
        assert up.app.operations.audit.before(None, 10) == []


async def test_the_admin_token_opens_admin_and_nothing_else(autojump_clock: MockClock) -> None:
    async with service(tokens={"admin": ADMIN, "api": API}) as up:
        assert (await up.ask("GET", "/admin/identities", headers=AS_ADMIN)).status == 200
        assert (await up.ask("GET", "/capabilities", headers=AS_ADMIN)).status == 401
        assert (await up.ask("GET", "/capabilities", headers={"Authorization": f"Bearer {API}"})).status == 200
        assert (await up.ask("GET", "/healthz")).status == 200


async def test_a_path_that_only_looks_like_admin_is_a_callers(autojump_clock: MockClock) -> None:
    async with service(tokens={"admin": ADMIN, "api": API}) as up:
        for path in ("/administrator", "/admins/identities", "/x/admin/identities", "/ADMIN/identities"):
            assert (await up.ask("GET", path, headers=AS_ADMIN)).status == 401, path
            assert (await up.ask("GET", path, headers={"Authorization": f"Bearer {API}"})).status == 404, path


async def test_the_gate_takes_no_path_for_another_than_the_routes_do(autojump_clock: MockClock) -> None:
    """Routing passes over further slashes at the beginning; the token of callers must open nothing by that."""
    for tokens in ({"admin": ADMIN, "api": API}, {"api": API}):
        async with service(tokens=tokens) as up:
            for path in ("//admin/identities", "///admin/identities", "/admin//identities", "/admin/identities/"):
                answer = await up.ask("GET", path, headers={"Authorization": f"Bearer {API}"})
                assert answer.status in {401, 404}, path
                assert "identities" not in answer.json, path


async def test_what_did_not_pass_the_gate_opens_nothing(autojump_clock: MockClock) -> None:
    """The routes ask the gate and do not trust the path."""
    async with service(tokens=TOKENS) as up:
        guard: Any = up.app.asgi_app
        behind = guard.app._app  # the gate is left out
        exchange = AsgiExchange(Guard(behind, max_body_bytes=100, max_in_flight=1), "GET", "/admin/identities")
        exchange.headers = AS_ADMIN
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run)
            assert (await exchange.whole()).code == "unauthorized"
            nursery.cancel_scope.cancel()


async def test_the_state_of_an_idle_governor(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS, more_models=(SECOND,)) as up:
        shown = await look(up)
        assert (shown["v"], shown["draining"], shown["identitiesTotal"]) == (1, False, 2)
        assert [one["id"] for one in shown["identities"]] == [ID, "b:m2"]
        assert "nextAfter" not in shown
        first = shown["identities"][0]
        assert first["names"] == ["chat"]
        assert (first["usable"], first["problem"]) == (True, None)
        assert first["credits"] == {"slots": 1, "free": 1, "held": 0}
        assert first["claims"] == []
        assert first["queue"] == {"waiting": 0, "limit": 1024, "oldestAgeMs": None, "callersTotal": 0, "callers": []}
        assert first["reading"] is None
        assert first["epoch"] == 0
        assert shown["identities"][1]["credits"]["slots"] == 2


async def test_a_running_call_and_who_waits_behind_it(autojump_clock: MockClock) -> None:
    """Whom a claim serves, how old it is, which process has it; how long the queue has waited."""
    async with service(tokens=TOKENS) as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        prompt = (await up.prompt(session, "10")).json["promptId"]
        await trio.sleep(1)
        nursery.start_soon(AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}").run)
        await trio.sleep(2)
        shown = await identity(up)
        (claim,) = shown["claims"]
        assert claim["serves"] == {"sessionId": session, "promptId": prompt}
        assert (claim["state"], claim["releasable"], claim["delivered"]) == ("running", False, True)
        assert claim["boot"] == "boot-1"
        assert claim["epoch"] == shown["epoch"] == 1
        assert claim["kind"] == "generate"
        assert 2900 <= claim["ageMs"] <= 3100
        assert shown["credits"] == {"slots": 1, "free": 0, "held": 1}
        assert shown["queue"]["waiting"] == 1
        assert 1900 <= shown["queue"]["oldestAgeMs"] <= 2100
        assert shown["sessions"] == {
            "live": 1,
            "pendingPrompts": 1,
            "activePrompts": 1,
            "queuesTotal": 1,
            "queues": [{"sessionId": session, "pendingPrompts": 1, "active": True}],
        }
        assert shown["reading"]["model"] == {"success": 0, "fail": 0}
        assert 2900 <= shown["reading"]["ageMs"] <= 3100
        assert shown["witnesses"] == {"model": {"bound": 1, "highest": 0}, "process": None}
        nursery.cancel_scope.cancel()


async def test_the_longest_queues_are_named_and_all_are_counted(autojump_clock: MockClock) -> None:
    """Whose prompts pile up, and whose calls wait for a credit; never more than sixteen of each."""
    async with service(tokens=TOKENS) as up, trio.open_nursery() as nursery:
        sessions = [await up.new_session() for _ in range(18)]
        for session in (*sessions, *sessions[-2:], sessions[-1]):
            await up.prompt(session, "60")
        for _ in range(2):
            nursery.start_soon(AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}").run)
        await trio.sleep(1)
        shown = await identity(up)
        queues = shown["sessions"]["queues"]
        assert (shown["sessions"]["queuesTotal"], len(queues)) == (18, 16)
        longest = [(sessions[-1], 3), (sessions[-2], 2), (sessions[0], 1)]
        assert [(queue["sessionId"], queue["pendingPrompts"]) for queue in queues[:3]] == longest
        assert [queue["sessionId"] for queue in queues if queue["active"]] == queues_of(shown["sessions"])
        callers = shown["queue"]["callers"]
        assert (shown["queue"]["waiting"], shown["queue"]["callersTotal"], len(callers)) == (19, 18, 16)
        assert (callers[0]["caller"], callers[0]["waiting"]) == ("address 127.0.0.1", 2)
        assert all(caller["waiting"] == 1 and caller["sessionId"] in sessions for caller in callers[1:])
        assert callers[0]["oldestAgeMs"] <= callers[1]["oldestAgeMs"]
        nursery.cancel_scope.cancel()


def queues_of(sessions: dict[str, Any]) -> list[str]:
    """Every queue that is named: the turn of each session has begun, whether it has a credit or waits for one."""
    return [queue["sessionId"] for queue in sessions["queues"]]


async def test_a_quarantined_claim_says_why_and_whose_it_was(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        await quarantine_call(up)
        shown = await identity(up)
        (claim,) = shown["claims"]
        assert claim["serves"] == {"caller": "address 127.0.0.1"}
        assert claim["releasable"] is True
        assert "broke" in claim["broke"]
        assert "decoupled" in claim["quarantined"]
        assert shown["usable"] is False
        assert "nothing can prove ended" in shown["problem"]
        assert shown["facts"]["decoupled"] is True


async def test_a_reload_and_an_unknown_fall_say_why_as_well(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        await call(up)  # so that the counter can fall
        await trio.sleep(2)
        await break_call(up)
        await trio.sleep(2)
        up.world.reload()
        await trio.sleep(1)
        assert "reloaded" in (await identity(up))["claims"][0]["quarantined"]
    async with service(tokens=TOKENS) as up:
        up.world.boots = False
        await call(up)
        await trio.sleep(2)
        up.world.next_plans.append(Plan(seconds=60, body=b"{}", breaks=Break.AFTER_DELIVERY, breaks_after_s=0.001))
        up.world.faults.extend([None, Fault.REFUSED])  # no reading sees the call before the fall
        await up.ask("POST", "/v2/models/chat/infer", data=b"{}")
        up.world.reload()
        await trio.sleep(2)
        (claim,) = (await identity(up))["claims"]
        assert claim["state"] == "quarantined"
        assert "boot identity" in claim["quarantined"]


async def test_failing_and_hanging_readings_show(autojump_clock: MockClock) -> None:
    """A8: a poller that gets nothing is seen, and for how long."""
    async with service(tokens=TOKENS) as up:
        await break_call(up)
        up.world.fault = Fault.UNLOADED
        await trio.sleep(3)
        shown = await identity(up)
        assert shown["polling"] is True
        assert "not available" in shown["readingError"]
        assert shown["readingErrorAgeMs"] <= 300
        assert shown["reading"]["ageMs"] >= 2500
        up.world.fault = Fault.HANGS
        await trio.sleep(1.3)
        assert (await identity(up))["readingWaitAgeMs"] is not None
        up.world.fault = None
        await trio.sleep(2)
        assert (await identity(up))["readingError"] is None


async def test_pages_of_identities(autojump_clock: MockClock) -> None:
    more = tuple(
        ModelConfig(name=f"n{number}", triton_model=f"x{number}", backend="b", slots=1, kind="generate")
        for number in range(4)
    )
    async with service(tokens=TOKENS, more_models=more) as up:
        whole = [one["id"] for one in (await look(up))["identities"]]
        first = await look(up, b"size=2")
        second = await look(up, b"size=2&after=" + first["nextAfter"].encode())
        third = await look(up, b"size=2&after=" + second["nextAfter"].encode())
        assert [one["id"] for page in (first, second, third) for one in page["identities"]] == whole
        assert "nextAfter" not in third
        assert first["identitiesTotal"] == 5


async def test_the_oldest_claims_are_shown_and_the_rest_counted(autojump_clock: MockClock) -> None:
    """Lists are bounded, whatever there is."""
    async with service(tokens=TOKENS, model={"slots": 100}) as up, trio.open_nursery() as nursery:
        for _ in range(100):
            up.world.next_plans.append(Plan(seconds=60, body=b"{}"))
            nursery.start_soon(AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}").run)
        await trio.sleep(1)
        (shown,) = (await look(up))["identities"]
        assert [claim["id"] for claim in shown["claims"]] == list(range(1, 65))
        assert shown["claimsTotal"] == 100
        answer = await up.ask("GET", f"/admin/identities/{ID}", headers=AS_ADMIN, query=b"claims=1000")
        assert len(answer.json["claims"]) == 100
        nursery.cancel_scope.cancel()


async def test_an_id_stands_in_a_path_whatever_the_model_is_called(autojump_clock: MockClock) -> None:
    """Unreserved characters and one colon: nothing to encode, and no two models share an id."""
    names = ["modèle", "a~b", "a%2Fb", "mod~C3~A8le", "x:y?z#"]
    more = tuple(
        ModelConfig(name=f"n{number}", triton_model=name, backend="b", slots=1, kind="generate")
        for number, name in enumerate(names)
    )
    async with service(tokens=TOKENS, more_models=more) as up:
        shown = {one["model"]: one["id"] for one in (await look(up))["identities"]}
        assert shown["modèle"] == "b:mod~C3~A8le"
        assert len(set(shown.values())) == len(names) + 1
        for name in names:
            assert all(char.isascii() and (char.isalnum() or char in "._-~:") for char in shown[name])
            assert (await identity(up, shown[name]))["model"] == name


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/admin/identities", b"size=0"),
        ("/admin/identities", b"size=1001"),
        ("/admin/identities", b"size=x"),
        (f"/admin/identities/{ID}", b"claims=-1"),
        ("/admin/audit", b"before=1.5"),
        ("/admin/audit", b"size=99999999999999999999"),
    ],
)
async def test_a_query_that_cannot_be_is_refused(path: str, query: bytes, autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        answer = await up.ask("GET", path, headers=AS_ADMIN, query=query)
        assert (answer.status, answer.code) == (400, "invalid_field")


async def test_an_unknown_identity_is_told(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        for wanted in ("b:none", "b", "b:", ":m", "m", "B:m"):
            answer = await up.ask("GET", f"/admin/identities/{wanted}", headers=AS_ADMIN)
            assert (answer.status, answer.code) == (404, "unknown_identity"), wanted


@pytest.mark.parametrize(("wanted", "meant"), [("b/m", "b:m"), ("m", "b:m"), ("b:n", "b:m"), ("something-else", None)])
async def test_an_identity_that_is_almost_right_is_told_what_was_meant(
    wanted: str, meant: str | None, autojump_clock: MockClock
) -> None:
    """The log writes `b/m`, and an operator copies it."""
    async with service(tokens=TOKENS) as up:
        body = {"identity": wanted, "reason": "why"}
        answer = await up.ask("POST", "/admin/restart", headers=AS_ADMIN, body=body)
        assert answer.code == "unknown_identity"
        hint = f'did you mean "{meant}"? ' if meant is not None else ""
        assert answer.json["error"] == f'No identity has the id "{wanted}"; {hint}GET /admin/identities lists them'


async def test_the_live_state_begins_with_the_whole_and_goes_on_with_changes(autojump_clock: MockClock) -> None:
    """D13: at once, in the shape of the list; nothing while only time passes."""
    async with service(tokens=TOKENS) as up, watching(up) as feed:
        assert await feed.until("state") == await look(up)
        began = trio.current_time()
        session = await up.new_session()
        changed = await feed.until("state")
        assert changed["sessions"]["live"] == 1
        assert trio.current_time() - began <= 0.3
        await up.prompt(session, "2")
        seen = [await feed.until("state")]
        while seen[-1]["identities"][0]["totals"]["answered"] < 1:
            seen.append(await feed.until("state"))
        assert len(seen) <= 2 * 4 + 3, "a few states a second at the most"
        assert any(one["identities"][0]["credits"]["free"] == 0 for one in seen)


async def test_a_listener_gets_four_states_a_second_at_the_most(autojump_clock: MockClock) -> None:
    """However much changes, and none of it is kept for a listener that does not read."""
    async with service(tokens=TOKENS) as up, watching(up) as feed, trio.open_nursery() as nursery:
        await feed.until("state")

        async def churn() -> None:
            while True:
                await call(up)
                await trio.sleep(0.05)

        nursery.start_soon(churn)
        began, seen = trio.current_time(), 0
        while trio.current_time() - began < 5:
            await feed.until("state")
            seen += 1
        assert 15 <= seen <= 21
        nursery.cancel_scope.cancel()


async def test_nothing_is_computed_while_nobody_listens(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """And for several listeners only once."""
    looks = []

    def counted(governor: Governor) -> View:
        looks.append(governor)
        return state(governor)

    monkeypatch.setattr("api.admin.stream.state", counted)
    async with service(tokens=TOKENS) as up:
        await trio.sleep(10)
        assert not looks
        async with watching(up) as one, watching(up) as two:
            await one.until("state")
            await two.until("state")
            await trio.sleep(5)
        assert 0 < len(looks) <= 25
        so_far = len(looks)
        await trio.sleep(10)
        assert len(looks) == so_far
        assert up.app.admin_feed.listeners == 0


async def test_readings_that_find_nothing_new_are_told_as_well(autojump_clock: MockClock) -> None:
    """Whoever looks at a poller sees that it gets answers, and when it waits for one; once a second will do."""
    async with service(tokens=TOKENS) as up, watching(up) as feed:
        await break_call(up)
        await trio.sleep(2)
        shown = [(await feed.until("state"))["identities"][0] for _ in range(6)]
        for _ in range(3):
            began = trio.current_time()
            state = (await feed.until("state"))["identities"][0]
            assert state["polling"]
            assert state["reading"]["ageMs"] <= 300
            assert trio.current_time() - began >= 0.5
        assert shown[-1]["reading"]["model"] == state["reading"]["model"]
        up.world.fault = Fault.HANGS
        while (state["readingWaitAgeMs"] or 0) < 500:
            state = (await feed.until("state"))["identities"][0]
        assert state["readingWaitAgeMs"] <= 1000


async def test_heartbeats_and_a_bounded_number_of_listeners(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS, limits={"heartbeat_interval_ms": 3000}) as up, watching(up) as feed:
        await feed.until("state")
        began = trio.current_time()
        assert await feed.events.next() == ": heartbeat"
        assert 2.9 <= trio.current_time() - began <= 3.4
        up.app.admin_feed.listeners = 16
        answer = await up.ask("GET", "/admin/events", headers=AS_ADMIN)
        assert (answer.status, answer.code) == (429, "subscriber_limit_exceeded")
        up.app.admin_feed.listeners = 1


async def test_the_live_state_ends_with_the_governor(autojump_clock: MockClock) -> None:
    """D13: it can hold no shutdown up; the last thing told is that it stops."""
    async with service(tokens=TOKENS) as up, watching(up) as feed:
        await feed.until("state")
        up.governor.drain()
        recent, final = await feed.next(), await feed.next()
        assert recent is not None
        assert recent[1]["events"][-1]["kind"] == "stopping"
        assert final is not None
        assert final[1]["draining"] is True
        assert await feed.next() is None


async def test_what_happens_is_told_as_it_happens(autojump_clock: MockClock) -> None:
    """Proofs, breaks, reloads, restarts, refusals: in order, each with its identity."""
    async with service(tokens=TOKENS) as up, watching(up) as feed:
        await call(up)
        await trio.sleep(2)
        await break_call(up, seconds=1)
        await trio.sleep(3)
        up.world.restart()
        await trio.sleep(3)
        await call(up)
        await trio.sleep(1)
        seen: list[dict[str, Any]] = []
        while not any(event["kind"] == "epoch_began" for event in seen):
            seen += (await feed.until("recent"))["events"]
        assert [event["kind"] for event in seen] == ["call_broken", "claims_proven", "epoch_began"]
        assert [event["id"] for event in seen] == [1, 2, 3]
        assert {event["identity"] for event in seen} == {ID}
        assert (seen[1]["proof"], seen[1]["claims"]) == ("quiet", [2])
        assert seen[2]["cause"] == "restart"


async def test_a_listener_that_comes_back_gets_what_it_missed(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        for number in range(3):
            up.governor.recent.note("claims_proven", "b/m", claims=[number])
        async with watching(up, **{"Last-Event-ID": "2"}) as feed:
            assert [event["id"] for event in (await feed.until("recent"))["events"]] == [3]
        async with watching(up, **{"Last-Event-ID": "77"}) as feed:
            assert len((await feed.until("recent"))["events"]) == 3, "ids of another process"


async def test_a_flood_is_one_event_and_the_ring_is_bounded(autojump_clock: MockClock) -> None:
    """What everybody does drives nothing else out; what is told already comes again with its new number."""
    async with service(tokens=TOKENS) as up, watching(up) as feed:
        recent = up.governor.recent
        for _ in range(500):
            recent.note("call_refused", "b/m", code="credit_queue_full")
        told = (await feed.until("recent"))["events"]
        assert [(event["kind"], event["count"]) for event in told] == [("call_refused", 500)]
        recent.note("call_refused", "b/m", code="credit_queue_full")
        again = (await feed.until("recent"))["events"]
        assert [(event["id"], event["count"]) for event in again] == [(1, 501)]
        for number in range(1000):
            recent.note("claims_proven", "b/m", claims=[number])
        assert len(recent.after(0)) == EVENTS_MAX


async def test_operators_get_in_when_everything_is_full(autojump_clock: MockClock) -> None:
    """Who has to find out why must not be refused because of it; a wrong token still opens nothing."""
    async with service(tokens=TOKENS, server={"max_in_flight": 1}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.append(Plan(seconds=60, body=b"{}"))
        nursery.start_soon(AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}").run)
        await trio.sleep(1)
        assert (await up.ask("GET", "/capabilities")).code == "too_many_requests_in_flight"
        assert (await identity(up))["credits"]["held"] == 1
        assert (await up.ask("GET", "/admin/identities")).status == 401
        nursery.cancel_scope.cancel()
