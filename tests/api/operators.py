"""Operators of `/admin`: what they send, what they see, and calls for them to see."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from governor.config import ModelConfig
from governor.core.claims import ClaimState
from tests.api.harness import AsgiExchange, Events, Service, streaming
from tests.shell.world import Break, Plan, decoupled_facts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


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
