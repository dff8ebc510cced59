"""The gate: protocol 1.1 to 1.3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.api.harness import HOST, PORT, listening, service
from tests.api.routes import routes_of

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.api.harness import Answer

TOKEN = "0123456789abcdef"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
OPEN = {"/health", "/healthz", "/readyz"}


async def test_every_route_needs_the_token_but_the_few_that_say_not(autojump_clock: MockClock) -> None:
    """Walks the routes that there are, so that a new one is looked at without anybody thinking of it."""
    async with service(tokens={"api": TOKEN}) as up:
        walked = set()
        for route_method, rule in routes_of(up.app):
            path = "/".join("x" if part.startswith("<") else part for part in rule.split("/"))
            for method in (route_method, "OPTIONS"):
                walked.add(path)
                answer = await up.ask(method, path)
                assert (answer.status == 401) == (path not in OPEN), (method, path)
        assert walked > OPEN | {"/session", "/session/x/prompt", "/session/x/events", "/capabilities", "/metrics"}
        for path in ("/v2/models/chat/infer", "/v2/models/chat/generate_stream", "/no/such/route", "/health/"):
            assert (await up.ask("POST", path, data=b"{}")).status == 401, path
        assert not up.world.wires


async def test_every_failure_is_the_same_401(autojump_clock: MockClock) -> None:
    async with service(tokens={"api": TOKEN}) as up:
        wrong: list[dict[str, str]] = [
            {},
            {"Authorization": ""},
            {"Authorization": TOKEN},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer "},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": f"Bearer {TOKEN[:-1]}"},
            {"Authorization": f"Bearer {TOKEN} x"},
            {"Authorization": f"Bearer {TOKEN.upper()}"},
            {"Authorization": "Bearer \xff"},
            {"X-Api-Key": TOKEN},
        ]
        answers = [await up.ask("GET", "/capabilities", headers=headers) for headers in wrong]
        assert {(answer.status, answer.body, answer.headers["www-authenticate"]) for answer in answers} == {
            (401, b'{"error": "Unauthorized", "code": "unauthorized"}', "Bearer")
        }


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER   ", " Bearer\t"])
async def test_the_scheme_is_read_generously(scheme: str, autojump_clock: MockClock) -> None:
    async with service(tokens={"api": TOKEN}) as up:
        assert (await up.ask("GET", "/capabilities", headers={"Authorization": f"{scheme}{TOKEN} "})).status == 200


async def test_two_authorization_headers_are_none(autojump_clock: MockClock) -> None:
    async with service(tokens={"api": TOKEN}) as up:
        headers = {"Authorization": f"Bearer {TOKEN}", "authorization": f"Bearer {TOKEN}"}
        assert (await up.ask("GET", "/capabilities", headers=headers)).status == 401


@pytest.mark.parametrize(("public", "status"), [(False, 401), (True, 200)])
async def test_metrics_are_public_only_where_the_operator_says_so(
    *, public: bool, status: int, autojump_clock: MockClock
) -> None:
    async with service(tokens={"api": TOKEN, "metrics_public": public}) as up:
        assert (await up.ask("GET", "/metrics")).status == status
        assert (await up.ask("GET", "/metrics", headers=RIGHT)).status == 200


async def test_without_a_token_nothing_is_asked(autojump_clock: MockClock) -> None:
    async with service() as up:
        assert (await up.ask("GET", "/capabilities")).status == 200
        assert (await up.ask("GET", "/metrics")).status == 200


OWN_NAMES = ("127.0.0.1", "[::1]", "host.docker.internal", "localhost")
HOSTS = [
    (HOST, True),
    (f"LOCALHOST:{PORT}", True),
    (f"[::1]:{PORT}", True),
    (f"host.docker.internal:{PORT}", True),
    ("localhost", False),
    (f"localhost:{PORT + 1}", False),
    ("evil.example", False),
    (f"evil.example:{PORT}", False),
    (f"localhost.evil.example:{PORT}", False),
    ("", False),
    (None, False),
]


@pytest.mark.parametrize(("host", "passes"), HOSTS)
async def test_a_loopback_bind_answers_to_its_own_names_alone(
    *, host: str | None, passes: bool, autojump_clock: MockClock
) -> None:
    async with service(tokens={"api": TOKEN}) as up:
        for path in ("/health", "/capabilities"):
            answer = await up.ask("GET", path, host=host, headers=RIGHT)
            assert answer.status == (200 if passes else 403)
            if not passes:
                assert answer.json == {
                    "error": "Invalid Host header",
                    "code": "invalid_host",
                    "received": [] if host is None else [host],
                    "expected": [f"{name}:{PORT}" for name in OWN_NAMES],
                }


async def test_a_bind_that_others_reach_leaves_the_host_to_the_token(autojump_clock: MockClock) -> None:
    async with service(server={"host": "0.0.0.0"}, tokens={"api": TOKEN}) as up:
        assert (await up.ask("GET", "/health", host="any.example")).status == 200
        assert (await up.ask("GET", "/capabilities", host="any.example")).status == 401


async def test_the_name_it_was_bound_by_is_its_own(autojump_clock: MockClock) -> None:
    async with service(server={"host": "127.0.0.5"}) as up:
        assert (await up.ask("GET", "/health", host=f"127.0.0.5:{PORT}")).status == 200


ORIGINS = [
    (f"http://{HOST}", True),
    (f"http://LOCALHOST:{PORT}", True),
    (f"http://[::1]:{PORT}", True),
    ("null", False),
    ("http://evil.example", False),
    (f"http://evil.example:{PORT}", False),
    (f"http://localhost:{PORT + 1}", False),
    ("file://", False),
    (HOST, False),
    ("", False),
]


@pytest.mark.parametrize(("origin", "passes"), ORIGINS)
async def test_a_page_of_another_origin_is_refused(*, origin: str, passes: bool, autojump_clock: MockClock) -> None:
    async with service() as up:
        answer = await up.ask("POST", "/session", headers={"Origin": origin})
        assert answer.status == (200 if passes else 403)
        assert len(up.governor.sessions) == passes
        if not passes:
            assert answer.json == {"error": "Request denied by CORS policy", "code": "origin_not_allowed"}
            assert answer.headers["vary"] == "Origin"
        assert "access-control-allow-origin" not in answer.headers


async def test_the_gates_come_in_the_protocols_order(autojump_clock: MockClock) -> None:
    async with service(tokens={"api": TOKEN}) as up:

        async def ask(**options: str) -> Answer:
            headers = {"Origin": options["origin"]} if "origin" in options else {}
            return await up.ask("GET", "/capabilities", host=options.get("host", HOST), headers=headers)

        assert (await ask(host="evil", origin="http://evil")).code == "invalid_host"
        assert (await ask(origin="http://evil")).code == "origin_not_allowed"
        assert (await ask()).code == "unauthorized"


@pytest.mark.parametrize("raw_path", [b"/%", b"/%4", b"/%zz", b"/session/%ff/prompt", b"/%c3%28"])
async def test_a_target_with_a_broken_encoding_is_a_400(raw_path: bytes, autojump_clock: MockClock) -> None:
    async with service() as up:
        answer = await up.ask("GET", "/x", raw_path=raw_path)
        assert (answer.status, answer.code) == (400, "invalid_request")


async def test_a_request_in_flight_too_many_is_refused_but_never_the_health(autojump_clock: MockClock) -> None:
    async with service(server={"max_in_flight": 1}) as up, listening(up, await up.new_session()):
        assert (await up.ask("GET", "/capabilities")).code == "too_many_requests_in_flight"
        for path in (*OPEN, "/metrics"):
            assert (await up.ask("GET", path)).status == 200


async def test_the_operators_page_is_at_home_by_whatever_name_it_is_reached(autojump_clock: MockClock) -> None:
    """A7: on a bind that others reach, what it asks of `/admin` comes from where it goes. It needs the token."""
    admin = {"Authorization": f"Bearer {TOKEN}"}
    at_home = {"Origin": "https://Governor.example"}
    async with service(server={"host": "0.0.0.0"}, tokens={"api": "0123456789abcdeF", "admin": TOKEN}) as up:
        for headers, host, status in [
            ({**admin, **at_home}, "governor.example", 200),
            ({**at_home}, "governor.example", 401),
            ({**admin, **at_home}, "other.example", 403),
            ({**admin, **at_home}, "governor.example:8443", 403),
            ({**admin, "Origin": "null"}, "null", 403),
            ({**admin, "Origin": "ftp://governor.example"}, "governor.example", 403),
        ]:
            answer = await up.ask("POST", "/admin/drain", headers=headers, host=host)
            assert answer.status == status, (headers, host)
        calls = {"Authorization": "Bearer 0123456789abcdeF", **at_home}
        assert (await up.ask("GET", "/capabilities", headers=calls, host="governor.example")).status == 403
    async with service(tokens={"admin": TOKEN}) as up:
        answer = await up.ask("POST", "/admin/drain", headers={**admin, **at_home}, host="governor.example")
        assert (answer.status, answer.code) == (403, "invalid_host")
