"""The OpenAPI 3.1 document that the service serves at `/openapi.json` (A9).

A route is described by an `Operation` in one of the `of_*` modules. To add a group of routes, write such a module and
name its `OPERATIONS` in `OPERATIONS` here, and its tag in `TAGS`; new error codes go into `failures`. The tests compare
the routes of the application with this list, and every answer that they get with what is promised here.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from . import of_acp, of_admin, of_inference, of_prompts, of_service, of_sessions, of_triton, of_ui
from .build import build
from .failures import FAILURES
from .operations import Answer, Operation, Parameter

if TYPE_CHECKING:
    from .shapes import Schema

__all__ = ["FAILURES", "OPERATIONS", "TAGS", "Answer", "Operation", "Parameter", "document", "document_text"]

TAGS: Final = {
    "sessions": "Sessions: ordered conversations with a model.",
    "prompts": "Prompts, their queue, and what is told of them.",
    "inference": "Triton's own inference routes, each call under a slot credit.",
    "triton": "Triton's own other routes.",
    "acp": "The same sessions by JSON-RPC, as ACP has them.",
    "service": "The governor itself.",
    "admin": "What operators see and do, behind a token of their own.",
    "ui": "The operators' page.",
}
OPERATIONS: Final[tuple[Operation, ...]] = (
    *of_sessions.OPERATIONS,
    *of_prompts.OPERATIONS,
    *of_inference.OPERATIONS,
    *of_triton.OPERATIONS,
    *of_acp.OPERATIONS,
    *of_service.OPERATIONS,
    *of_admin.OPERATIONS,
    *of_ui.OPERATIONS,
)


def document(*, with_token: bool) -> Schema:
    """The whole document.

    Args:
        with_token: of a governor that asks for a token.
    """
    return build(OPERATIONS, version=version("triton-governor"), tags=TAGS, with_token=with_token)


@cache
def document_text(*, with_token: bool) -> str:
    """The same as JSON."""
    return json.dumps(document(with_token=with_token))
