"""Traces: who waits for whom, over request, prompt, credit and Triton; and nothing where nobody wants them."""

from __future__ import annotations

import gzip
import subprocess
import sys
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from api.app import create_app
from api.telemetry import telemetry
from api.tracing import OpenTelemetryTracer
from governor.service import Governor
from tests.api.harness import ApiWorld, AsgiExchange, Service, listening, make_config, service
from tests.shell.fakes import FakeLane, FakePort
from tests.shell.harness import FakeHealth
from tests.shell.world import Break, Plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from trio.testing import MockClock

CALLERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SERVER_NAME = "POST /v2/models/<model>/infer"


class Traced:
    """A service whose spans are kept."""

    def __init__(self, up: Service, exporter: InMemorySpanExporter) -> None:
        self.up = up
        self._exporter = exporter

    @property
    def spans(self) -> list[ReadableSpan]:
        """Those that have ended."""
        return list(self._exporter.get_finished_spans())

    def one(self, name: str) -> ReadableSpan:
        found = [span for span in self.spans if span.name == name]
        assert len(found) == 1, f"{len(found)} spans named {name!r} of {[span.name for span in self.spans]}"
        return found[0]


@asynccontextmanager
async def traced_service(**options: Any) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = OpenTelemetryTracer(provider)
    async with trio.open_nursery() as nursery:
        world = ApiWorld(nursery)
        health = FakeHealth(world)
        governor = Governor(
            make_config(**options),
            make_port=lambda _config, _model: FakePort(world),
            check=health,
            make_lane=lambda _config: FakeLane(world),
            tracer=tracer,
        )
        await nursery.start(governor.run)
        await trio.sleep(0.01)
        app = create_app(governor)
        tracer.instrument(app)
        yield Traced(Service(world, health, governor, app), exporter)
        nursery.cancel_scope.cancel()


def parent_id(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent is not None else None


def own_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_call_continues_its_callers_trace_into_triton(autojump_clock: MockClock) -> None:
    async with traced_service() as traced:
        headers = {"traceparent": CALLERS, "tracestate": "vendor=1"}
        traced.up.world.next_plans.append(Plan(body=b"{}"))
        assert (await traced.up.ask("POST", "/v2/models/chat/infer", data=b"{}", headers=headers)).status == 200
        server, wait, call = traced.one(SERVER_NAME), traced.one("credit wait"), traced.one("triton call")
        assert f"{trace_id(server):032x}" == CALLERS.split("-")[1]
        assert server.parent is not None
        assert f"{server.parent.span_id:016x}" == CALLERS.split("-")[2]
        assert parent_id(wait) == parent_id(call) == own_id(server)
        [wire] = traced.up.world.wires
        sent = dict(wire.headers)
        assert sent["traceparent"] == f"00-{trace_id(call):032x}-{own_id(call):016x}-01", (
            "Triton's spans are below ours"
        )
        assert sent["tracestate"] == "vendor=1"
        assert [name.lower() for name, _ in wire.headers].count("traceparent") == 1
        assert told(call) == {
            "governor.identity": "b/m",
            "governor.claim": 1,
            "http.request.method": "POST",
            "http.response.status_code": 200,
            "url.path": "/v2/models/m/infer",
        }
        assert told(server)["url.path"] == "/v2/models/chat/infer"


async def test_a_prompt_lives_on_below_the_request_that_handed_it_in(autojump_clock: MockClock) -> None:
    """Also one that had to wait for another: it starts in that one's end, but belongs to its own request."""
    async with traced_service() as traced:
        session = await traced.up.new_session()
        async with listening(traced.up, session) as events:
            for text in ("2", "1"):
                await traced.up.prompt(session, text)
            await events.until("turn_complete")
            await events.until("turn_complete")
        requests = [span for span in traced.spans if span.name == "POST /session/<session_id>/prompt"]
        prompts = [span for span in traced.spans if span.name == "prompt"]
        assert [parent_id(prompt) for prompt in prompts] == [own_id(request) for request in requests]
        assert {told(request)["http.route"] for request in requests} == {"/session/<session_id>/prompt"}
        for prompt in prompts:
            children = [span for span in traced.spans if parent_id(span) == own_id(prompt)]
            assert {span.name for span in children} == {"credit wait", "triton call"}
            assert told(prompt)["governor.session"] == session
            assert told(prompt)["governor.outcome"] == "completed"
        assert not [span for span in traced.spans if "events" in span.name], "a stream is no span"


async def test_the_call_goes_on_when_its_caller_has_left(autojump_clock: MockClock) -> None:
    async with traced_service() as traced, trio.open_nursery() as nursery:
        traced.up.world.next_plans.append(Plan(seconds=5, body=b"{}"))
        exchange = AsgiExchange(traced.up.app, "POST", "/v2/models/chat/infer", data=b"{}")
        nursery.start_soon(exchange.run)
        await trio.sleep(1)
        exchange.leave()
        await trio.sleep(1)
        traced.one(SERVER_NAME)  # the request is over
        assert not [span for span in traced.spans if span.name == "triton call"], "its call is not"
        await trio.sleep(5)
        call = traced.one("triton call")
        assert [event.name for event in call.events] == ["caller left"]
        assert call.status.status_code is StatusCode.UNSET


async def test_what_goes_wrong_is_in_the_span_by_its_code(autojump_clock: MockClock) -> None:
    async with traced_service(limits={"max_credit_wait_ms": 500, "max_waiting_per_identity": 1}) as traced:
        up = traced.up
        up.world.next_plans.append(Plan(seconds=30, body=b"{}", breaks=Break.AFTER_DELIVERY))
        assert (await up.ask("POST", "/v2/models/chat/infer", data=b"{}")).status == 502
        call = traced.one("triton call")
        assert (call.status.status_code, told(call)["error.type"]) == (StatusCode.ERROR, "backend_connection_lost")
        assert (await up.ask("POST", "/v2/models/chat/infer", data=b"{}")).code == "credit_wait_timeout"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}").run)
            await trio.sleep(0.1)
            assert (await up.ask("POST", "/v2/models/chat/infer", data=b"{}")).code == "credit_queue_full"
            nursery.cancel_scope.cancel()
        waits = [span for span in traced.spans if span.name == "credit wait"]
        assert len(waits) == 3, "each wait has its end, with a credit or without; who is refused has not waited"
        servers = [span for span in traced.spans if span.name == SERVER_NAME]
        assert [told(span).get("http.response.status_code") for span in servers] == [502, 503, 503, None]


async def test_probes_are_no_spans_and_routes_have_few_names(autojump_clock: MockClock) -> None:
    async with traced_service() as traced:
        for path in ("/health", "/healthz", "/readyz", "/metrics", "/nothing/at/all", "/session/x/status"):
            await traced.up.ask("GET", path)
        for path in ("/session/x/prompt", "/session/x/generate"):
            await traced.up.ask("PUT", path)
    assert [span.name for span in traced.spans] == ["GET", "GET /session/<session_id>/status", "PUT", "PUT"]


async def test_untraced_the_callers_context_passes_unchanged(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(body=b"{}"))
        await up.ask("POST", "/v2/models/chat/infer", data=b"{}", headers={"traceparent": CALLERS})
        assert dict(up.world.wires[0].headers)["traceparent"] == CALLERS
        identity = next(iter(up.governor.identities.values()))
        assert identity._tracer is None


def test_nothing_of_opentelemetry_is_imported_where_nobody_wants_it() -> None:
    code = (
        "import sys, api.main, api.telemetry\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "off = {'OTEL_SDK_DISABLED': 'true', 'OTEL_EXPORTER_OTLP_ENDPOINT': 'x'}\n"
        "assert api.telemetry.telemetry(off).tracer is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "assert api.telemetry.telemetry({}).tracer is None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_missing_package_is_said_and_stops_nothing() -> None:
    code = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: None\n"
        "import api.telemetry\n"
        "assert api.telemetry.telemetry({'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://127.0.0.1:1'}).tracer is None\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert "tracing_unavailable" in done.stdout
    assert "triton-governor[otel]" in done.stdout


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Takes traces by OTLP over HTTP, as a collector does."""
    taken: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server calls
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            taken.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", taken
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_environment_alone_sends_traces_to_a_collector(
    collector: tuple[str, list[ExportTraceServiceRequest]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, taken = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    traced = telemetry({"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    assert traced.tracer is not None
    traced.tracer.prompt("s", "p").settled("completed", None)
    traced.close()
    [resource] = [spans for request in taken for spans in request.resource_spans]
    names = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert names["service.name"] == "triton-governor"
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["prompt"]
