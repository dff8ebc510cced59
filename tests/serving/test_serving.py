"""`serve_http`: options, addresses, and what becomes of an application that fails."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, TypeAlias

import pytest
import trio

from api.serving import ApplicationFailedError, ListenError, ServeOptions, serve_http
from governor.errors import GovernorError

from .support import BareApp, ask, connect, get, open_files, read_reply, serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope

AddressInfo: TypeAlias = "tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int]]"


async def failure_of(app: ASGIFramework, options: ServeOptions) -> GovernorError:
    """What `serve_http` raises as it stands, not wrapped in a group."""
    with trio.fail_after(5), pytest.raises(GovernorError) as caught:
        await serve_http(app, options, shutdown=trio.Event())
    return caught.value


async def never(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    raise AssertionError("the application must not run")


async def test_the_bound_url_is_reported_and_answers() -> None:
    stop = trio.Event()

    async def run(task_status: trio.TaskStatus[list[str]]) -> None:
        await serve_http(BareApp(), ServeOptions(port=0), shutdown=stop, task_status=task_status)

    async with trio.open_nursery() as nursery:
        [url] = await nursery.start(run)
        assert url.startswith("http://127.0.0.1:")
        assert (await ask(int(url.rpartition(":")[2]))).body == b"ok"
        stop.set()


async def test_a_name_is_served_on_all_its_addresses_and_one_port() -> None:
    stop = trio.Event()

    async def run(task_status: trio.TaskStatus[list[str]]) -> None:
        options = ServeOptions(host="localhost", port=0)
        await serve_http(BareApp(), options, shutdown=stop, task_status=task_status)

    async with trio.open_nursery() as nursery:
        urls = await nursery.start(run)
        ports = {url.rpartition(":")[2] for url in urls}
        assert len(ports) == 1
        stream = await trio.open_tcp_stream("localhost", int(ports.pop()))
        await stream.send_all(get("/"))
        assert (await read_reply(stream)).body == b"ok"
        await stream.aclose()
        stop.set()


async def test_an_address_of_a_family_that_is_not_used_here_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name may have one, as localhost often has ::1 where IPv6 is off; the others are served."""

    async def two_addresses(*_: object, **__: object) -> list[AddressInfo]:
        kind, protocol = socket.SOCK_STREAM, socket.IPPROTO_TCP
        return [(socket.AF_INET, kind, protocol, "", (host, 0)) for host in ("192.0.2.1", "127.0.0.1")]

    monkeypatch.setattr(trio.socket, "getaddrinfo", two_addresses)
    stop = trio.Event()

    async def run(task_status: trio.TaskStatus[list[str]]) -> None:
        options = ServeOptions(host="two.invalid", port=0)
        await serve_http(BareApp(), options, shutdown=stop, task_status=task_status)

    async with trio.open_nursery() as nursery:
        [url] = await nursery.start(run)
        assert url.startswith("http://127.0.0.1:")
        stop.set()


async def test_a_taken_port_is_an_error_that_names_it() -> None:
    """Stock hypercorn starts the application first, and its command exits 0."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        error = await failure_of(never, ServeOptions(port=port))
    assert isinstance(error, ListenError)
    assert error.code == "listen_failed"
    assert f"127.0.0.1:{port}" in error.message
    assert "Another process listens there" in error.message


@pytest.mark.parametrize(
    ("host", "advice"),
    [
        ("192.0.2.1", "not this machine's"),
        ("no-such-host.invalid", "Use an address of this machine"),
        ("2001:db8::1", "[2001:db8::1]:4170"),
    ],
)
async def test_an_address_that_is_not_ours_is_an_error_that_says_what_to_do(host: str, advice: str) -> None:
    error = await failure_of(never, ServeOptions(host=host))
    assert isinstance(error, ListenError)
    assert host in error.message
    assert advice in error.message


async def test_the_port_is_free_again_afterwards() -> None:
    async with serving(BareApp()) as server:
        await ask(server.port)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", server.port))


async def test_responses_do_not_name_the_server_software() -> None:
    async with serving(BareApp()) as server:
        assert "server" not in (await ask(server.port)).head


async def refuses_to_start(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    assert scope["type"] == "lifespan"
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no coffee"})


async def refuses_to_stop(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    assert scope["type"] == "lifespan"
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.failed", "message": "no sleep"})


async def breaks_down(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    assert scope["type"] == "lifespan"
    await receive()
    await send({"type": "lifespan.startup.complete"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        raise ZeroDivisionError("deep inside")


async def test_an_application_that_refuses_to_start_is_never_announced() -> None:
    """Hypercorn announces the server nevertheless."""
    announced: list[list[str]] = []

    class Status:
        def started(self, value: list[str] | None = None) -> None:
            announced.append(value or [])

    with trio.fail_after(5), pytest.raises(ApplicationFailedError, match="did not start: no coffee"):
        await serve_http(refuses_to_start, ServeOptions(port=0), shutdown=trio.Event(), task_status=Status())
    assert not announced


async def test_an_application_that_breaks_down_ends_the_server() -> None:
    """D12: hypercorn goes on answering over a dead lifespan."""
    error = await failure_of(breaks_down, ServeOptions(port=0))
    assert isinstance(error, ApplicationFailedError)
    assert "deep inside" in error.message


async def test_an_application_that_fails_to_stop_is_reported() -> None:
    stop = trio.Event()
    stop.set()
    with trio.fail_after(5), pytest.raises(ApplicationFailedError, match="did not stop cleanly: no sleep"):
        await serve_http(refuses_to_stop, ServeOptions(port=0), shutdown=stop)


async def test_a_start_that_hangs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.serving.START_TIMEOUT_S", 0.05)

    async def hangs(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await trio.sleep_forever()

    files = open_files()
    error = await failure_of(hangs, ServeOptions(port=0))
    assert open_files() == files, "the listening socket is still open"
    assert isinstance(error, ApplicationFailedError)
    assert "did not start within 0.05 s" in error.message


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ServeOptions(port=-1),
        lambda: ServeOptions(port=65536),
        lambda: ServeOptions(graceful_timeout_s=-1),
        lambda: ServeOptions(graceful_timeout_s=float("inf")),
        lambda: ServeOptions(keep_alive_timeout_s=0),
        lambda: ServeOptions(backlog=0),
        lambda: ServeOptions(max_head_bytes=0),
        lambda: ServeOptions(max_connections=0),
        lambda: ServeOptions(send_timeout_s=float("nan")),
    ],
)
def test_options_that_cannot_work_are_refused(wrong: Callable[[], ServeOptions]) -> None:
    with pytest.raises(ValueError, match="must be"):
        wrong()


async def test_a_connection_made_before_the_start_is_complete_is_served_after_it() -> None:
    """The port is held from the first moment, so that a taken one is found before the application starts."""
    stop, go, listening = trio.Event(), trio.Event(), trio.Event()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "lifespan":
            await BareApp()(scope, receive, send)
            return
        listening.set()
        await go.wait()
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def run() -> None:
        await serve_http(app, ServeOptions(port=port), shutdown=stop)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await listening.wait()
        async with await connect(port) as client:
            await client.send_all(get("/"))
            go.set()
            assert (await read_reply(client)).body == b"ok"
        stop.set()
