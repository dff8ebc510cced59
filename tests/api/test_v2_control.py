"""Triton's routes by which one caller could harm the others: closed, or opened by the operator's token (A6, E7)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.api.harness import AsgiExchange, Service, service
from tests.api.test_v2_check import CONFIG, asked, body, config, send
from tests.api.test_v2_reads import two_backends
from tests.shell.world import Plan

if TYPE_CHECKING:
    from trio.testing import MockClock

API, ADMIN = "callers-own-secret", "operators-own-secret"
OPERATOR = {"Authorization": f"Bearer {ADMIN}"}
CALLER = {"Authorization": f"Bearer {API}"}
LOAD = "/v2/repository/models/chat/load"
ROUTES = [
    ("POST", LOAD, "/v2/repository/models/m/load"),
    ("POST", "/v2/repository/models/chat/unload", "/v2/repository/models/m/unload"),
    ("GET", "/v2/models/chat/trace/setting", "/v2/models/m/trace/setting"),
    ("POST", "/v2/models/chat/trace/setting", "/v2/models/m/trace/setting"),
    ("GET", "/v2/trace/setting", "/v2/trace/setting"),
    ("POST", "/v2/trace/setting", "/v2/trace/setting"),
    ("GET", "/v2/logging", "/v2/logging"),
    ("POST", "/v2/logging", "/v2/logging"),
    ("GET", "/v2/systemsharedmemory/status", "/v2/systemsharedmemory/status"),
    ("GET", "/v2/cudasharedmemory/region/r%201/status", "/v2/cudasharedmemory/region/r%201/status"),
    ("POST", "/v2/cudasharedmemory/region/r/register", "/v2/cudasharedmemory/region/r/register"),
    ("POST", "/v2/systemsharedmemory/region/r/unregister", "/v2/systemsharedmemory/region/r/unregister"),
    ("POST", "/v2/systemsharedmemory/unregister", "/v2/systemsharedmemory/unregister"),
]


async def ask(up: Service, method: str, path: str, **options: Any) -> Any:
    raw = path.encode()
    return await up.ask(
        method, path.replace("%20", " "), raw_path=raw, data=b"{}" if method == "POST" else None, **options
    )


@pytest.mark.parametrize(("method", "path", "there"), ROUTES)
async def test_it_is_closed_to_everybody_but_the_operator(
    method: str, path: str, there: str, autojump_clock: MockClock
) -> None:
    async with service(tokens={"api": API, "admin": ADMIN}) as up:
        refused = await ask(up, method, path, headers=CALLER)
        assert (refused.status, refused.code) == (403, "operators_only")
        for wrong in ({}, {"Authorization": "Bearer x"}):
            assert (await ask(up, method, path, headers=wrong)).code == "unauthorized"
        assert not up.world.questions
        up.world.replies[f"{method} {there}"] = (200, "application/json", b'{"a":1}')
        opened = await ask(up, method, path, headers=OPERATOR)
        assert (opened.status, opened.body) == (200, b'{"a":1}')
        assert up.world.questions[-1].path == there
        assert up.world.questions[-1].body == (b"{}" if method == "POST" else b"")


@pytest.mark.parametrize("tokens", [{}, {"admin": ADMIN}, {"api": API}])
async def test_without_the_operators_token_it_is_closed(tokens: dict[str, str], autojump_clock: MockClock) -> None:
    async with service(tokens=tokens) as up:
        for headers in (CALLER, {**CALLER, "Authorization": "Bearer wrong"}) if "admin" in tokens else (CALLER,):
            assert (await ask(up, "POST", LOAD, headers=headers)).code == "operators_only"
        assert not up.world.questions


async def test_the_operators_token_opens_nothing_else(autojump_clock: MockClock) -> None:
    async with service(tokens={"api": API, "admin": ADMIN}) as up:
        for method, path in (("GET", "/v2"), ("GET", "/v2/models/chat"), ("POST", "/v2/models/chat/infer")):
            assert (await ask(up, method, path, headers=OPERATOR)).code == "unauthorized"


async def test_an_unknown_model_is_told_to_operators_only(autojump_clock: MockClock) -> None:
    async with service(tokens={"admin": ADMIN}) as up:
        path = "/v2/repository/models/nothing/load"
        assert (await ask(up, "POST", path)).code == "operators_only"
        assert (await ask(up, "POST", path, headers=OPERATOR)).code == "unknown_model"


async def test_a_reload_through_us_is_seen_at_once(autojump_clock: MockClock) -> None:
    """E7: the reading before keeps what the old life told, the reading after begins the new one."""
    async with service(tokens={"admin": ADMIN}) as up:
        up.world.replies[CONFIG] = config(2)
        for _ in range(3):
            assert (await send(up, body(2))).status == 200
        await trio.sleep(1)
        up.world.replies[f"POST {LOAD.replace('chat', 'm')}"] = (200, "application/json", b"")
        identity = up.governor.models["chat"].identity
        readings = len(up.world.readings)
        up.world.questions_wait = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: ask(up, "POST", LOAD, headers=OPERATOR))
            await trio.sleep(0.5)
            assert len(up.world.readings) == readings + 1
            up.world.reload()
            up.world.questions_wait.set()
        assert len(up.world.readings) == readings + 2
        assert identity.statistics().ledger_totals.reloads == 1
        up.world.replies[CONFIG] = config(3)
        before = asked(up)
        assert (await send(up, body(3))).status == 200
        assert asked(up) == before + 1, "what the model is was asked again"


async def test_after_any_load_every_model_of_the_server_is_asked_anew(autojump_clock: MockClock) -> None:
    """A load may change a model without its counters showing it, and the members of an ensemble with it."""
    async with service(tokens={"admin": ADMIN}) as up:
        up.world.replies[CONFIG] = config()
        assert (await send(up, body())).status == 200
        identity = up.governor.models["chat"].identity
        for act in ("load", "unload"):
            before = asked(up)
            assert (await ask(up, "POST", f"/v2/repository/models/chat/{act}", headers=OPERATOR)).status == 404
            assert identity.facts is None
            assert (await send(up, body())).status == 200
            assert asked(up) == before + 1


async def test_a_call_that_executes_keeps_its_slot_over_a_reload(autojump_clock: MockClock) -> None:
    async with service(tokens={"admin": ADMIN}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.append(Plan(seconds=5, body=b"{}"))
        running = AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}")
        nursery.start_soon(running.run)
        await trio.sleep(0.5)
        up.world.replies[f"POST {LOAD.replace('chat', 'm')}"] = (200, "application/json", b"")
        up.world.reload()
        assert (await ask(up, "POST", LOAD, headers=OPERATOR)).status == 200
        assert up.free == 0
        assert (await running.whole()).body == b"{}"
        assert up.free == 1


async def test_after_an_unload_no_reading_is_tried(autojump_clock: MockClock) -> None:
    """It would only fail, and say so to everybody who watches."""
    async with service(tokens={"admin": ADMIN}) as up:
        path = "/v2/repository/models/chat/unload"
        up.world.replies[f"POST {path.replace('chat', 'm')}"] = (200, "application/json", b"")
        assert (await ask(up, "POST", path, headers=OPERATOR)).status == 200
        assert len(up.world.readings) == 1


async def test_every_act_is_in_the_audit_log(autojump_clock: MockClock) -> None:
    async with service(tokens={"admin": ADMIN}) as up:
        await ask(up, "GET", "/v2/logging", headers=OPERATOR)
        await ask(up, "HEAD", "/v2/logging", headers=OPERATOR)
        await ask(up, "POST", "/v2/logging", headers=OPERATOR)
        await ask(up, "POST", LOAD, headers=OPERATOR)
        told = (await up.ask("GET", "/admin/audit", headers=OPERATOR)).json["entries"]
        assert [(entry["act"], entry["target"], entry["report"]) for entry in told] == [
            ("load_model", "b/m", {"status": 404, "error": "Not Found"}),
            ("triton_settings", "b/v2/logging", {"status": 404, "error": "Not Found"}),
        ]


@pytest.mark.parametrize("path", ["/v2/trace/setting", "/v2/models/chat/trace/setting"])
async def test_the_setting_that_holds_the_boot_identity_cannot_be_changed(path: str, autojump_clock: MockClock) -> None:
    """E8: another value there would look like another process, and free credits whose work goes on."""
    async with service(tokens={"admin": ADMIN}) as up:
        for value in ("7", None):
            sent = {"trace_rate": "1", "log_frequency": value}
            refused = await up.ask("POST", path, body=sent, headers=OPERATOR)
            assert (refused.status, refused.code) == (400, "trace_log_frequency_reserved")
        twice = b'{"log_frequency": "1", "log_frequency": "2"}'
        assert (await up.ask("POST", path, data=twice, headers=OPERATOR)).code == "invalid_json"
        escaped = b'{"log\\u005ffrequency": "1"}'
        assert (await up.ask("POST", path, data=escaped, headers=OPERATOR)).code == "trace_log_frequency_reserved"
        assert not up.world.questions
        there = path.replace("chat", "m")
        up.world.replies[f"POST {there}"] = (200, "application/json", b"{}")
        for good in (b"", b'{"trace_rate": "1"}'):
            assert (await up.ask("POST", path, data=good, headers=OPERATOR)).status == 200


async def test_what_concerns_a_server_needs_to_be_the_only_one(autojump_clock: MockClock) -> None:
    both = two_backends().model_dump(exclude_unset=True)
    both["tokens"] = {"admin": ADMIN}
    async with service(type(two_backends())(**both)) as up:
        answer = await ask(up, "GET", "/v2/logging", headers=OPERATOR)
        assert (answer.status, answer.code, answer.json["backends"]) == (409, "several_backends", ["b", "c"])
        up.world.replies["POST /v2/repository/models/other/load"] = (200, "application/json", b"")
        assert (await ask(up, "POST", "/v2/repository/models/other/load", headers=OPERATOR)).status == 200


async def test_a_long_load_holds_up_neither_questions_nor_calls(autojump_clock: MockClock) -> None:
    async with service(tokens={"admin": ADMIN}) as up, trio.open_nursery() as nursery:
        up.world.questions_wait = trio.Event()
        loads = [AsgiExchange(up.app, "POST", LOAD, data=b"{}", headers=OPERATOR) for _ in range(3)]
        for load in loads:
            nursery.start_soon(load.run)
        await trio.sleep(100)
        assert sum(wire.path.endswith("/load") for wire in up.world.questions) == 1, "one after the other"
        up.world.replies["GET /v2/models/m"] = (200, "application/json", json.dumps({"name": "m"}).encode())
        up.world.questions_wait.set()
        assert (await up.ask("GET", "/v2/models/m")).status == 200
        for load in loads:
            assert (await load.whole()).status == 404
