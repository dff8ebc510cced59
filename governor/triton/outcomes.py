"""What an answered call adds to the end counter, as an interval (D5, E5).

`most` frees credits: were it ever too low, a credit could be freed while its work executes. So nothing that a model
can say makes an answer "not counted". A model's error carries any text and, through Triton's error codes, any of
Triton's statuses: a python model's `TritonError(text, INVALID_ARG)` is answered 400 and counted (measured on 2.51).
Only the answer's framing tells where in Triton it was made (read in the sources of 2.24 to 2.71, measured on 2.51):

    call              refused before it was queued          error out of the scheduler or the model
    infer             Content-Type: application/json        no content type set (text/plain)
    generate          application/json, Content-Length      application/json, chunked
    generate_stream   application/json                      text/event-stream

A few early refusals of `infer` (unknown model, unknown version, 501 for a decoupled model, a wrong
Inference-Header-Content-Length) look like the other kind; they get the interval. A proxy may change framing and add
errors of its own, so a known text is needed besides.

The unit is the model's own measure of ends (`governor.core.counting`): S + F, or 2S + F for an ensemble.

Measured on 2.51 (S and F, +1 unless noted):

    raised in execute(): F              TritonError: S (F up to 2.44)     queue full: nothing
    model process dead: F               queue timeout: F (nothing up to 2.47)
    ensemble member fails: F +2 (F +1 in 2.41 to 2.47)                    generate, not exactly one response: S or F
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from governor.core.counting import ENSEMBLE, PLAIN
from governor.triton.jsons import parse_json

if TYPE_CHECKING:
    from governor.triton.wire import Headers

ERROR_BODY_MAX: Final = 64 * 1024
"""Of an error's body so much is kept at least, to see whose it is."""


class CallKind(enum.Enum):
    """Which of Triton's endpoints a call uses; the value is the last segment of its path."""

    INFER = "infer"
    GENERATE = "generate"
    GENERATE_STREAM = "generate_stream"


@dataclass(frozen=True, slots=True)
class Counted:
    """An answered call adds at least `least` and at most `most` to its model's measure of ends."""

    least: int
    most: int

    def __post_init__(self) -> None:
        assert 0 <= self.least <= self.most


_NOTHING = Counted(0, 0)
_PLAIN_SUCCESS = Counted(PLAIN.success_weight, PLAIN.success_weight)
_QUEUE_TIMEOUT = "Request timeout expired"
_REFUSED_EARLY = re.compile(
    r"(\[request id: [^\]]*\] )?("
    r"failed to parse the request JSON|Unable to parse '|The schema can not convert|Converting keyword: "
    r"|parameter '|parameter keys starting with |Unsupported content-encoding|Raw request must only have 1 input "
    r"|expected \d+ inputs but got |invalid datatype for input |unexpected (shape|inference|size|total byte size) "
    r"|inference (input|request) |Request for unknown model: "
    r"|Exceeds maximum queue size$|Server is stopping|Server not ready"
    r")"
)
_TRITON_STATUSES = frozenset({400, 404, 405, 409, 413, 415, 499, 500, 501, 503})


def counted(
    status: int,
    message: str,
    *,
    kind: CallKind,
    ensemble: bool = False,
    server_version: str | None = None,
    headers: Headers = (),
) -> Counted:
    """What a call with a complete answer added to the end counter, or will.

    Args:
        status: HTTP status of the answer.
        message: text of its `error` member, or `""`.
        kind: how the model was called.
        ensemble: the model is an ensemble (E12): the result is in units of 2S + F.
        server_version: Triton's version such as `2.51.0`; None when unknown.
        headers: the answer's header fields; without them nothing counts as refused early.
    """
    if status == 200 and not message and not ensemble:
        return _PLAIN_SUCCESS
    rule = ENSEMBLE if ensemble else PLAIN
    if status == 200:
        # An `error` body under 200 came from `generate` with other than one response, and may be counted as F.
        return Counted(1 if message else rule.success_weight, rule.success_weight)
    if _refused_early(message, kind, headers):
        return _NOTHING
    if not ensemble and _executed(status, message, kind, headers, server_version):
        return Counted(1, 1)
    return Counted(0, rule.most)


def speaks_for_triton(status: int, body: bytes) -> bool:
    """Whether an answer can have come from Triton itself and not from a proxy before it, and so ends its call (E1).

    A proxy in between answers 502, 503 or 504 while the call goes on behind it. Triton's own errors are JSON
    objects (or one SSE frame) with an `error` text.

    Args:
        status: of the answer.
        body: of an error; of one of `ERROR_BODY_MAX` bytes or more, the beginning.
    """
    if status == 200:
        return True
    if len(body) >= ERROR_BODY_MAX:
        # Cut off, so no longer JSON. Triton repeats what it does not understand; no proxy is so talkative.
        return body.lstrip().removeprefix(b"data:").lstrip().startswith(b'{"error"')
    if status not in _TRITON_STATUSES:
        return False
    try:
        value = parse_json(body.strip().removeprefix(b"data:"), lenient_text=True)
    except ValueError:
        return False
    return isinstance(value, dict) and isinstance(value.get("error"), str)


def _refused_early(message: str, kind: CallKind, headers: Headers) -> bool:
    """Framing and text both say that the call never reached the scheduler."""
    if _REFUSED_EARLY.match(message) is None or not _header(headers, "content-type").startswith("application/json"):
        return False
    # Only an answer that was ready before anything ran has its length in front.
    return kind is not CallKind.GENERATE or (
        _header(headers, "content-length") != "" and _header(headers, "transfer-encoding") == ""
    )


def _executed(status: int, message: str, kind: CallKind, headers: Headers, server_version: str | None) -> bool:
    """The error came out of the scheduler or the model, by a way that always counts."""
    if message == _QUEUE_TIMEOUT:
        return _version(server_version) >= (2, 48)
    content_type = _header(headers, "content-type")
    if kind is CallKind.INFER:
        return status == 500 and content_type.startswith("text/plain")
    if kind is CallKind.GENERATE_STREAM:
        return content_type.startswith("text/event-stream")
    return _header(headers, "transfer-encoding") == "chunked"


def _header(headers: Headers, name: str) -> str:
    return next((value.strip().lower() for key, value in headers if key.lower() == name), "")


def _version(text: str | None) -> tuple[int, int]:
    """Major and minor version; (0, 0) when unknown."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})", text or "")
    return (int(match[1]), int(match[2])) if match else (0, 0)
