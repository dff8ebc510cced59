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
_CLOSED: Final = "Closed: what could harm other callers is for operators only"


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


def _closed(method: str, path: str, id_: str, *parameters: Parameter) -> Operation:
    return Operation(method, path, id_, _TAG, _CLOSED, (), parameters, errors=("operators_only",))


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
    _closed("POST", "/v2/repository/models/{model}/load", "loadModel", MODEL),
    _closed("POST", "/v2/repository/models/{model}/unload", "unloadModel", MODEL),
    _closed("GET", "/v2/models/{model}/trace/setting", "traceSettingsOfModel", MODEL),
    _closed("POST", "/v2/models/{model}/trace/setting", "setTraceSettingsOfModel", MODEL),
    _closed("GET", "/v2/trace/setting", "traceSettings"),
    _closed("POST", "/v2/trace/setting", "setTraceSettings"),
    _closed("GET", "/v2/logging", "logSettings"),
    _closed("POST", "/v2/logging", "setLogSettings"),
    _closed("GET", "/v2/{memory}/status", "sharedMemory", _MEMORY),
    _closed("GET", "/v2/{memory}/region/{region}/status", "sharedMemoryRegion", _MEMORY, _REGION),
    _closed("POST", "/v2/{memory}/region/{region}/register", "registerSharedMemory", _MEMORY, _REGION),
    _closed("POST", "/v2/{memory}/region/{region}/unregister", "unregisterSharedMemoryRegion", _MEMORY, _REGION),
    _closed("POST", "/v2/{memory}/unregister", "unregisterSharedMemory", _MEMORY),
)
