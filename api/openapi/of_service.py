"""The routes that tell of the governor itself."""

from __future__ import annotations

from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST

from .operations import Answer, Operation, Parameter
from .shapes import const, record, ref, table, text

_TAG: Final = "service"

OPERATIONS: Final = (
    Operation(
        "GET",
        "/health",
        "health",
        _TAG,
        "The process answers",
        (Answer(200, "It does, whatever the backends do.", ref("Health")),),
        (Parameter("deep", "query", text(), "`1` or `true`: also how much is going on."),),
    ),
    Operation(
        "GET",
        "/healthz",
        "healthz",
        _TAG,
        "The process answers, for orchestrators",
        (Answer(200, "It does.", record({"status": const("ok")})),),
    ),
    Operation(
        "GET",
        "/readyz",
        "readyz",
        _TAG,
        "Whether a model can be used, and why not",
        (
            Answer(200, "At least one model can be used.", ref("Readiness")),
            Answer(503, "None can, or the governor is shutting down.", ref("Readiness")),
        ),
    ),
    Operation(
        "GET",
        "/metrics",
        "metrics",
        _TAG,
        "Prometheus' text format",
        (Answer(200, "One scrape.", text(), CONTENT_TYPE_LATEST),),
    ),
    Operation(
        "GET",
        "/capabilities",
        "capabilities",
        _TAG,
        "Models, limits, features",
        (Answer(200, "What a client may rely on.", ref("Capabilities")),),
    ),
    Operation(
        "GET",
        "/daemon/status",
        "daemonStatus",
        _TAG,
        "What is going on",
        (Answer(200, "The report.", ref("DaemonStatus")),),
        (Parameter("detail", "query", text(), "`full`: with every session."),),
    ),
    Operation(
        "GET",
        "/openapi.json",
        "openapi",
        _TAG,
        "This document",
        (Answer(200, "OpenAPI 3.1.", table({})),),
    ),
)
