"""Web pages of allowed origins: protocol 1.2, `server.allow_origins`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.api.harness import Service, listening, service

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.api.harness import Answer

PAGE = "https://chat.example"
TOKEN = "0123456789abcdef"
ASKS = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
MAY_READ = {
    "access-control-allow-origin": PAGE,
    "access-control-expose-headers": "Retry-After, X-Qwen-Event-Epoch, X-Qwen-SSE-Stream-Id, Acp-Connection-Id",
    "vary": "Origin",
}


def cors_of(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


async def test_a_preflight_of_an_allowed_page_is_answered_without_a_token(autojump_clock: MockClock) -> None:
    async with service(server={"allow_origins": [PAGE]}, tokens={"api": TOKEN}) as up:
        answer = await up.ask("OPTIONS", "/session", headers=ASKS)
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers == {
            **MAY_READ,
            "access-control-allow-methods": "GET, POST, PATCH, DELETE, OPTIONS",
            "access-control-allow-headers": (
                "Authorization, Content-Type, X-Qwen-Client-Id, Last-Event-ID, X-Qwen-Event-Epoch, Acp-Connection-Id,"
                " Acp-Session-Id"
            ),
            "access-control-max-age": "86400",
        }
        assert "access-control-allow-credentials" not in answer.headers


async def test_an_allowed_page_may_read_every_answer_whoever_gives_it(autojump_clock: MockClock) -> None:
    """A route, an error of one, the gate, the guard, the pass-through, a stream."""
    limits = {"max_body_bytes": 1000, "max_prompt_bytes": 1000}
    async with service(server={"allow_origins": [PAGE]}, tokens={"api": TOKEN}, limits=limits) as up:
        known = {"Origin": PAGE, "Authorization": f"Bearer {TOKEN}"}
        answers = [
            (200, await up.ask("GET", "/capabilities", headers=known)),
            (404, await up.ask("GET", "/session/none/status", headers=known)),
            (401, await up.ask("GET", "/capabilities", headers={"Origin": PAGE})),
            (413, await up.ask("POST", "/session", data=b"x" * 1001, headers=known)),
            (404, await up.ask("POST", "/v2/models/none/infer", data=b"{}", headers=known)),
        ]
        for status, answer in answers:
            assert answer.status == status
            assert MAY_READ.items() <= answer.headers.items()
            assert len(cors_of(answer)) == 2
        created = await up.ask("POST", "/session", body={}, headers=known)
        async with listening(up, created.json["sessionId"], **known) as events:
            assert events.exchange.sent_headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("origin", ["https://evil.example", "http://chat.example", f"{PAGE}:8443", "null", "", "*"])
async def test_no_other_page_gets_anything(origin: str, autojump_clock: MockClock) -> None:
    async with service(server={"allow_origins": [PAGE]}) as up:
        for method, headers in (("GET", {}), ("OPTIONS", {"Access-Control-Request-Method": "POST"})):
            answer = await up.ask(method, "/capabilities", headers={"Origin": origin, **headers})
            assert (answer.status, answer.code) == (403, "origin_not_allowed")
            assert answer.headers["vary"] == "Origin"
            assert not cors_of(answer)


async def test_every_page_but_one_without_an_origin_where_the_operator_says_so(autojump_clock: MockClock) -> None:
    async with service(server={"allow_origins": ["*"]}, tokens={"api": TOKEN}) as up:
        known = {"Authorization": f"Bearer {TOKEN}"}
        answer = await up.ask("GET", "/capabilities", headers={**known, "Origin": "https://any.example"})
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == "https://any.example"
        assert (await up.ask("GET", "/capabilities", headers={**known, "Origin": "null"})).status == 403


async def test_the_own_origin_and_no_origin_are_answered_as_ever(autojump_clock: MockClock) -> None:
    async with service(server={"allow_origins": [PAGE]}) as up:
        for headers in ({}, {"Origin": "http://127.0.0.1:4170"}):
            answer = await up.ask("GET", "/capabilities", headers=headers)
            assert answer.status == 200
            assert not cors_of(answer)


async def test_two_origins_are_none(autojump_clock: MockClock) -> None:
    async with service(server={"allow_origins": [PAGE]}) as up:
        answer = await up.ask("GET", "/capabilities", headers={"Origin": PAGE, "origin": "https://evil.example"})
        assert answer.status == 403
        assert not cors_of(answer)


async def modes(up: Service) -> tuple[bool, object]:
    told = (await up.ask("GET", "/daemon/status", headers={"Authorization": f"Bearer {TOKEN}"})).json
    assert told["security"]["allowOriginConfigured"] == ("allow_origin" in told["capabilities"]["features"])
    return told["security"]["allowOriginConfigured"], told["security"]["allowOriginMode"]


async def test_it_is_told_what_is_allowed(autojump_clock: MockClock) -> None:
    async with service() as up:
        assert await modes(up) == (False, "none")
    async with service(server={"allow_origins": [PAGE]}) as up:
        assert await modes(up) == (True, "list")
    async with service(server={"allow_origins": ["*"]}, tokens={"api": TOKEN}) as up:
        assert await modes(up) == (True, "any")
