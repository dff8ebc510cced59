"""Triton's routes under `/v2` that are no inference."""

from __future__ import annotations

from typing import Final

from .of_inference import MODEL, VERSION
from .operations import JSON, Answer, Operation, Parameter
from .shapes import array, record, ref, table, text

_TAG: Final = "triton"
_OF_A_QUESTION: Final = (
    "read_queue_full", "backend_unavailable", "backend_timeout", "backend_connection_lost", "backend_protocol_error",
)  # fmt: skip
_MEMORY: Final = Parameter("memory", "path", text(), "`systemsharedmemory` or `cudasharedmemory`.")
_REGION: Final = Parameter("region", "path", text(), "Name of the region.")


def _about_model(what: str, id_: str, summary: str, *, versioned: bool) -> Operation:
    version = "/versions/{model_version}" if versioned else ""
    good = Answer(200, "Triton's answer.", table({}) if what != "/ready" else None)
    return Operation(
        "GET",
        f"/v2/models/{{model}}{version}{what}",
        id_ + ("OfVersion" if versioned else ""),
        _TAG,
        summary,
        (good,),
        (MODEL, *((VERSION,) if versioned else ())),
        errors=("unknown_model", *_OF_A_QUESTION),
        passes_on=True,
    )


def _of_operators(method: str, path: str, id_: str, summary: str, *parameters: Parameter) -> Operation:
    server_wide = () if MODEL in parameters else ("several_backends",)
    of_model = ("unknown_model",) if MODEL in parameters else ()
    tracing = ("trace_log_frequency_reserved", "invalid_json") if "trace" in path and method == "POST" else ()
    return Operation(
        method,
        path,
        id_,
        _TAG,
        summary,
        (Answer(200, "Triton's answer.", {}, "*/*"),),
        parameters,
        raw_body=("*/*", {}) if method == "POST" else None,
        errors=("operators_only", "audit_unavailable", *server_wide, *of_model, *tracing, *_OF_A_QUESTION),
        token="admin",  # noqa: S106  # the name of a scheme
        passes_on=True,
    )


OPERATIONS: Final = (
    Operation("GET", "/v2/health/live", "live", _TAG, "As Triton's", (Answer(200, "The process answers."),)),
    Operation(
        "GET",
        "/v2/health/ready",
        "ready",
        _TAG,
        "As Triton's",
        (Answer(200, "A model can be used."), Answer(503, "None can.", ref("NotReady"), JSON)),
    ),
    Operation(
        "GET",
        "/v2",
        "server",
        _TAG,
        "Name, version and extensions of the server",
        (Answer(200, "Triton's own, or what all servers have in common.", table({})),),
        errors=_OF_A_QUESTION,
        passes_on=True,
    ),
    *(
        _about_model(*about, versioned=versioned)
        for about in (
            ("", "modelMetadata", "Inputs, outputs and versions of a model"),
            ("/config", "modelConfig", "Configuration of a model"),
            ("/ready", "modelReady", "Whether a model can serve"),
            ("/stats", "modelStatistics", "Statistics of a model"),
        )
        for versioned in (False, True)
    ),
    Operation(
        "GET",
        "/v2/models/stats",
        "statistics",
        _TAG,
        "Statistics of all models",
        (Answer(200, "Those of Triton.", record({"model_stats": array(table({}))})),),
        errors=_OF_A_QUESTION,
        passes_on=True,
    ),
    Operation(
        "POST",
        "/v2/repository/index",
        "repositoryIndex",
        _TAG,
        "Which models there are",
        (Answer(200, "Those that are configured.", array(table({}))),),
        raw_body=("*/*", {}),
        errors=_OF_A_QUESTION,
        passes_on=True,
    ),
    _of_operators("POST", "/v2/repository/models/{model}/load", "loadModel", "Load a model", MODEL),
    _of_operators("POST", "/v2/repository/models/{model}/unload", "unloadModel", "Unload a model", MODEL),
    *(
        _of_operators(method, path, id_, summary, *parameters)
        for path, parameters, ids in (
            ("/v2/models/{model}/trace/setting", (MODEL,), ("traceSettingsOfModel", "setTraceSettingsOfModel")),
            ("/v2/trace/setting", (), ("traceSettings", "setTraceSettings")),
            ("/v2/logging", (), ("logSettings", "setLogSettings")),
        )
        for method, id_, summary in (("GET", ids[0], "Settings"), ("POST", ids[1], "Change settings"))
    ),
    _of_operators("GET", "/v2/{memory}/status", "sharedMemory", "Registered regions", _MEMORY),
    *(
        _of_operators(method, f"/v2/{{memory}}/region/{{region}}/{act}", id_, summary, _MEMORY, _REGION)
        for method, act, id_, summary in (
            ("GET", "status", "sharedMemoryRegion", "One region"),
            ("POST", "register", "registerSharedMemory", "Register a region"),
            ("POST", "unregister", "unregisterSharedMemoryRegion", "Forget a region"),
        )
    ),
    _of_operators("POST", "/v2/{memory}/unregister", "unregisterSharedMemory", "Forget all regions", _MEMORY),
)
