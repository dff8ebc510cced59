"""`POST /session/:id/prompt` is served in front of Quart, and no client can tell.

What it shares with every other route is held against `/session/:id/generate`, which Quart serves: the same request has
the same answer, but for what only an accepted one differs in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from api.hardened.exchange import DEPARTURE
from tests.api.harness import PATIENCE_S, AsgiExchange, Service, listening, service

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hypercorn.typing import HTTPScope

    from governor.session import Session

JSON = {"Content-Type": "application/json"}
PROMPT = b'{"prompt": [{"type": "text", "text": "0"}]}'
BODIES = {"prompt": PROMPT, "generate": b'{"prompt": "0"}'}
BODY = b"the body that the route understands"
Seen = tuple[int, dict[str, str], bytes]


async def seen(up: Service, action: str, method: str, path: str, data: bytes, headers: Mapping[str, str]) -> Seen:
    """The answer, what is of this route alone taken out of it: what it accepts, and its words for what is no prompt."""
    session = await up.new_session()
    data = data.replace(BODY, BODIES[action])
    answer = await up.ask(method, path.replace("S", session).replace("A", action), data=data, headers=headers)
    if answer.status in {200, 202} and method == "POST":
        return 200, {}, b""
    if b'"invalid_prompt"' in answer.body:
        return answer.status, {}, b"invalid_prompt"
    if "allow" in answer.headers:
        answer.headers["allow"] = ", ".join(sorted(answer.headers["allow"].split(", ")))
    return answer.status, answer.headers, answer.body.replace(session.encode(), b"S")


@pytest.mark.parametrize(
    ("method", "path", "data", "headers"),
    [
        ("POST", "/session/S/A", BODY, JSON),
        *((method, "/session/S/A", b"", {}) for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS")),
        ("GET", "/session/S/A", b"", {"X-Qwen-Client-Id": "not an id"}),
        *(
            ("POST", path, BODY, JSON)
            for path in (
                "//session/S/A", "///session/S/A", "/session//S/A", "/session/S//A", "/session/S/A/", "/session//A",
                "/session/S/A ", "/session/S/A\n", "/session/S\n/A", "/session/S/x/A", "/session/../A", "/Session/S/A",
                "/session/none/A", "/session/é\"/A", "/x/session/S/A",
            )
        ),
        *(
            ("POST", "/session/S/A", BODY, {"Content-Type": kind})
            for kind in (
                "", "text/plain", "APPLICATION/JSON", "application/json; charset=x", "application/ld+json",
                "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx",
            )
        ),
        ("POST", "/session/S/A", BODY, {}),
        *(
            ("POST", "/session/S/A", BODY, {**JSON, "Content-Encoding": coding})
            for coding in ("gzip", "", "identity", " IDENTITY ", "identity, gzip")
        ),
        *(
            ("POST", "/session/S/A", BODY, {**JSON, "X-Qwen-Client-Id": client})
            for client in ("nobody", "", "not an id", "x" * 128, "x" * 129, "\xe9")
        ),
        *(("POST", "/session/S/A", data, JSON) for data in (b"", b" ", b"{", b"[]", b"1", b"\xff", b'{"a":NaN}')),
        *(("POST", "/session/S/A", data, JSON) for data in (b"\xef\xbb\xbf" + BODY, BODY + b" ", BODY + b"x")),
        ("POST", "/session/S/A", b"[" * 9**6, JSON),
    ],
)  # fmt: skip
async def test_what_every_route_does_with_a_request_it_does_too(
    method: str, path: str, data: bytes, headers: dict[str, str], autojump_clock: trio.testing.MockClock
) -> None:
    async with service() as up:
        ours = await seen(up, "prompt", method, path, data, headers)
        assert ours == await seen(up, "generate", method, path, data, headers)


async def test_of_a_field_that_comes_twice_the_first_counts(autojump_clock: trio.testing.MockClock) -> None:
    @dataclass(slots=True, eq=False)
    class Twice(AsgiExchange):
        doubled: list[tuple[bytes, bytes]] = field(default_factory=list)

        def scope(self) -> HTTPScope:
            scope = AsgiExchange.scope(self)
            return {**scope, "headers": [*scope["headers"], *self.doubled]}

    names = (b"content-type", b"content-encoding", b"x-qwen-client-id")
    wrong, right = (b"text/plain", b"gzip", b"nobody"), (b"application/json", b"identity", b"")
    async with service(limits={"max_pending_prompts_per_session": 0}) as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        for name, bad, good in zip(names, wrong, right, strict=True):
            others = [(each, value) for each, value in zip(names, right, strict=True) if each != name]
            for values, accepted in (((good, bad), True), ((bad, good), False)):
                for action, body in BODIES.items():
                    doubled = [*others, *((name, value) for value in values)]
                    path = f"/session/{session}/{action}"
                    exchange = Twice(up.app, "POST", path, data=body, doubled=doubled)
                    nursery.start_soon(exchange.run)
                    assert (await exchange.head() in {200, 202}) == accepted, (action, name, values)
        nursery.cancel_scope.cancel()


async def test_it_shares_the_limit_on_prompts_and_is_refused_before_its_body_is_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for method, limit in (("POST", "prompts_per_minute"), ("GET", "reads_per_minute")):
        async with service(limits={limit: 2}) as up:
            refused: list[Seen] = []
            for action in ("generate", "prompt"):
                for taken in ("prompt", "generate"):  # one bucket, whoever takes from it
                    body = BODIES[taken] if method == "POST" else b""
                    assert (await up.ask(method, f"/session/none/{taken}", data=body, headers=JSON)).status in {
                        404,
                        405,
                    }
                for spelling in ("/session", "//session"):
                    exchange = AsgiExchange(up.app, method, f"{spelling}/none/{action}", data=b"{}", cut=True)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(exchange.run)
                        with trio.fail_after(PATIENCE_S):
                            answer = await exchange.whole()
                        nursery.cancel_scope.cancel()
                    answer.headers.pop("x-ratelimit-reset")
                    refused.append((answer.status, answer.headers, answer.body))
                await trio.sleep(100)
            assert refused == refused[:1] * 4
            assert refused[0][0] == 429


async def test_a_fault_of_ours_is_a_500_that_tells_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service() as up:
        monkeypatch.setattr(up.governor, "session", lambda _: {"session": 1}["a secret"])
        answer = await up.ask("POST", "/session/s/prompt", data=PROMPT, headers=JSON)
        assert (answer.status, answer.json["error"]) == (500, "Internal server error")


@dataclass(slots=True, eq=False)
class Noticed(AsgiExchange):
    """Under a server that tells of departures by itself: after the body nothing is received."""

    when_gone: list[Callable[[], None]] = field(default_factory=list)

    def scope(self) -> HTTPScope:
        return {**AsgiExchange.scope(self), "extensions": {DEPARTURE: self._register}}  # type: ignore[dict-item]

    def leave(self) -> None:
        AsgiExchange.leave(self)
        for callback in self.when_gone:
            callback()

    def _register(self, callback: Callable[[], None]) -> None:
        self.when_gone.append(callback)
        if self._gone.is_set():
            callback()

    async def _receive(self) -> Any:
        assert not self._asked, "nobody waits for what is told anyway"
        return await AsgiExchange._receive(self)

    async def _send(self, message: Any) -> None:
        if self._gone.is_set() and message["type"] == "http.response.body" and message.get("body"):
            raise BrokenPipeError
        await AsgiExchange._send(self, message)


def noticed(up: Service, session: str, **more: Any) -> Noticed:
    return Noticed(up.app, "POST", f"/session/{session}/prompt", data=PROMPT, headers=JSON, **more)


def untouched(session: Session) -> bool:
    return not session.pending_count and not session.history.settled and session.log.last_id == 0


async def test_whoever_closes_right_behind_its_prompt_has_not_prompted(autojump_clock: trio.testing.MockClock) -> None:
    """The server hears of both in the same moment, in any order; nothing is accepted before it has heard of both."""
    async with service() as up:
        session = await up.new_session()
        for _ in range(20):
            exchange = noticed(up, session)

            async def leave(exchange: Noticed = exchange) -> None:
                exchange.leave()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(exchange.run)
                nursery.start_soon(leave)
            assert exchange.status is None
            assert untouched(up.governor.sessions[session])
        await trio.sleep(10)
        assert not up.world.executions


async def test_the_receipt_of_a_202_needs_no_task_that_waits_for_it(autojump_clock: trio.testing.MockClock) -> None:
    async with service(limits={"read_receipt_timeout_ms": 5_000}) as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        async with listening(up, session) as events:
            exchange = noticed(up, session, closes_when_read=False)
            nursery.start_soon(exchange.run)
            assert await exchange.piece(), "the client has its answer at once"
            await trio.sleep(2)
            assert up.governor.sessions[session].log.last_id == 0
            exchange.leave()
            began = trio.current_time()
            await events.until("turn_complete")
            assert trio.current_time() - began < 0.1
            await exchange.ended.wait()
            assert exchange.complete


async def test_a_client_that_leaves_before_its_202_is_out_leaves_no_prompt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        session = up.governor.sessions[await up.new_session()]
        exchange = noticed(up, session.id, blocked=trio.Event())
        nursery.start_soon(exchange.run)
        await trio.sleep(1)
        assert session.pending_count == 1
        exchange.leave()
        assert exchange.blocked is not None
        exchange.blocked.set()
        await exchange.ended.wait()
        assert not session.pending_count
        await trio.sleep(10)
        assert not up.world.executions
