"""The log tells an operator each change of state once, under a documented name, and never a prompt's text."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import trio

import api
import governor
from tests.api.harness import AsgiExchange, Events, Service, listening, service
from tests.shell.world import Break, Fault, Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock

PAGE = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
LEVELS = {"info": "info", "warning": "warning", "error": "error", "exception": "error"}
SECRET_TEXT = "the-patient-is-called-Alice"  # a prompt's text


def told_by_code() -> dict[str, tuple[set[str], set[str]]]:
    """Each event with its levels and its fields, as the code has them; `**whose` stands for whose call it was."""
    found: defaultdict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for package in (api, governor):
        root = Path(package.__path__[0])
        for path in root.rglob("*.py"):
            if path.relative_to(root).parts[0] in {"demo", "simulator"}:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id="_log"), attr=level),
                        args=[ast.Constant(value=str(event))],
                        keywords=keywords,
                    ) if level in LEVELS:
                        levels, fields = found[event]
                        levels.add(LEVELS[level])
                        fields.update(keyword.arg or "whose" for keyword in keywords)
                    case _:
                        pass
    return dict(found)


def told_by_page() -> dict[str, tuple[set[str], set[str]]]:
    rows = re.findall(r"^\| `([a-z_]+)` \| ([a-z, ]+) \|([^|]*)\| .* \|$", PAGE, re.MULTILINE)
    return {
        event: (
            set(levels.split(", ")),
            {*re.findall(r"`(\w+)`", fields)} | ({"whose"} if "whose" in fields else set()),
        )
        for event, levels, fields in rows
    }


def test_every_event_is_documented_with_its_level_and_its_fields() -> None:
    assert told_by_page() == told_by_code()


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as captured:
        yield captured
    assert SECRET_TEXT not in repr(captured), "no prompt's text is in the log"


def of(logs: list[Any], event: str) -> list[dict[str, Any]]:
    return [line for line in logs if line["event"] == event]


async def test_a_prompt_is_followed_from_its_session_to_the_proof_of_its_end(
    logs: list[Any], autojump_clock: MockClock
) -> None:
    """Everything that is told of one prompt has its ids, across the break of its connection."""
    async with service() as up:
        session = await up.new_session()
        up.world.next_plans.append(Plan(seconds=2, breaks=Break.AFTER_DELIVERY, breaks_after_s=1))
        prompt = (await up.prompt(session, SECRET_TEXT)).json["promptId"]
        await trio.sleep(10)
        await up.ask("DELETE", f"/session/{session}")
    [opened], [admitted], [broken] = of(logs, "session_opened"), of(logs, "prompt_admitted"), of(logs, "call_broken")
    [settled], [ended], [closed] = of(logs, "prompt_settled"), of(logs, "claim_ended"), of(logs, "session_closed")
    assert opened["session"] == closed["session"] == session
    assert (closed["reason"], opened["model"]) == ("client_close", "chat")
    assert (admitted["session"], admitted["prompt"], admitted["pending"]) == (session, prompt, 1)
    for line in (broken, ended):
        assert (line["session"], line["prompt"], line["identity"], line["claim"]) == (session, prompt, "b/m", 1)
    assert broken["state"] == "reconciling"
    assert (ended["proof"], settled["outcome"]) == ("quiet", "error")
    assert 1 <= ended["lag_s"] < 1.6
    assert (settled["session"], settled["prompt"], settled["code"]) == (session, prompt, "backend_connection_lost")


async def test_a_call_of_v2_is_known_by_its_caller_and_its_request(logs: list[Any], autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(seconds=1, body=b"{}", breaks=Break.AFTER_DELIVERY))
        await up.ask("POST", "/v2/models/chat/infer", data=b"{}", headers={"X-Request-Id": "r-1" + "x" * 300})
        await trio.sleep(3)
    for event in ("call_broken", "claim_ended"):
        [line] = of(logs, event)
        assert line["caller"] == "address 127.0.0.1"
        assert line["request"].startswith("r-1")
        assert len(line["request"]) <= 128


async def test_each_change_of_the_evidence_is_told_once(logs: list[Any], autojump_clock: MockClock) -> None:
    async with service() as up:

        async def break_one(seconds: float) -> None:
            up.world.next_plans.append(Plan(seconds=seconds, body=b"{}", breaks=Break.AFTER_DELIVERY))
            await up.ask("POST", "/v2/models/chat/infer", data=b"{}")

        up.world.next_plans.append(Plan(body=b"{}"))
        await up.ask("POST", "/v2/models/chat/infer", data=b"{}")
        await break_one(30)
        up.world.faults.extend([Fault.REFUSED] * 4)
        await trio.sleep(5)
        assert [line["code"] for line in of(logs, "reading_failed")] == ["backend_unavailable"]
        assert len(of(logs, "readings_resumed")) == 1
        up.world.reload()
        await trio.sleep(2)
        [quarantined] = of(logs, "claim_quarantined")
        assert (quarantined["life"], quarantined["claim"], quarantined["caller"]) == ("reload", 2, "address 127.0.0.1")
        [reload] = of(logs, "epoch_began")
        assert (reload["cause"], reload["identity"]) == ("reload", "b/m")
        up.world.restart()
        await trio.sleep(5)
        assert [line["cause"] for line in of(logs, "epoch_began")] == ["reload", "restart"]
        assert of(logs, "epoch_began")[1]["epoch"] > reload["epoch"]
        assert of(logs, "epoch_began")[1]["boot"] != reload["boot"]
        assert [line["proof"] for line in of(logs, "claim_ended")] == ["process_ended"]


async def test_contested_is_told_when_it_begins_and_when_it_ends(logs: list[Any], autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(seconds=30, body=b"{}", breaks=Break.AFTER_DELIVERY))
        await up.ask("POST", "/v2/models/chat/infer", data=b"{}")
        up.world.load.success += 5
        await trio.sleep(3)
        assert len(of(logs, "identity_contested")) == 1
        assert not of(logs, "identity_uncontested")
        identity = next(iter(up.governor.identities.values()))
        await identity.operator.restart()
        assert len(of(logs, "identity_uncontested")) == 1
        await trio.sleep(3)
        assert len(of(logs, "identity_contested")) == 1


async def test_backends_and_models_are_told_as_they_come_and_go(logs: list[Any], autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.kill()
        await trio.sleep(5)
        up.world.start()
        await trio.sleep(5)
    assert len(of(logs, "backend_unusable")) == 1
    assert len(of(logs, "backend_usable")) == 2


async def test_refusals_are_told_with_who_and_what_but_a_full_queue_once(
    logs: list[Any], autojump_clock: MockClock
) -> None:
    async with service(limits={"max_pending_prompts_per_session": 1}) as up:
        session = await up.new_session()
        await up.prompt(session, "60")
        assert (await up.prompt(session, SECRET_TEXT)).code == "prompt_queue_full"
        [refused] = of(logs, "prompt_refused")
        assert (refused["session"], refused["code"], refused["pending"]) == (session, "prompt_queue_full", 1)
        assert not of(logs, "request_refused")
        await up.ask("POST", "/session", headers={"Origin": "https://evil.example"}, client=("10.0.0.9", 1))
        [told] = of(logs, "request_refused")
        assert (told["code"], told["client"], told["path"], told["method"]) == (
            "origin_not_allowed", "10.0.0.9", "/session", "POST",
        )  # fmt: skip


async def test_an_evicted_subscriber_and_the_end_of_everything_are_told(
    logs: list[Any], autojump_clock: MockClock
) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        exchange = AsgiExchange(up.app, "GET", f"/session/{session}/events", query=b"maxQueued=16")
        nursery.start_soon(exchange.run)
        await Events(exchange).next()
        exchange.blocked = trio.Event()
        for _ in range(40):
            up.governor.session(session).announce("test", {"text": SECRET_TEXT})
            await trio.sleep(0.01)
        assert [line["session"] for line in of(logs, "subscriber_evicted")] == [session]
        exchange.blocked.set()
        await exchange.ended.wait()
        up.governor.drain()
        up.governor.drain()
    assert [line["sessions"] for line in of(logs, "draining")] == [1]
    assert [line["reason"] for line in of(logs, "session_closed")] == ["daemon_shutdown"]


async def test_an_unused_session_says_why_it_was_closed(logs: list[Any], autojump_clock: MockClock) -> None:
    async with service(limits={"session_idle_timeout_ms": 10_000}) as up:
        await up.new_session()
        await trio.sleep(60)
    assert [line["reason"] for line in of(logs, "session_closed")] == ["idle_timeout"]


async def test_the_names_of_the_page_are_what_is_told(logs: list[Any], autojump_clock: MockClock) -> None:
    """The page is checked against the source; here the source is checked against what runs."""
    async with service() as up:
        session = await up.new_session()
        async with listening(up, session) as events:
            await up.prompt(session, "0")
            await events.until("turn_complete")
        await _unknown(up)
    page = told_by_page()
    for line in logs:
        levels, fields = page[line["event"]]
        assert line["log_level"] in levels
        known = fields | ({"session", "prompt", "caller", "request"} if "whose" in fields else set())
        assert set(line) - {"event", "log_level"} <= known, line


async def _unknown(up: Service) -> None:
    assert (await up.ask("GET", "/nothing")).status == 404
