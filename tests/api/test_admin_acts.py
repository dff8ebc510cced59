"""What operators do: forced restart, release of one claim, and the audit log (A7, E11)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from structlog.testing import capture_logs

from governor.audit import ENTRIES_MAX, Actor
from governor.config import ModelConfig
from tests.api.harness import Answer, AsgiExchange, Service, listening, service
from tests.api.operators import AS_ADMIN, ID, TOKENS, break_call, call, identity, look, quarantine_call, watching
from tests.shell.world import Fault, Plan

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

WHY = "looked at the GPU, it is idle"
OTHER = ModelConfig(name="other", triton_model="m2", backend="b", slots=1, kind="generate")


async def act(up: Service, path: str, **body: object) -> Answer:
    """One act."""
    return await up.ask("POST", f"/admin/{path}", body=body, headers=AS_ADMIN)


async def restart(up: Service, wanted: str = ID, **body: object) -> Answer:
    """A forced restart with a reason."""
    return await act(up, "restart", **{"identity": wanted, "reason": WHY, **body})


async def release(up: Service, claim: object, **body: object) -> Answer:
    """A release with a reason."""
    return await act(up, f"identities/{ID}/claims/{claim}/release", **{"reason": WHY, **body})


async def audit(up: Service) -> list[dict[str, Any]]:
    """The newest acts first."""
    answer = await up.ask("GET", "/admin/audit", headers=AS_ADMIN)
    entries: list[dict[str, Any]] = answer.json["entries"]
    return entries


def released(up: Service) -> int:
    """What was released without proof, over all identities."""
    return sum(one.statistics().ledger_totals.released_unproven for one in up.governor.identities.values())


async def test_a_forced_restart_forgets_broken_claims_and_tells_which(autojump_clock: MockClock) -> None:
    """E11: counted, and whoever waits gets the credit."""
    async with service(tokens=TOKENS) as up, watching(up) as feed:
        await quarantine_call(up)
        epoch = (await identity(up))["epoch"]
        answer = await restart(up, expectedEpoch=epoch, operator="ada")
        assert answer.status == 200
        assert (answer.json["restarted"], answer.json["refused"]) == (1, 0)
        (result,) = answer.json["results"]
        assert (result["identity"], result["ok"]) == (ID, True)
        assert (result["previousEpoch"], result["epoch"]) == (epoch, epoch + 1)
        assert (result["provenClaims"], result["openClaims"]) == (0, 0)
        (forgotten,) = result["forgottenClaims"]
        assert (forgotten["id"], forgotten["state"]) == (1, "quarantined")
        assert forgotten["serves"] == {"caller": "address 127.0.0.1"}
        assert "decoupled" in forgotten["quarantined"]
        assert up.free == 1
        assert released(up) == 1
        kinds: list[str] = []
        while "forced_restart" not in kinds:
            kinds += [event["kind"] for event in (await feed.until("recent"))["events"]]


async def test_a_stale_command_does_nothing(autojump_clock: MockClock) -> None:
    """The epoch that the operator saw is over: 409, and the claim stays."""
    async with service(tokens=TOKENS) as up:
        await quarantine_call(up)
        epoch = (await identity(up))["epoch"]
        for answer in (await restart(up, expectedEpoch=epoch - 1), await release(up, 1, expectedEpoch=epoch + 1)):
            assert (answer.status, answer.code) == (409, "epoch_changed")
            assert answer.json["epoch"] == epoch
        assert released(up) == 0
        assert up.free == 0
        assert [entry["result"] for entry in await audit(up)] == ["refused", "refused"]


async def test_an_epoch_that_ends_while_the_baseline_is_read_counts_too(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up, trio.open_nursery() as nursery:
        await quarantine_call(up)
        epoch = (await identity(up))["epoch"]
        up.world.read_s = 0.5
        answers: list[Answer] = []

        async def first() -> None:
            answers.append(await restart(up, expectedEpoch=epoch))

        nursery.start_soon(first)
        await trio.sleep(0.1)
        up.governor.identities[next(iter(up.governor.identities))]._ledger._epoch.number += 1
        await trio.sleep(2)
        assert [(answer.status, answer.code) for answer in answers] == [(409, "epoch_changed")]
        assert released(up) == 0


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.UNLOADED, Fault.HANGS])
async def test_without_a_fresh_baseline_nothing_is_forgotten(fault: Fault, autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        await quarantine_call(up)
        up.world.fault = fault
        answer = await restart(up)
        assert (answer.status, answer.code) == (503, "baseline_unavailable")
        assert "fresh baseline" in answer.json["error"]
        assert released(up) == 0
        (entry,) = await audit(up)
        assert (entry["result"], entry["code"]) == ("refused", "baseline_unavailable")


async def test_an_unreachable_backend_refuses_at_once(autojump_clock: MockClock) -> None:
    """Also with a drain: it would hold every caller up for an act that cannot succeed."""
    async with service(tokens=TOKENS) as up:
        await quarantine_call(up)
        up.world.kill()
        await trio.sleep(2)
        began = trio.current_time()
        answer = await restart(up, drainMs=60_000)
        assert (answer.status, answer.code) == (503, "backend_unavailable")
        assert trio.current_time() - began < 1


async def test_all_identities_are_restarted_each_on_its_own(autojump_clock: MockClock) -> None:
    """One that is refused keeps none back, and is told."""
    async with service(tokens=TOKENS, more_models=(OTHER,)) as up:
        await quarantine_call(up)
        answer = await restart(up, "all", expectedEpochs={"b:m2": 99})
        assert answer.status == 200
        assert (answer.json["restarted"], answer.json["refused"]) == (1, 1)
        first, second = answer.json["results"]
        assert (first["identity"], first["ok"], len(first["forgottenClaims"])) == (ID, True, 1)
        assert (second["identity"], second["ok"], second["code"]) == ("b:m2", False, "epoch_changed")
        (entry,) = await audit(up)
        assert entry["target"] == "all"
        assert entry["report"]["b/m"]["forgotten"] == [1]
        assert entry["report"]["b/m2"]["code"] == "epoch_changed"
        up.world.fault = Fault.REFUSED
        answer = await restart(up, "all")
        assert (answer.status, answer.json["refused"]) == (503, 2)


async def test_a_drain_waits_for_the_running_calls_and_hands_out_nothing(autojump_clock: MockClock) -> None:
    """What comes back by itself is not forgotten; who waits goes on waiting and is refused nothing."""
    async with service(tokens=TOKENS, model={"slots": 2}) as up, trio.open_nursery() as nursery:
        await call(up)
        await trio.sleep(2)
        await break_call(up, seconds=1000)
        await trio.sleep(1)
        up.world.next_plans.extend([Plan(seconds=3, body=b"{}"), Plan(seconds=0, body=b"{}")])
        running = AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}")
        waiting = AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}")
        nursery.start_soon(running.run)
        await trio.sleep(0.1)
        answers: list[Answer] = []

        async def order() -> None:
            answers.append(await restart(up, drainMs=10_000))

        nursery.start_soon(order)
        await trio.sleep(0.1)
        nursery.start_soon(waiting.run)
        await trio.sleep(4)
        shown = await identity(up)
        assert running.status == 200
        assert waiting.status is None, "no credit is handed out although one is free"
        assert (shown["handsOutCredits"], shown["queue"]["waiting"]) == (False, 1)
        assert not answers, "the broken claim does not come back, so the whole time is waited"
        assert (await restart(up)).code == "operation_in_progress"
        await trio.sleep(7)
        (result,) = answers[0].json["results"]
        assert [claim["id"] for claim in result["forgottenClaims"]] == [2]
        assert result["openClaims"] == 0
        assert (await waiting.whole()).status == 200
        assert (await identity(up))["handsOutCredits"] is True
        nursery.cancel_scope.cancel()


async def test_a_drain_ends_as_soon_as_nothing_is_held(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up, trio.open_nursery() as nursery:
        up.world.next_plans.append(Plan(seconds=2, body=b"{}"))
        nursery.start_soon(AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}").run)
        await trio.sleep(0.1)
        began = trio.current_time()
        answer = await restart(up, drainMs=60_000)
        assert 1.8 <= trio.current_time() - began <= 2.2
        assert answer.json["results"][0]["forgottenClaims"] == []
        nursery.cancel_scope.cancel()


async def test_an_operator_who_leaves_in_mid_drain_takes_the_act_along(autojump_clock: MockClock) -> None:
    """Nothing is forgotten, credits are handed out again, and the audit log says so."""
    async with service(tokens=TOKENS) as up, trio.open_nursery() as nursery:
        await quarantine_call(up)
        headers = {**AS_ADMIN, "Content-Type": "application/json"}
        body = b'{"identity": "b:m", "reason": "x", "drainMs": 60000}'
        exchange = AsgiExchange(up.app, "POST", "/admin/restart", data=body, headers=headers)
        nursery.start_soon(exchange.run)
        await trio.sleep(1)
        assert (await identity(up))["handsOutCredits"] is False
        exchange.leave()
        await exchange.ended.wait()
        shown = await identity(up)
        assert (shown["handsOutCredits"], shown["states"]["quarantined"]) == (True, 1)
        assert [entry["result"] for entry in await audit(up)] == ["interrupted"]
        assert (await restart(up)).status == 200, "the identity is not busy for ever"


async def test_one_claim_is_released(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        await quarantine_call(up)
        answer = await release(up, 1)
        assert answer.status == 200
        assert answer.json["released"]["id"] == 1
        assert answer.json["freeSlots"] == 1
        assert released(up) == 1
        (entry,) = await audit(up)
        assert (entry["act"], entry["target"], entry["reason"]) == ("release", "b/m claim 1", WHY)
        assert (await release(up, 1)).code == "unknown_claim"


async def test_an_open_claim_cannot_be_released(autojump_clock: MockClock) -> None:
    """E11: its own answer or break decides."""
    async with service(tokens=TOKENS) as up, trio.open_nursery() as nursery:
        up.world.next_plans.append(Plan(seconds=60, body=b"{}"))
        nursery.start_soon(AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}").run)
        await trio.sleep(1)
        answer = await release(up, 1)
        assert (answer.status, answer.code) == (409, "claim_open")
        assert (await restart(up)).json["results"][0]["openClaims"] == 1
        assert up.free == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_field"),
        ({"identity": ID}, "invalid_reason"),
        ({"identity": ID, "reason": " "}, "invalid_reason"),
        ({"identity": ID, "reason": "x" * 501}, "invalid_reason"),
        ({"identity": ID, "reason": "two\nlines"}, "invalid_reason"),
        ({"identity": ID, "reason": 7}, "invalid_reason"),
        ({"identity": 7, "reason": WHY}, "invalid_field"),
        ({"identity": ID, "reason": WHY, "drainms": 5}, "invalid_field"),
        ({"identity": ID, "reason": WHY, "drainMs": -1}, "invalid_field"),
        ({"identity": ID, "reason": WHY, "drainMs": True}, "invalid_field"),
        ({"identity": ID, "reason": WHY, "drainMs": 1.5}, "invalid_field"),
        ({"identity": ID, "reason": WHY, "drainMs": 3_600_001}, "invalid_field"),
        ({"identity": ID, "reason": WHY, "expectedEpoch": "1"}, "invalid_field"),
        ({"identity": "all", "reason": WHY, "expectedEpoch": 1}, "invalid_field"),
        ({"identity": ID, "reason": WHY, "expectedEpochs": {"b:m2": 1}}, "invalid_field"),
        ({"identity": ID, "reason": WHY, "expectedEpochs": [1]}, "invalid_field"),
        ({"identity": ID, "reason": WHY, "operator": "\x1b[2J"}, "invalid_field"),
        ({"identity": "b:none", "reason": WHY}, "unknown_identity"),
        ({"identity": "all", "reason": WHY, "expectedEpochs": {"b:none": 1}}, "unknown_identity"),
    ],
)
async def test_a_restart_that_is_asked_for_wrongly_does_nothing(
    body: dict[str, object], code: str, autojump_clock: MockClock
) -> None:
    async with service(tokens=TOKENS) as up:
        await quarantine_call(up)
        answer = await act(up, "restart", **body)
        assert answer.status in {400, 404}
        assert answer.code == code
        assert released(up) == 0
        assert await audit(up) == []


@pytest.mark.parametrize(
    ("data", "content_type", "code"),
    [
        (b"{", "application/json", "invalid_json"),
        (b"[]", "application/json", "invalid_json"),
        (b'{"reason": "x"}', "text/plain", "invalid_json"),
        (b"reason=x", "application/x-www-form-urlencoded", "invalid_json"),
        (b'{"reason": NaN}', "application/json", "invalid_json"),
        (b"", "application/json", "invalid_reason"),
    ],
)
async def test_a_body_that_is_none_is_refused(
    data: bytes, content_type: str, code: str, autojump_clock: MockClock
) -> None:
    """Stricter than the routes of callers: what is misread must not become an act."""
    async with service(tokens=TOKENS) as up:
        path = f"/admin/identities/{ID}/claims/1/release"
        answer = await up.ask("POST", path, data=data, headers={**AS_ADMIN, "Content-Type": content_type})
        assert (answer.status, answer.code) == (400, code)


async def test_a_claim_id_is_a_number(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        for wanted in ("x", "-1", "1.0", "0", "٣", "9" * 30):
            answer = await release(up, wanted)
            assert (answer.status, answer.code) == (400, "invalid_field"), wanted


async def test_the_audit_log_is_bounded_and_has_pages(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        log = up.app.operations.audit
        for _ in range(ENTRIES_MAX + 10):
            with log.act(Actor("admin token"), "restart", target="all", reason=None):
                pass
        whole: list[int] = []
        query = b"size=200"
        while True:
            answer = await up.ask("GET", "/admin/audit", headers=AS_ADMIN, query=query)
            whole += [entry["id"] for entry in answer.json["entries"]]
            if "nextBefore" not in answer.json:
                break
            query = f"size=200&before={answer.json['nextBefore']}".encode()
        assert whole == list(range(ENTRIES_MAX + 10, 10, -1))


async def test_an_audit_entry_says_who_what_why_and_what_came_of_it(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        await quarantine_call(up)
        body = {"identity": ID, "reason": f"  {WHY} ", "operator": "ada", "drainMs": 5}
        await up.ask("POST", "/admin/restart", body=body, headers=AS_ADMIN, client=("10.1.2.3", 5))
        (entry,) = await audit(up)
        assert (entry["by"], entry["address"], entry["operator"]) == ("admin token", "10.1.2.3", "ada")
        assert (entry["act"], entry["target"], entry["reason"]) == ("restart", "b/m", WHY)
        assert entry["asked"] == {"drainMs": 5, "expectedEpochs": {}}
        assert (entry["result"], entry["code"], entry["error"]) == ("done", None, None)
        assert entry["report"]["b/m"]["forgotten"] == [1]
        assert entry["endedAtMs"] >= entry["atMs"]


async def test_the_tokens_are_in_nothing_that_is_shown(
    capsys: pytest.CaptureFixture[str], autojump_clock: MockClock
) -> None:
    async with service(tokens=TOKENS) as up:
        await quarantine_call(up)
        await restart(up)
        shown = str(await look(up)) + str(await audit(up)) + capsys.readouterr().out
        assert TOKENS["admin"] not in shown


async def test_a_drain_lets_nothing_new_in_and_ends_nothing(autojump_clock: MockClock) -> None:
    """Running and queued prompts, running and waiting calls go on; readiness sends traffic elsewhere."""
    async with service(tokens=TOKENS) as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        async with listening(up, session) as events:
            running = (await up.prompt(session, "3")).json["promptId"]
            queued = (await up.prompt(session, "1")).json["promptId"]
            await trio.sleep(0.5)
            waiting = AsgiExchange(up.app, "POST", "/v2/models/chat/generate", data=b'{"text_input": "0"}')
            nursery.start_soon(waiting.run)
            await trio.sleep(0.1)
            answer = await act(up, "drain", reason="maintenance")
            assert answer.status == 200
            assert answer.json == {
                "changed": True, "draining": True, "liveSessions": 1, "pendingPrompts": 2, "waitingCalls": 1,
                "heldSlots": 1,
            }  # fmt: skip
            assert (await act(up, "drain")).json["changed"] is False
            refused = [
                await up.prompt(session, "0"),
                await up.ask("POST", "/session", body={}),
                await up.ask("POST", "/v2/models/chat/generate", body={"text_input": "0"}),
                await up.ask("POST", f"/session/{session}/branch", body={}),
            ]
            assert {(one.status, one.code) for one in refused[:3]} == {(503, "daemon_draining")}
            ready = await up.ask("GET", "/readyz")
            assert (ready.status, ready.json["draining"]) == (503, True)
            assert (await up.ask("GET", "/healthz")).status == 200
            assert ((await look(up))["draining"], (await look(up))["stopping"]) == (True, False)
            seen = await events.until("turn_complete") + await events.until("turn_complete")
            ends = [event["data"]["promptId"] for event in seen if event["type"] == "turn_complete"]
            assert ends == [running, queued]
            assert (await waiting.whole()).status == 200
            assert refused[3].code == "daemon_draining"
        assert (await act(up, "undrain")).json["changed"] is True
        assert (await up.ask("GET", "/readyz")).status == 200
        assert (await up.prompt(session, "0")).status == 202
        assert [entry["act"] for entry in await audit(up)] == ["undrain", "drain", "drain"]
        nursery.cancel_scope.cancel()


async def test_there_is_no_way_back_from_a_stop(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        await act(up, "drain")
        up.governor.drain()
        for path in ("undrain", "drain"):
            assert (await act(up, path)).code == "daemon_draining"
        assert (await look(up))["stopping"] is True


async def test_an_unknown_session_is_unknown_while_drained(autojump_clock: MockClock) -> None:
    """A drained governor still knows what it has; only a stopping one does not."""
    async with service(tokens=TOKENS) as up:
        await act(up, "drain")
        assert (await up.ask("GET", "/session/none/status")).code == "session_not_found"


async def test_each_act_is_a_line_of_the_audit_file(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Refused ones too. The file is nobody else's, and a new one begins where the old was moved away."""
    path = tmp_path / "audit.jsonl"
    async with service(tokens=TOKENS, server={"audit_file": str(path)}) as up:
        await quarantine_call(up)
        await restart(up, expectedEpoch=99)
        await restart(up)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(line["act"], line["result"]) for line in lines] == [("restart", "refused"), ("restart", "done")]
        assert lines[::-1] == await audit(up)
        assert path.stat().st_mode & 0o777 == 0o600
        path.rename(tmp_path / "old")
        await act(up, "drain")
        assert [json.loads(line)["act"] for line in path.read_text().splitlines()] == ["drain"]


async def test_no_act_without_its_line_in_the_audit_file(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = tmp_path / "gone" / "audit.jsonl"
    async with service(tokens=TOKENS, server={"audit_file": str(path)}) as up:
        await quarantine_call(up)
        for answer in (await restart(up), await release(up, 1), await act(up, "drain"), await act(up, "reload")):
            assert (answer.status, answer.code) == (503, "audit_unavailable")
        assert (released(up), up.governor.entrance.closed) == (0, False)
        assert {entry["code"] for entry in await audit(up)} == {"audit_unavailable"}
        path.parent.mkdir()
        assert (await restart(up)).status == 200
        assert len(path.read_text().splitlines()) == 1


async def test_an_audit_file_that_cannot_be_written_is_said_at_the_start(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = tmp_path / "none" / "audit.jsonl"
    with capture_logs() as logs:
        async with service(tokens=TOKENS, server={"audit_file": str(path)}):
            pass
    [line] = [each for each in logs if each["event"] == "audit_unwritable"]
    assert (line["path"], line["log_level"]) == (str(path), "error")
    assert "make server.audit_file writable" in line["error"]


async def test_an_audit_file_that_is_a_link_is_not_followed(tmp_path: Path, autojump_clock: MockClock) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    async with service(tokens=TOKENS, server={"audit_file": str(tmp_path / "link")}) as up:
        assert (await act(up, "drain")).code == "audit_unavailable"
    assert (tmp_path / "target").read_text() == "precious"
