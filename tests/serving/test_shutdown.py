"""The shutdown: nothing new, idle connections at once, running requests their grace, and a bound on the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from .support import (
    BareApp,
    Server,
    connect,
    eventually,
    get,
    quart_app,
    read_all,
    read_reply,
    serving,
    task_names,
)

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope

KINDS = pytest.mark.parametrize("kind", ["bare", "quart"])


def application(kind: str) -> ASGIFramework:
    return BareApp() if kind == "bare" else quart_app()


async def duration_of_shutdown(server: Server) -> float:
    began = trio.current_time()
    server.shutdown.set()
    with trio.fail_after(10):
        await server.ended.wait()
    return trio.current_time() - began


@KINDS
async def test_idle_connections_are_closed_at_once(kind: str) -> None:
    """Under stock quart-trio on stock hypercorn each of them makes the shutdown last the whole grace."""
    async with serving(application(kind), graceful_timeout_s=5) as server:
        used = [await connect(server.port) for _ in range(5)]
        fresh = [await connect(server.port) for _ in range(5)]
        for client in used:
            await client.send_all(get("/"))
            assert (await read_reply(client)).status == 200
        await fresh[0].send_all(get("/")[:10])
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert await duration_of_shutdown(server) < 1
        for client in used + fresh:
            assert await read_all(client) == b""
            await client.aclose()


@KINDS
async def test_a_running_request_is_finished_and_says_that_the_connection_ends(kind: str) -> None:
    async with serving(application(kind), graceful_timeout_s=5) as server:
        async with await connect(server.port) as client:
            await client.send_all(get("/wait/0.2"))
            await trio.testing.wait_all_tasks_blocked(0.02)
            server.shutdown.set()
            reply = await read_reply(client)
            assert (reply.body, reply.head["connection"]) == (b"waited", "close")
            assert await read_all(client) == b""
        assert await duration_of_shutdown(server) < 1


async def test_a_stream_that_ends_in_the_grace_ends_its_connection() -> None:
    """Its head said before the shutdown that the connection stays; another request would be waited for."""
    ends = trio.Event()

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            await BareApp()(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"more ", "more_body": True})
        await ends.wait()
        await send({"type": "http.response.body", "body": b"follows", "more_body": False})

    async with serving(app, graceful_timeout_s=5) as server, await connect(server.port) as client:
        await client.send_all(get("/"))
        await client.receive_some(10)
        server.shutdown.set()
        await trio.testing.wait_all_tasks_blocked(0.02)
        ends.set()
        assert await duration_of_shutdown(server) < 1


@KINDS
async def test_nothing_new_is_accepted_during_the_grace(kind: str) -> None:
    async with serving(application(kind)) as server, await connect(server.port) as client:
        await client.send_all(get("/wait/5.0"))
        await trio.testing.wait_all_tasks_blocked(0.02)
        server.shutdown.set()
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert not server.ended.is_set()
        with pytest.raises(ConnectionRefusedError):
            await connect(server.port)


@KINDS
async def test_an_open_stream_has_its_grace_and_is_cut(kind: str) -> None:
    bounds = {"graceful_timeout_s": 0.3, "send_timeout_s": 5.0}
    async with serving(application(kind), **bounds) as server, await connect(server.port) as client:
        await client.send_all(get("/events"))
        await client.receive_some(10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, client)
            assert 0.25 < await duration_of_shutdown(server) < 1


@KINDS
async def test_a_reader_that_stalls_holds_up_the_shutdown_no_longer_than_the_send_timeout(kind: str) -> None:
    """Under the stock worker the shutdown waits until that client deigns to close."""
    async with serving(application(kind), graceful_timeout_s=0.3, send_timeout_s=0.4) as server:
        client = await connect(server.port, receive_buffer=4096)
        await client.send_all(get("/events/large"))
        await client.receive_some(10)
        await trio.testing.wait_all_tasks_blocked(0.05)  # the server's send waits for the client
        assert await duration_of_shutdown(server) < 0.3 + 0.4 + 0.5
        await client.aclose()


async def test_many_kinds_of_clients_at_once() -> None:
    """All of the above together, within the bound that `serve_http` promises."""
    before = task_names()
    async with serving(quart_app(), graceful_timeout_s=0.3, send_timeout_s=0.3) as server:
        clients = []
        for path in ["/", "/wait/0.1", "/wait/5.0", "/events", "/events/large"] * 3:
            client = await connect(server.port, receive_buffer=4096)
            await client.send_all(get(path))
            if path.startswith("/events"):
                await client.receive_some(10)
            clients.append(client)
        assert await duration_of_shutdown(server) < 0.3 + 0.3 + 0.5
        for client in clients:
            await client.aclose()
    await eventually(lambda: task_names() == before)


async def test_a_lifespan_that_does_not_end_is_cut_off() -> None:
    """The bound holds whatever the application does."""

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "lifespan"
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await trio.sleep_forever()

    async with serving(app, graceful_timeout_s=0.1, send_timeout_s=0.1) as server:
        assert 0.15 < await duration_of_shutdown(server) < 1


async def test_cancelling_the_server_closes_everything() -> None:
    before = task_names()
    client: trio.SocketStream | None = None
    with trio.CancelScope() as scope:
        async with serving(BareApp()) as server:
            client = await connect(server.port)
            await client.send_all(get("/wait/5.0"))
            await trio.testing.wait_all_tasks_blocked(0.02)
            scope.cancel()
    assert scope.cancelled_caught
    assert client is not None
    assert await read_all(client) == b""
    await client.aclose()
    await eventually(lambda: task_names() == before)
