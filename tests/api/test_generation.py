"""`POST /session/:id/generate`: one answer beside the prompts, for its caller alone."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from api.wire import GENERATION_BYTES_MAX
from governor.generation import GENERATION_MS_MAX
from tests.api.harness import Events, Service, listening, service, streaming
from tests.shell.world import Break, Plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from tests.api.harness import AsgiExchange


@asynccontextmanager
async def generating(up: Service, session: str, text: str) -> AsyncIterator[tuple[AsgiExchange, Events]]:
    data = json.dumps({"prompt": text}).encode()
    path, head = f"/session/{session}/generate", {"Content-Type": "application/json"}
    async with streaming(up, path, method="POST", data=data, headers=head) as exchange:
        assert await exchange.head() == 200
        assert exchange.sent_headers["content-type"] == "text/event-stream"
        events = Events(exchange)
        assert await events.next() == ": connected"
        yield exchange, events


async def all_of(events: Events) -> list[dict[str, Any]]:
    told = []
    while (event := await events.event()) is not None:
        told.append(event)
    return told


async def test_a_text_is_answered_in_pieces_and_nobody_else_hears_of_it(autojump_clock: MockClock) -> None:
    async with service(model={"kind": "generate_stream"}) as up:
        up.world.next_plans.append(Plan(seconds=1, texts=("a", "b")))
        session = await up.new_session()
        async with generating(up, session, "x") as (_, events):
            told = await all_of(events)
        request = {"v": 1, "requestId": told[0]["requestId"]}
        source = {"model": "chat", "modelSource": "main"}
        assert told == [
            {**request, "type": "started", **source},
            {**request, "type": "delta", "seq": 0, "text": "a"},
            {**request, "type": "delta", "seq": 1, "text": "b"},
            {**request, "type": "done", **source},
        ]
        assert up.governor.sessions[session].log.last_id == 0
        assert not up.governor.sessions[session].in_use


async def test_it_takes_no_prompt_slot_and_waits_for_no_prompt(autojump_clock: MockClock) -> None:
    async with service(limits={"max_pending_prompts_per_session": 1}, model={"slots": 2}) as up:
        session = await up.new_session()
        assert (await up.prompt(session, "30")).status == 202
        assert (await up.prompt(session, "0")).code == "prompt_queue_full"
        async with generating(up, session, "0.1") as (_, events):
            assert (await all_of(events))[-1]["type"] == "done"
        assert up.governor.sessions[session].pending_count == 1


async def test_it_waits_for_a_slot_credit_and_tells_that_it_lives(autojump_clock: MockClock) -> None:
    async with service(limits={"heartbeat_interval_ms": 2_000}) as up:
        session, other = await up.new_session(), await up.new_session()
        await up.prompt(other, "5")
        await trio.sleep(0.1)
        async with generating(up, session, "0") as (exchange, events):
            assert (await events.event() or {})["type"] == "started"
            assert await events.next() == ": heartbeat"
            assert (await all_of(events))[-1]["type"] == "done"
            assert exchange.complete


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        (Plan(status=500, texts=("ill",)), "backend_answered_error"),
        (Plan(seconds=1, breaks=Break.AFTER_DELIVERY), "backend_connection_lost"),
        (Plan(breaks=Break.BEFORE_DELIVERY), "backend_unavailable"),
        (Plan(body=b"no JSON"), "backend_protocol_error"),
        (Plan(seconds=200), "prompt_deadline_exceeded"),
    ],
)
async def test_what_goes_wrong_is_the_last_event(plan: Plan, code: str, autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(plan)
        session = await up.new_session()
        began = trio.current_time()
        async with generating(up, session, "x") as (exchange, events):
            assert (await all_of(events))[-1]["code"] == code
            assert exchange.complete
        assert trio.current_time() - began <= GENERATION_MS_MAX / 1000 + 1
        assert not up.governor.sessions[session].in_use


async def test_the_operators_deadline_holds_for_it(autojump_clock: MockClock) -> None:
    async with service(limits={"prompt_deadline_ms": 2_000}) as up:
        session = await up.new_session()
        async with generating(up, session, "30") as (_, events):
            assert (await all_of(events))[-1]["message"] == "prompt exceeded the 2000ms deadline"


async def test_a_reader_that_leaves_ends_it_and_its_call_keeps_its_slot(autojump_clock: MockClock) -> None:
    """E2: what the backend has begun goes on, and only its end gives the credit back."""
    async with service() as up:
        session = await up.new_session()
        async with generating(up, session, "5") as (exchange, events):
            assert (await events.event() or {})["type"] == "started"
            await trio.sleep(1)
            assert up.governor.sessions[session].in_use
            exchange.leave()
            await exchange.ended.wait()
        assert not up.governor.sessions[session].in_use
        assert up.free == 0
        await trio.sleep(6)
        assert up.free == 1


@pytest.mark.parametrize(("drains", "code"), [(False, "session_closed"), (True, "daemon_shutdown")])
async def test_it_ends_with_its_session(*, drains: bool, code: str, autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        async with generating(up, session, "30") as (exchange, events):
            await trio.sleep(1)
            if drains:
                up.governor.drain()
            else:
                await up.ask("DELETE", f"/session/{session}")
            assert (await all_of(events))[-1]["code"] == code
            assert exchange.complete


async def test_an_idle_session_that_generates_is_not_closed(autojump_clock: MockClock) -> None:
    limits = {"session_idle_timeout_ms": 5_000, "session_detached_timeout_ms": 5_000}
    async with service(limits=limits) as up:
        session = await up.new_session()
        async with generating(up, session, "30") as (_, events):
            assert (await all_of(events))[-1]["type"] == "done"


@pytest.mark.parametrize(
    ("prompt", "status", "code"),
    [
        (None, 400, "invalid_prompt"),
        ("", 400, "invalid_prompt"),
        (" \n", 400, "invalid_prompt"),
        (["text"], 400, "invalid_prompt"),
        ("a\0", 400, "invalid_prompt_text"),
        ("\ud800", 400, "invalid_prompt_text"),
        ("x" * (GENERATION_BYTES_MAX + 1), 413, "prompt_too_large"),
    ],
)
async def test_a_text_that_can_be_none_is_refused(
    prompt: object, status: int, code: str, autojump_clock: MockClock
) -> None:
    async with service() as up:
        session = await up.new_session()
        answer = await up.ask("POST", f"/session/{session}/generate", body={"prompt": prompt})
        assert (answer.status, answer.code) == (status, code)
        assert not up.governor.sessions[session].in_use


async def test_the_longest_text_is_taken(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        async with generating(up, session, "0" * GENERATION_BYTES_MAX) as (_, events):
            assert (await all_of(events))[-1]["type"] == "done"


async def test_who_may_not_use_the_session_may_not_generate(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        stranger = {"X-Qwen-Client-Id": "stranger"}
        body = {"prompt": "0"}
        assert (await up.ask("POST", f"/session/{session}/generate", body=body, headers=stranger)).status == 400
        assert (await up.ask("POST", "/session/none/generate", body=body)).code == "session_not_found"
        async with listening(up, session):
            pass
        assert not up.world.executions
