"""Triton's inference under `/v2`."""

from __future__ import annotations

from typing import Final

from .operations import Answer, Operation, Parameter
from .shapes import text

_TAG: Final = "inference"
MODEL: Final = Parameter("model", "path", text(), "The model's public name, or Triton's own where only one has it.")
VERSION: Final = Parameter("model_version", "path", text(), "Triton's version of the model.")
_TIMEOUT: Final = Parameter(
    "Triton-Timeout",
    "header",
    text(pattern="^[0-9]{1,18}$"),
    "Longest wait for a slot in microseconds; 0 and none leave it to the configuration.",
)
_OF_A_CALL: Final = (
    "unknown_model", "credit_queue_full", "credit_wait_timeout", "daemon_draining", "backend_unavailable",
    "backend_timeout", "backend_connection_lost", "backend_protocol_error", "invalid_inference_request",
    "invalid_tensor_data", "model_not_served", "decoupled_model", "invalid_timeout", "invalid_encoding",
    "too_many_body_bytes",
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
        (MODEL, *((VERSION,) if versioned else ()), _TIMEOUT),
        raw_body=("*/*", {}),
        errors=_OF_A_CALL,
        passes_on=True,
        description="Bodies pass unchanged in both directions, and so does every status of Triton's.",
    )


OPERATIONS: Final = tuple(_call(kind, versioned=versioned) for kind in _KINDS for versioned in (False, True))
