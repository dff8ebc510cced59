"""S7 to the last step: a turn waits until its caller has read the 202, where the two could come in the wrong order."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.api.harness import AsgiExchange, Service, listening, service

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock


def prompt_exchange(up: Service, session: str, kind: type[AsgiExchange] = AsgiExchange) -> AsgiExchange:
    """Of a client that reads its answer and keeps its connection open."""
    return kind(
        up.app,
        "POST",
        f"/session/{session}/prompt",
        data=json.dumps({"prompt": [{"type": "text", "text": "0"}]}).encode(),
        headers={"Content-Type": "application/json"},
        closes_when_read=False,
    )


async def test_while_somebody_listens_a_turn_starts_once_its_202_was_read(autojump_clock: MockClock) -> None:
    async with service(limits={"read_receipt_timeout_ms": 5_000}) as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        async with listening(up, session) as events:
            exchange = prompt_exchange(up, session)
            nursery.start_soon(exchange.run)
            assert await exchange.head() == 202
            assert exchange.sent_headers["connection"] == "close"
            assert json.loads(await exchange.piece() or b"")["promptId"], "the client has its answer at once"
            await trio.sleep(2)
            assert up.governor.sessions[session].log.last_id == 0
            exchange.leave()
            began = trio.current_time()
            await events.until("turn_complete")
            assert trio.current_time() - began < 0.1
            await exchange.ended.wait()


async def test_a_client_that_keeps_its_connection_open_delays_its_turn_by_a_bounded_time(
    autojump_clock: MockClock,
) -> None:
    async with service(limits={"read_receipt_timeout_ms": 3_000}) as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        async with listening(up, session) as events:
            exchange = prompt_exchange(up, session)
            nursery.start_soon(exchange.run)
            began = trio.current_time()
            await events.until("turn_complete")
            assert trio.current_time() - began == pytest.approx(3, abs=0.1)
            assert exchange.complete
            nursery.cancel_scope.cancel()


async def test_where_nobody_listens_nothing_waits_and_the_connection_is_kept(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        exchange = prompt_exchange(up, session)
        nursery.start_soon(exchange.run)
        answer = await exchange.whole()
        assert "connection" not in answer.headers
        await trio.sleep(0.1)
        assert up.governor.sessions[session].pending_count == 0
        nursery.cancel_scope.cancel()


async def test_a_deadline_waits_for_the_receipt_as_well(autojump_clock: MockClock) -> None:
    """Its terminal event would be missed like any other."""
    async with service(limits={"prompt_deadline_ms": 1}) as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        async with listening(up, session) as events:
            exchange = prompt_exchange(up, session)
            nursery.start_soon(exchange.run)
            await trio.sleep(0.5)
            assert up.governor.sessions[session].log.last_id == 0
            exchange.leave()
            assert (await events.until("turn_error"))[-1]["data"]["code"] == "prompt_deadline_exceeded"


async def leave_later(exchange: AsgiExchange, after_s: float) -> None:
    """A client that reads its answer late."""
    await trio.sleep(after_s)
    exchange.leave()


ENDINGS: dict[str, Callable[[Service, str, str], object]] = {
    "drain": lambda up, _session, _prompt: up.governor.drain(),
    "close": lambda up, session, _prompt: up.governor.close_session(session),
    "removal": lambda up, session, prompt: up.governor.sessions[session].remove(prompt),
    "cancel": lambda up, session, _prompt: up.governor.sessions[session].cancel(),
}
"""How somebody else ends a prompt, whatever its caller knows."""


@pytest.mark.parametrize("ending", ENDINGS)
async def test_no_terminal_event_overtakes_its_202_whoever_ends_the_prompt(
    ending: str, autojump_clock: MockClock
) -> None:
    """S7: it ends at once (S3), but a client forgets the end of a prompt that it does not know."""
    async with service(limits={"read_receipt_timeout_ms": 5_000}) as up, trio.open_nursery() as nursery:
        session_id = await up.new_session()
        session = up.governor.sessions[session_id]
        async with listening(up, session_id) as events:
            exchange = prompt_exchange(up, session_id)
            nursery.start_soon(exchange.run)
            assert await exchange.head() == 202
            prompt_id = json.loads(await exchange.piece() or b"")["promptId"]
            ENDINGS[ending](up, session_id, prompt_id)
            assert session.pending_count == 0
            began = trio.current_time()
            nursery.start_soon(leave_later, exchange, 0.5)
            first = await events.event()
            assert trio.current_time() - began == pytest.approx(0.5, abs=0.1)
            assert first is not None
            assert first["type"] == ("prompt_cancelled" if ending in {"removal", "cancel"} else "turn_error")
            assert first["data"]["promptId"] == prompt_id
            assert len(session._untold) == 0
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("grace_ms", "told_after_s"), [(5_000, 1.0), (500, 0.25)])
async def test_a_client_that_keeps_its_connection_open_delays_the_news_of_a_drain_by_a_bounded_time(
    grace_ms: int, told_after_s: float, autojump_clock: MockClock
) -> None:
    """S7: by less than the server's grace, at whose end whoever still reads is cut off."""
    options: dict[str, Any] = {
        "server": {"graceful_timeout_ms": grace_ms},
        "limits": {"read_receipt_timeout_ms": 3_000},
    }
    async with service(**options) as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        async with listening(up, session) as events:
            exchange = prompt_exchange(up, session)
            nursery.start_soon(exchange.run)
            assert await exchange.head() == 202
            began = trio.current_time()
            up.governor.drain()
            seen = await events.until("session_died")
            assert [event["type"] for event in seen] == ["turn_error", "session_died"]
            assert trio.current_time() - began == pytest.approx(told_after_s, abs=0.1)
            nursery.cancel_scope.cancel()


async def test_a_drain_hurries_what_is_held_already(autojump_clock: MockClock) -> None:
    """S7: it was removed just before, and its subscriber would be cut off before the second is over."""
    options: dict[str, Any] = {"server": {"graceful_timeout_ms": 500}, "limits": {"read_receipt_timeout_ms": 3_000}}
    async with service(**options) as up, trio.open_nursery() as nursery:
        session_id = await up.new_session()
        async with listening(up, session_id) as events:
            exchange = prompt_exchange(up, session_id)
            nursery.start_soon(exchange.run)
            prompt_id = json.loads((await exchange.head(), await exchange.piece())[1] or b"")["promptId"]
            up.governor.sessions[session_id].remove(prompt_id)
            await trio.sleep(0.1)
            began = trio.current_time()
            up.governor.drain()
            await events.until("session_died")
            assert trio.current_time() - began == pytest.approx(0.25, abs=0.05)
            nursery.cancel_scope.cancel()


class HastyExchange(AsgiExchange):
    """A client that leaves with the last byte of the body, before the server says that it was the last."""

    async def _send(self, message: Any) -> None:
        await super()._send(message)
        if message["type"] == "http.response.body" and message.get("body"):
            self.leave()
            for _ in range(5):  # the framework hears of it before it can send the end
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("listened_to", [True, False])
async def test_a_client_that_leaves_with_the_last_byte_of_its_202_has_it(
    listened_to: bool, autojump_clock: MockClock
) -> None:
    """S7: the framework sends the end of a body by itself, and the client need not wait for that."""
    async with service() as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        async with AsyncExitStack() as stack:
            if listened_to:
                await stack.enter_async_context(listening(up, session))
            exchange = prompt_exchange(up, session, HastyExchange)
            nursery.start_soon(exchange.run)
            assert await exchange.head() == 202
            prompt_id = json.loads(await exchange.piece() or b"")["promptId"]
            await exchange.ended.wait()
            await trio.sleep(1)
            record = up.governor.sessions[session].history.get(prompt_id)
            assert record is not None
            assert record.status(session)["state"] == "completed"
