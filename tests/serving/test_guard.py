"""The Guard alone, under a fake server; what it needs a real connection for is at the end."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from quart import Response, request
from quart_trio import QuartTrio
from structlog.testing import capture_logs

from api.guard import FINAL_BODY_BYTES, Guard, after_response
from api.hardened import ClientGoneError

from .exchange import Exchange
from .support import (
    ask,
    body,
    body_length,
    connect,
    disconnected,
    eventually,
    get,
    read_all,
    read_reply,
    respond,
    serving,
    start,
)

if TYPE_CHECKING:
    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveCallable,
        ASGISendCallable,
        ASGISendEvent,
        Scope,
    )


def guard(app: ASGIFramework, *, max_body_bytes: int = 100, max_in_flight: int = 2) -> Guard:
    return Guard(app, max_body_bytes=max_body_bytes, max_in_flight=max_in_flight)


async def echo(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    await respond(send, str(await body_length(receive)).encode())


class TestBodies:
    async def test_a_body_of_the_limit_passes(self) -> None:
        exchange = await Exchange("/", b"x" * 60, b"x" * 40, length=b"100").run(guard(echo))
        assert (exchange.status, exchange.content) == (200, b"100")

    async def test_a_declared_body_over_the_limit_is_refused_before_the_application_runs(self) -> None:
        async def never(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            raise AssertionError

        exchange = await Exchange("/", length=b"101").run(guard(never))
        assert exchange.status == 413
        assert exchange.error["code"] == "body_too_large"
        assert exchange.error["limit"] == 100
        assert "100 bytes" in str(exchange.error["error"])
        assert exchange.headers[b"connection"] == b"close"

    @pytest.mark.parametrize(("length", "status"), [(b"9" * 5000, 413), (b"-1", 400), (b"1e3", 400), (b"", 400)])
    async def test_odd_lengths_are_refused(self, length: bytes, status: int) -> None:
        assert (await Exchange("/", length=length).run(guard(echo))).status == status

    @pytest.mark.parametrize("length", [None, b"7"])
    async def test_an_undeclared_body_is_refused_while_it_is_received(self, length: bytes | None) -> None:
        """The application sees no byte beyond the limit, and its remains are cancelled, whatever tasks it has.

        A length beside chunks is none: there are servers that let it pass and go by the chunks.
        """
        seen: list[int] = []
        cancelled: list[bool] = []

        async def collects(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            async def collect() -> None:
                while True:
                    message = await receive()
                    assert message["type"] == "http.request"
                    seen.append(len(message["body"]))

            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(collect)
                    nursery.start_soon(trio.sleep_forever)
            finally:
                cancelled.append(True)

        chunked = Exchange("/", *[b"x" * 40] * 5, length=length, headers=(b"transfer-encoding",))
        exchange = await chunked.run(guard(collects))
        assert exchange.status == 413
        assert exchange.error["code"] == "body_too_large"
        assert sum(seen) == 80
        assert cancelled == [True]

    async def test_a_body_that_grows_too_large_after_the_response_began_only_ends_it(self) -> None:
        async def early(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            await send(start())
            await body_length(receive)

        exchange = await Exchange("/", *[b"x" * 40] * 5).run(guard(early))
        assert [message["type"] for message in exchange.sent] == ["http.response.start"]


class TestInFlight:
    async def test_more_requests_than_allowed_are_refused_and_health_is_not(self) -> None:
        release = trio.Event()

        async def waits(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            assert scope["type"] == "http"
            if scope["path"] == "/wait":
                await release.wait()
            await respond(send, b"ok")

        limited = guard(waits)
        async with trio.open_nursery() as nursery:
            waiting = [Exchange("/wait") for _ in range(2)]
            for exchange in waiting:
                nursery.start_soon(exchange.run, limited)
            await trio.testing.wait_all_tasks_blocked()
            assert limited.in_flight == 2
            refused = await Exchange("/").run(limited)
            assert refused.status == 503
            assert refused.headers[b"retry-after"] == b"1"
            assert refused.error["code"] == "too_many_requests_in_flight"
            for path in ("/healthz", "/readyz", "/health", "/metrics"):
                assert (await Exchange(path).run(limited)).status == 200
            release.set()
        assert [exchange.status for exchange in waiting] == [200, 200]
        assert limited.in_flight == 0
        assert (await Exchange("/").run(limited)).status == 200

    @pytest.mark.parametrize("how", ["raise", "cancel", "too large"])
    async def test_every_end_gives_the_place_back(self, how: str) -> None:
        async def ends(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            if how == "raise":
                raise ValueError
            await body_length(receive)
            await trio.sleep_forever()

        limited = guard(ends)
        with trio.move_on_after(0.05), capture_logs():
            await Exchange("/", *[b"x" * (40 if how == "too large" else 1)] * 5).run(limited)
        assert limited.in_flight == 0


class TestFailures:
    async def test_an_exception_becomes_a_500_and_one_log_event_with_traceback(self) -> None:
        async def fails(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                raise ZeroDivisionError("secret detail")

        with capture_logs() as logs:
            exchange = await Exchange("/some/path").run(guard(fails))
        assert exchange.status == 500
        assert exchange.error == {"error": "Internal server error", "code": "internal_error"}
        [event] = logs
        assert event["event"] == "request_failed"
        assert event["log_level"] == "error"
        assert event["path"] == "/some/path"
        assert event["exc_info"]

    async def test_an_exception_after_the_start_only_ends_the_response(self) -> None:
        async def fails(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            await send(start())
            raise ZeroDivisionError

        with capture_logs() as logs:
            exchange = await Exchange().run(guard(fails))
        assert [message["type"] for message in exchange.sent] == ["http.response.start"]
        assert [event["event"] for event in logs] == ["request_failed"]

    async def test_a_start_that_was_refused_is_no_start(self) -> None:
        """The server raises for a malformed header: the client still gets an answer."""
        exchange = Exchange()

        def refuse_once(_: ASGISendEvent) -> None:
            exchange.on_send = lambda _: None
            raise ValueError("Pseudo headers are not valid")

        exchange.on_send = refuse_once
        with capture_logs():
            await exchange.run(guard(echo))
        assert exchange.status == 500

    async def test_a_client_that_left_is_no_error(self) -> None:
        async def gone(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                raise ClientGoneError

        with capture_logs() as logs:
            exchange = await Exchange().run(guard(gone))
        assert not logs
        assert not exchange.sent

    async def test_quart_disconnect_errors_are_no_errors(self) -> None:
        """Quart 0.23 raises its ClientDisconnectedError where Quart 0.22 only cancels."""
        base = pytest.importorskip("quart.wrappers.base")
        kind = getattr(base, "ClientDisconnectedError", None)
        if kind is None:
            pytest.skip("this Quart has no ClientDisconnectedError")

        async def gone(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            raise kind

        with capture_logs() as logs:
            await Exchange().run(guard(gone))
        assert not logs

    async def test_cancellation_is_not_swallowed(self) -> None:
        async def sleeps(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            await trio.sleep_forever()

        exchange = Exchange()
        with trio.move_on_after(0.01) as scope:
            await guard(sleeps)(exchange.scope, exchange.receive, exchange.send)
        assert scope.cancelled_caught
        assert not exchange.sent

    @pytest.mark.parametrize("kind", ["lifespan", "websocket"])
    async def test_other_scopes_pass_untouched(self, kind: str) -> None:
        seen: list[object] = []

        async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            seen.extend((dict(scope), receive, send))

        exchange = Exchange()
        scope: Scope = {"type": kind}  # type: ignore[assignment]  # all that the guard looks at
        await guard(app)(scope, exchange.receive, exchange.send)
        assert seen == [{"type": kind}, exchange.receive, exchange.send]


class TestFinalSend:
    async def test_it_is_not_cut_short_by_a_framework_that_is_done(self) -> None:
        """Quart cancels the request in the midst of the last send, when the server says that the response is over."""
        finished: list[bool] = []
        over = trio.CancelScope()

        async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            with over:
                await respond(send, b"ok")

        exchange = Exchange()

        async def bookkeeping(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.body":
                over.cancel()
                await trio.sleep(0.01)
                finished.append(True)

        await guard(app)(exchange.scope, exchange.receive, bookkeeping)
        assert finished == [True]

    async def test_it_is_bounded(self) -> None:
        async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            await send(body(b"end"))

        async def stuck(message: ASGISendEvent) -> None:
            await trio.sleep_forever()

        bounded = Guard(app, max_body_bytes=1, max_in_flight=1, final_send_timeout_s=0.05)
        exchange = Exchange()
        with trio.fail_after(2):
            await bounded(exchange.scope, exchange.receive, stuck)

    async def test_a_large_last_message_is_sent_outside_the_shield(self) -> None:
        """A slow reader of a large answer has the server's patience, piece by piece, not the shield's."""

        async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            await respond(send, bytes(FINAL_BODY_BYTES + 1))

        exchange = await Exchange().run(guard(app))
        sizes = [(len(m["body"]), m["more_body"]) for m in exchange.sent if m["type"] == "http.response.body"]
        assert sizes == [(FINAL_BODY_BYTES + 1, True), (0, False)]


class TestAfterResponse:
    async def test_it_runs_once_and_only_when_the_last_message_was_sent(self) -> None:
        order: list[str] = []

        async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            after_response(scope, partial(order.append, "first"))
            after_response(scope, partial(order.append, "second"))
            await respond(send, b"ok")
            order.append("application goes on")

        exchange = Exchange()
        exchange.on_send = lambda message: order.append(message["type"])
        await exchange.run(guard(app))
        sent = ["http.response.start", "http.response.body"]
        assert order == [*sent, "first", "second", "application goes on"]

    @pytest.mark.parametrize("how", ["raise", "cancel", "gone", "return", "send fails", "too large"])
    async def test_it_runs_once_however_the_request_ends(self, how: str) -> None:
        ran: list[bool] = []

        async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            after_response(scope, partial(ran.append, True))
            match how:
                case "raise":
                    raise ValueError
                case "cancel":
                    await trio.sleep_forever()
                case "gone":
                    raise ClientGoneError
                case "send fails":
                    await respond(send, b"ok")
                case "too large":
                    await body_length(receive)
                case _:
                    assert how == "return"

        exchange = Exchange("/", *[b"x" * 40] * 5)

        def fail(_: ASGISendEvent) -> None:
            raise ClientGoneError

        if how == "send fails":
            exchange.on_send = fail
        with trio.move_on_after(0.05), capture_logs():
            await exchange.run(guard(app))
        assert ran == [True]

    async def test_one_that_raises_is_logged_and_harms_nobody(self) -> None:
        ran: list[bool] = []

        def failing() -> None:
            raise ZeroDivisionError

        async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            after_response(scope, failing)
            after_response(scope, partial(ran.append, True))
            await respond(send, b"ok")

        with capture_logs() as logs:
            exchange = await Exchange().run(guard(app))
        assert (exchange.content, ran) == (b"ok", [True])
        assert [event["event"] for event in logs] == ["after_response_callback_failed"]

    async def test_registered_late_it_runs_at_once(self) -> None:
        order: list[str] = []

        async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            await respond(send, b"ok")
            after_response(scope, partial(order.append, "callback"))
            order.append("application goes on")

        assert (await Exchange().run(guard(app))).content == b"ok"
        assert order == ["callback", "application goes on"]

    async def test_without_a_guard_it_says_so(self) -> None:
        with pytest.raises(LookupError, match="Guard"):
            after_response(Exchange().scope, lambda: None)

    async def test_from_quart_the_client_has_its_answer_before_it_runs(self) -> None:
        """What it is for: a prompt's turn starts only after its 202 was flushed; and a lost client starts it too."""
        app = QuartTrio("turns")
        started: list[str] = []
        arrived = trio.Event()

        @app.post("/prompt/<name>")
        async def prompt(name: str) -> tuple[str, int]:
            after_response(request.scope, partial(started.append, name))
            if name == "slow":
                arrived.set()
                await trio.sleep_forever()
            assert not started
            return "accepted", 202

        app.asgi_app = guard(app.asgi_app)  # type: ignore[method-assign]  # Quart's way to add middleware
        async with serving(app) as server:
            async with await connect(server.port) as client:
                await client.send_all(b"POST /prompt/a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
                assert (await read_reply(client)).status == 202
                await eventually(lambda: started == ["a"])
                await client.send_all(b"POST /prompt/slow HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
                await arrived.wait()
                assert started == ["a"]
            await eventually(lambda: started == ["a", "slow"])


class TestOverConnections:
    async def test_a_chunked_upload_over_the_limit_reads_its_413(self) -> None:
        """The answer is not lost in a reset, although the client has sent much more and reads only then."""
        app = QuartTrio("uploads")

        @app.post("/")
        async def upload() -> str:
            return str(len(await request.get_data()))

        app.asgi_app = guard(app.asgi_app, max_body_bytes=100_000)  # type: ignore[method-assign]  # as above
        async with serving(app) as server, await connect(server.port) as client:
            await client.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(100):
                await client.send_all(b"10000\r\n" + bytes(65536) + b"\r\n")
            reply = await read_reply(client)
            assert (reply.status, json.loads(reply.body)["code"]) == (413, "body_too_large")
            assert await read_all(client) == b""

    async def test_an_exception_leaves_the_connection_usable(self) -> None:
        async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            assert scope["type"] == "http"
            if scope["path"] == "/fail":
                raise ZeroDivisionError
            await respond(send, b"ok")

        with capture_logs():
            async with serving(guard(app)) as server, await connect(server.port) as client:
                for path, status in (("/fail", 500), ("/", 200), ("/fail", 500)):
                    await client.send_all(get(path))
                    assert (await read_reply(client)).status == status

    async def test_nothing_is_logged_when_clients_leave(self) -> None:
        app = QuartTrio("quiet")
        app.config["RESPONSE_TIMEOUT"] = None
        running: list[bool] = []

        @app.get("/wait")
        async def wait() -> Response:
            running.append(True)
            try:
                await trio.sleep(60)
            finally:
                running.pop()
            return Response("never")

        app.asgi_app = guard(app.asgi_app)  # type: ignore[method-assign]  # as above
        with capture_logs() as logs:
            async with serving(app) as server:
                async with await connect(server.port) as client:
                    await client.send_all(get("/wait"))
                    await eventually(lambda: bool(running))
                await eventually(lambda: not running)
                assert (await ask(server.port)).status == 404
        assert not logs


@pytest.mark.parametrize("limits", [{"max_body_bytes": -1}, {"max_in_flight": 0}], ids=["no body", "no requests"])
def test_limits_that_cannot_work_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        guard(echo, **limits)


async def test_a_raw_application_hears_of_the_disconnect() -> None:
    """What raw ASGI applications rely on to stop: `receive` goes through the guard unchanged."""
    heard = trio.Event()

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        await disconnected(receive)
        heard.set()

    async with serving(guard(app)) as server:
        async with await connect(server.port) as client:
            await client.send_all(get("/"))
            await trio.testing.wait_all_tasks_blocked(0.02)
        with trio.fail_after(5):
            await heard.wait()
