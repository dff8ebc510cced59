"""The state that operators see (A7, D13). Who gets in is in test_admin_gate, the acts are in test_admin_acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from governor.config import ModelConfig
from tests.api.harness import AsgiExchange, service
from tests.api.operators import (
    AS_ADMIN,
    ID,
    SECOND,
    TOKENS,
    break_call,
    call,
    identity,
    look,
    quarantine_call,
)
from tests.shell.world import Break, Fault, Plan

if TYPE_CHECKING:
    from trio.testing import MockClock


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
