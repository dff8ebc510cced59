"""Traces by OpenTelemetry, where it is installed (`pip install triton-governor[otel]`) and wanted.

    POST /session/:id/prompt              the request that handed the prompt in
    └── prompt                            from admission to its end for the caller
        ├── credit wait                   until a slot came free
        └── triton call                   until Triton's answer, whoever still waits for it
            └── (Triton's own spans)      it gets `traceparent`

A call of `/v2` has the last two directly below its request. A `traceparent` that a caller sends continues; Triton gets
that of the call. Only this module imports OpenTelemetry, and only where tracing is on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from quart import request

from .prompt_route import rule_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, HTTPScope, Scope

    from governor.errors import GovernorError
    from governor.triton.wire import WireRequest

    from .context import GovernorApp

_W3C: Final = TraceContextTextMapPropagator()
_CONTEXT_FIELDS: Final = frozenset({"traceparent", "tracestate"})
_UNTRACED: Final = ("/health", "/healthz", "/readyz", "/metrics")
_CALLS: Final = frozenset({"infer", "generate", "generate_stream"})


class OpenTelemetryTracer:
    """Fills `governor.tracing.Tracer`.

    Args:
        provider: where the spans go.
    """

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("triton-governor")

    def call(self, identity: str) -> _CallSpans:
        """See `Tracer`."""
        return _CallSpans(self._tracer, identity)

    def prompt(self, session_id: str, prompt_id: str) -> _PromptSpan:
        """See `Tracer`."""
        told = {"governor.session": session_id, "governor.prompt": prompt_id}
        return _PromptSpan(self._tracer.start_span("prompt", attributes=told))

    def instrument(self, app: GovernorApp) -> None:
        """Has each request to the application, but probes and event streams, be a span."""

        def name_span() -> None:
            rule = request.url_rule
            if rule is not None:
                span = trace.get_current_span()
                span.update_name(f"{request.method} {rule.rule}")
                span.set_attribute("http.route", rule.rule)

        app.before_request(name_span)
        app.asgi_app = _TracedRequests(app.asgi_app, self._tracer)  # type: ignore[method-assign]  # as in `create_app`


class _CallSpans:
    """See `CallSpans`."""

    def __init__(self, tracer: trace.Tracer, identity: str) -> None:
        self._tracer = tracer
        self._context = otel_context.get_current()
        self._told = {"governor.identity": identity}
        self._span = tracer.start_span("credit wait", self._context, attributes=self._told)

    def granted(self, claim_id: int) -> None:
        self._span.end()
        told: dict[str, str | int] = {**self._told, "governor.claim": claim_id}
        self._span = self._tracer.start_span("triton call", self._context, SpanKind.CLIENT, attributes=told)

    def request(self, wire: WireRequest) -> WireRequest:
        self._span.set_attributes({"http.request.method": wire.method, "url.path": wire.path.partition("?")[0]})
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(self._span, self._context))
        kept = (field for field in wire.headers if field[0].lower() not in _CONTEXT_FIELDS)
        return replace(wire, headers=(*kept, *carrier.items()))

    def answered(self, status: int) -> None:
        self._span.set_attribute("http.response.status_code", status)

    def left(self) -> None:
        self._span.add_event("caller left")

    def ended(self, error: GovernorError | None) -> None:
        _fail(self._span, error)
        self._span.end()


class _PromptSpan:
    """See `PromptSpan`."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def active(self) -> AbstractContextManager[object]:
        span: AbstractContextManager[object] = trace.use_span(
            self._span, record_exception=False, set_status_on_exception=False
        )
        return span

    def settled(self, outcome: str, error: GovernorError | None) -> None:
        self._span.set_attribute("governor.outcome", outcome)
        _fail(self._span, error)
        self._span.end()


def _fail(span: trace.Span, error: GovernorError | None) -> None:
    if error is not None:
        span.set_attribute("error.type", error.code)
        span.set_status(Status(StatusCode.ERROR, error.code))


class _TracedRequests:
    """ASGI layer around the guard: one span for each request, with the caller's as its parent."""

    def __init__(self, app: ASGIFramework, tracer: trace.Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http" or scope["path"] in _UNTRACED or scope["path"].endswith("/events"):
            await self._app(scope, receive, send)
            return
        parent = _W3C.extract({name.decode(): value.decode("latin-1") for name, value in scope["headers"]})
        span = self._tracer.start_span(_name(scope), parent, SpanKind.SERVER, attributes=_attributes(scope))

        async def watched(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= 500:
                    span.set_status(Status(StatusCode.ERROR))
            await send(message)

        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            await self._app(scope, receive, watched)


def _name(scope: HTTPScope) -> str:
    """As few names as there are routes; `instrument` gives those of Quart's routes."""
    rule = rule_of(scope)
    if rule is not None:
        return f"{scope['method']} {rule}"
    head, _, kind = scope["path"].rpartition("/")
    if head.startswith("/v2/models/") and kind in _CALLS:
        return f"{scope['method']} /v2/models/<model>/{kind}"
    return scope["method"]


def _attributes(scope: HTTPScope) -> dict[str, Any]:
    client = scope["client"]
    told = {"http.request.method": scope["method"], "url.path": scope["path"]}
    rule = rule_of(scope)
    if rule is not None:
        told["http.route"] = rule
    return told | ({"client.address": client[0]} if client is not None else {})
