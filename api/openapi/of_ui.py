"""The operators' page: `/ui`."""

from __future__ import annotations

from typing import Final

from .operations import Answer, Operation, Parameter
from .shapes import text

_TAG: Final = "ui"
# Without a token of operators there is no such route, and then the token of callers is asked for first.
_CLOSED: Final = ("not_found", "unauthorized")
_UNCHANGED: Final = Answer(304, "It is as `If-None-Match` has it.")


OPERATIONS: Final = (
    Operation(
        "GET",
        "/ui",
        "ui",
        _TAG,
        "The operators' page",
        (Answer(200, "The page.", text(), "text/html"), _UNCHANGED),
        errors=_CLOSED,
        token=None,
    ),
    Operation(
        "GET",
        "/ui/",
        "uiFolder",
        _TAG,
        "To the operators' page",
        (Answer(308, "It is at `/ui`.", headers={"Location": "Where it is."}),),
        errors=_CLOSED,
        token=None,
    ),
    Operation(
        "GET",
        "/ui/{asset}",
        "uiFile",
        _TAG,
        "A file of the operators' page",
        (Answer(200, "The file.", {}, "*/*"), _UNCHANGED),
        (Parameter("asset", "path", text(), "Its name."),),
        errors=_CLOSED,
        token=None,
    ),
)
