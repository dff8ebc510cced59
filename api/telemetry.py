"""Whether there is tracing, as OpenTelemetry's own environment variables say; does not need OpenTelemetry."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .tracing import OpenTelemetryTracer

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SERVICE_NAME: Final = "triton-governor"


class Telemetry:
    """The tracer of one process, if there is one.

    Attributes:
        tracer: None where nothing is traced.
    """

    def __init__(self, tracer: OpenTelemetryTracer | None, flush: Callable[[], None]) -> None:
        self.tracer = tracer
        self._flush = flush

    def close(self) -> None:
        """Sends what has not been sent yet; takes no longer than the exporter's timeout. Blocks."""
        self._flush()


def _nothing() -> None:
    pass


def telemetry(environ: Mapping[str, str]) -> Telemetry:
    """Traces go where `OTEL_EXPORTER_OTLP_ENDPOINT` says, or to a provider that `opentelemetry-instrument` has set up.

    Everything else (headers, timeout, sampling, resource) is read by OpenTelemetry's SDK from its own variables.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Telemetry(None, _nothing)
    wanted = any(environ.get(name) for name in _ENDPOINTS)
    if find_spec("opentelemetry") is None:
        if wanted:
            _log.warning("tracing_unavailable", missing="opentelemetry", advice="pip install triton-governor[otel]")
        return Telemetry(None, _nothing)
    return _exporting(environ) if wanted else _instrumented()


def _instrumented() -> Telemetry:
    """Somebody else may have set a provider up before this process began to serve."""
    from opentelemetry import trace  # noqa: PLC0415  # optional

    from .tracing import OpenTelemetryTracer  # noqa: PLC0415  # optional

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return Telemetry(None, _nothing)
    return Telemetry(OpenTelemetryTracer(provider), _nothing)


def _exporting(environ: Mapping[str, str]) -> Telemetry:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  # optional
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # optional
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  # optional
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415  # optional
    except ImportError as missing:
        _log.warning("tracing_unavailable", missing=missing.name, advice="pip install triton-governor[otel]")
        return Telemetry(None, _nothing)
    from .tracing import OpenTelemetryTracer  # noqa: PLC0415  # optional

    named = {} if environ.get("OTEL_SERVICE_NAME") else {"service.name": SERVICE_NAME}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _log.info("tracing", endpoint=next(environ[name] for name in _ENDPOINTS if environ.get(name)))
    return Telemetry(OpenTelemetryTracer(provider), provider.shutdown)
