"""Triton's routes under `/v2`."""

from __future__ import annotations

from typing import Final

from .operations import JSON, Answer, Operation, Parameter
from .shapes import ref, text

_TAG: Final = "inference"
_MODEL: Final = Parameter("model", "path", text(), "The model's public name, or Triton's own where only one has it.")
_VERSION: Final = Parameter("model_version", "path", text(), "Triton's version of the model.")
_OF_A_CALL: Final = (
    "unknown_model", "credit_queue_full", "credit_wait_timeout", "daemon_draining", "backend_unavailable",
    "backend_timeout", "backend_connection_lost", "backend_protocol_error",
)  # fmt: skip
_KINDS: Final = {
    "infer": "Triton's inference",
    "generate": "Triton's text generation",
    "generate_stream": "Triton's text generation, as server-sent events",
}


def _call(kind: str, *, versioned: bool) -> Operation:
    version = "/versions/{model_version}" if versioned else ""
    return Operation(
        "POST",
        f"/v2/models/{{model}}{version}/{kind}",
        kind + ("OfVersion" if versioned else ""),
        _TAG,
        f"{_KINDS[kind]}, passed through under a slot credit",
        (Answer(200, "Triton's answer, unchanged.", {}, "*/*"),),
        (_MODEL, *((_VERSION,) if versioned else ())),
        raw_body=("*/*", {}),
        errors=_OF_A_CALL,
        passes_on=True,
        description="Bodies pass unchanged in both directions, and so does every status of Triton's.",
    )


def _ready(*, versioned: bool) -> Operation:
    version = "/versions/{model_version}" if versioned else ""
    return Operation(
        "GET",
        f"/v2/models/{{model}}{version}/ready",
        "modelReady" + ("OfVersion" if versioned else ""),
        _TAG,
        "Whether a model can be used, from the last health check",
        (Answer(200, "It can."),),
        (_MODEL, *((_VERSION,) if versioned else ())),
        errors=("unknown_model", "backend_unavailable"),
    )


OPERATIONS: Final = (
    *(_call(kind, versioned=versioned) for kind in _KINDS for versioned in (False, True)),
    _ready(versioned=False),
    _ready(versioned=True),
    Operation("GET", "/v2/health/live", "live", _TAG, "As Triton's", (Answer(200, "The process answers."),)),
    Operation(
        "GET",
        "/v2/health/ready",
        "ready",
        _TAG,
        "As Triton's",
        (Answer(200, "A model can be used."), Answer(503, "None can.", ref("NotReady"), JSON)),
    ),
)
