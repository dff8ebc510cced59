"""What a route of the document consists of, and what all of them share.

A route is described by an `Operation`. What every route may answer (a foreign origin, a missing token, too many
requests at once) is not written there: `Operation.codes` adds it, from the same tables that the gate, the guard and the
rate limiter use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from api.auth import METRICS_PATH, OPEN_PATHS
from api.guard import HEALTH_PATHS, OPERATORS_BELOW
from api.rate import tier_of

from .failures import BELOW
from .shapes import text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .shapes import Schema

JSON: Final = "application/json"
Place = Literal["path", "query", "header"]

_ALWAYS: Final = (*BELOW, "invalid_request", "invalid_content_length", "invalid_host", "origin_not_allowed",
    "body_too_large", "internal_error", "governor_not_running")  # fmt: skip
_OF_A_SESSION: Final = ("session_not_found", "daemon_draining")
_OF_A_JSON_BODY: Final = ("invalid_json", "unsupported_content_encoding")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the path or the query, or a header of the request.

    Attributes:
        name: as it is sent.
        place: where.
        schema: what it may be.
        meaning: for whoever sends it.
    """

    name: str
    place: Place
    schema: Schema
    meaning: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer.

    Attributes:
        status: its status.
        meaning: when it is given.
        schema: its body; None for no body. Of an event stream, the `data` of one frame.
        content_type: of the body.
        headers: names and meanings of header fields that it always has.
    """

    status: int
    meaning: str
    schema: Schema | None = None
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    Attributes:
        method: upper case. What is described for GET holds for HEAD, without the body.
        path: with `{parameters}`.
        id: name of the operation, for generated clients.
        tag: the group it is shown in.
        summary: what it does, in one line.
        answers: the good ones.
        parameters: besides the client id.
        body: the request's JSON object; None if nothing is read.
        raw_body: content type and schema of a body that is passed on as it is.
        errors: codes that are this route's own.
        client_id: it looks at `X-Qwen-Client-Id`.
        description: more, where the summary does not say it.
        token: the scheme of its token; None for a public route.
        passes_on: whatever a backend answers comes as well.
    """

    method: str
    path: str
    id: str
    tag: str
    summary: str
    answers: tuple[Answer, ...]
    parameters: tuple[Parameter, ...] = ()
    body: Schema | None = None
    raw_body: tuple[str, Schema] | None = None
    errors: tuple[str, ...] = ()
    client_id: bool = False
    description: str = ""
    token: str | None = "bearer"  # noqa: S105  # the name of a scheme
    passes_on: bool = False

    @property
    def is_public(self) -> bool:
        """It needs no token, whatever the configuration says."""
        return self.token is None or self.path in OPEN_PATHS

    @property
    def may_be_public(self) -> bool:
        """It needs no token if the configuration says so."""
        return self.path == METRICS_PATH

    def codes(self) -> list[str]:
        """Every error code that it may answer with."""
        codes = [*self.errors, *_ALWAYS]
        if any(parameter.place == "path" for parameter in self.parameters):
            codes.append("not_found")  # a slash in it, percent-encoded or not, makes another path
        if SESSION_ID in self.parameters:
            codes += _OF_A_SESSION
        if not self.is_public:
            codes.append("unauthorized")
        if self.path not in HEALTH_PATHS and not self.path.startswith(OPERATORS_BELOW):
            codes.append("too_many_requests_in_flight")
        if self.body is not None:
            codes += _OF_A_JSON_BODY
        limited = tier_of(self.method, self.path) is not None
        if limited:
            codes.append("rate_limit_exceeded")
        # The rate limiter counts by client id, so it looks at the header as well.
        if self.client_id or limited:
            codes.append("invalid_client_id")
        return list(dict.fromkeys(codes))


CLIENT_ID: Final = Parameter(
    "X-Qwen-Client-Id",
    "header",
    text(pattern="^[A-Za-z0-9._:-]{1,128}$"),
    "The id that the session gave this client; without it the caller is anonymous and may do the same.",
)
SESSION_ID: Final = Parameter("session_id", "path", text(), "Id of the session.")
PROMPT_ID: Final = Parameter("prompt_id", "path", text(), "Id of the prompt.")
