"""Every error code that an answer can have, as the document shows it: status, meaning, further fields.

Codes, statuses and waits are those of the error classes; of a class that is narrowed where it is raised
(`InvalidRequestError`), they are written here, and the tests hold them against the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from api import errors as own
from api.acp import errors as acp
from api.guard import TooManyRequestsInFlightError
from api.hardened import refusals
from api.ownership import IdentityOwnedError, OwnershipError
from api.rate import RateLimitError
from api.v2.bodies import BodyBytesError
from api.v2.control import OperatorsOnlyError
from governor import errors as governor
from governor.modelcontrol import SeveralBackendsError
from governor.reads import ReadQueueFullError
from governor.reload import ReloadNeedsRestartError, ReloadNotPossibleError
from governor.requests import DecoupledModelError, NotServedError, RequestRefusedError, TensorDataError

from .shapes import array, const, count, one_of, record, text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.errors import GovernorError

    from .shapes import Schema


@dataclass(frozen=True, slots=True)
class Failure:
    """One error code.

    Attributes:
        code: stable.
        status: of the answer.
        meaning: one sentence.
        fields: what the body has besides `error` and `code`.
        retry_after: the answer says when to come again.
        optional: of these fields, those that may be missing.
    """

    code: str
    status: int
    meaning: str
    fields: tuple[tuple[str, Schema], ...] = ()
    retry_after: bool = False
    optional: frozenset[str] = frozenset()

    @property
    def schema(self) -> Schema:
        """The body."""
        told: dict[str, Schema] = {
            "error": text("What was received, expected, and what to do."),
            "code": const(self.code),
        }
        needed = {name: schema for name, schema in self.fields if name not in self.optional}
        rest = {name: schema for name, schema in self.fields if name in self.optional}
        return record({**told, **needed}, rest, self.meaning)


def _of(kind: type[GovernorError], *, optional: Iterable[str] = (), **fields: Schema) -> Failure:
    meaning = (kind.__doc__ or "").strip().partition("\n\n")[0].replace("\n    ", " ")
    return Failure(
        kind.code,
        kind.status,
        meaning,
        tuple(fields.items()),
        retry_after=kind.retry_after_s is not None or kind is RateLimitError,
        optional=frozenset(optional),
    )


def _invalid(code: str, meaning: str, *, optional: Iterable[str] = (), **fields: Schema) -> Failure:
    return Failure(code, 400, meaning, tuple(fields.items()), optional=frozenset(optional))


def _refusal(refusal: refusals.Refusal) -> Failure:
    return Failure(refusal.code, refusal.status, refusal.message)


_SESSION: Final = text("Id of the session.")
_MODEL: Final = text("Name of the model.")

_ALL: Final = (
    # Of the request as such
    _refusal(refusals.MALFORMED),
    _refusal(refusals.BAD_TARGET),
    _refusal(refusals.NO_CONNECT),
    _refusal(refusals.NO_WEBSOCKET),
    _refusal(refusals.BODY_TOO_SLOW),
    _refusal(refusals.HEAD_TOO_LARGE),
    _refusal(refusals.NO_CODING),
    _refusal(refusals.UNKNOWN_METHOD),
    _refusal(refusals.WRONG_HOST),
    _refusal(refusals.TOO_MANY_CONNECTIONS),
    _refusal(refusals.HTTP_ONE_ONLY),
    _invalid("invalid_request", "A path, query or version that cannot be read or passed on."),
    _invalid("invalid_content_length", "`Content-Length` is no number."),
    _invalid("invalid_json", "The body says that it is JSON and is not."),
    _of(own.UnauthorizedError),
    _of(
        own.InvalidHostError,
        received=array(text(), "What came as `Host`."),
        expected=array(text(), "What may come."),
    ),
    _of(own.ForeignOriginError),
    _of(own.RouteNotFoundError),
    _of(own.WrongMethodError),
    _of(own.UnsupportedEncodingError),
    _of(governor.BodyTooLargeError, limit=count("Bytes that are allowed.")),
    _of(RateLimitError, tier=one_of("prompt", "mutation", "read"), retryAfterMs=count()),
    _of(TooManyRequestsInFlightError, limit=count()),
    Failure("governor_not_running", 503, "The governor broke down, or has not started yet.", retry_after=True),
    _of(governor.GovernorError),
    # Of sessions
    _of(governor.SessionNotFoundError, sessionId=_SESSION),
    Failure("session_closing", 404, "The session is being closed.", (("sessionId", _SESSION),)),
    _of(governor.SessionLimitError, limit=count(), scope=const("total")),
    _of(own.SessionIdConflictError, sessionId=_SESSION, conflict=const("live"), liveWorkspaceCwd=text()),
    _of(governor.UnknownModelError, model=_MODEL, models=array(text(), "Those that exist.")),
    _of(governor.DrainingError, errorKind=const("daemon_draining")),
    _of(governor.BranchWaitError, sessionId=_SESSION),
    _of(own.SubscriberLimitError, limit=count()),
    _invalid(
        "invalid_client_id",
        "`X-Qwen-Client-Id` is malformed, or none of this session's.",
        optional=("sessionId", "clientId"),
        sessionId=_SESSION,
        clientId=text(),
    ),
    _invalid("invalid_session_scope", "`sessionScope` is neither `single` nor `thread`."),
    _invalid("invalid_session_id", "`sessionId` is no UUID."),
    _invalid("invalid_cwd", "`cwd` is no absolute path."),
    _invalid("invalid_model_service_id", "`modelServiceId` is no string."),
    _invalid("invalid_model_id", "`modelId` is no name of a model."),
    _invalid("invalid_metadata", "`displayName` is no name.", field=const("displayName")),
    _invalid("invalid_cursor", "`cursor` is no `nextCursor`."),
    _invalid("invalid_max_queued", "`maxQueued` is not 16 to 2048."),
    _invalid("invalid_live_replay_mode", "`liveReplayMode` is neither `full` nor `summary`."),
    _invalid("invalid_transcript_limit", "`historyPageSize` is not 1 to 500.", maxLimit=count()),
    _invalid("invalid_compacted_replay_mode", "`compactedReplayMode` is neither `full` nor `summary`."),
    _invalid("branch_point_invalid", "`atRecordId`: one cannot branch in the past."),
    # Of prompts
    _of(governor.PromptQueueFullError, sessionId=_SESSION, limit=count(), pendingCount=count()),
    _of(own.PromptNotFoundError, sessionId=_SESSION, promptId=text()),
    _of(own.PromptTooLargeError, limit=count("UTF-8 bytes that are allowed."), size=count("UTF-8 bytes of this one.")),
    _invalid("invalid_event_detail_mode", "`eventDetailMode` is neither `full` nor `summary`."),
    _invalid("invalid_prompt", "`prompt` is no non-empty array of objects."),
    _invalid("unsupported_content_block", "A prompt holds something else than text."),
    _invalid("invalid_prompt_text", "A text block has no text that can be sent."),
    _invalid("invalid_deadline_ms", "`deadlineMs` is no positive whole number."),
    # Of the streams of ACP; what a message of it is refused with is JSON-RPC
    _of(acp.NotAcceptableError),
    _of(acp.NoConnectionIdError),
    _of(acp.UnknownConnectionError),
    _of(acp.SessionNotOwnedError, sessionId=_SESSION),
    # Of backends
    _of(governor.CreditQueueFullError, model=_MODEL, limit=count()),
    _of(governor.CreditWaitTimeoutError, model=_MODEL, waitedMs=count()),
    _of(governor.BackendUnavailableError),
    _of(governor.ConnectionLostError),
    _of(governor.BackendTimeoutError, optional=("model",), model=_MODEL, timeoutMs=count()),
    _of(RequestRefusedError),
    _of(TensorDataError),
    _of(NotServedError),
    _of(DecoupledModelError),
    _invalid("invalid_encoding", "The body is not compressed as its `Content-Encoding` says."),
    _invalid("invalid_timeout", "`Triton-Timeout` is no whole number of microseconds."),
    _of(BodyBytesError, limit=count("Bytes.")),
    _of(ReadQueueFullError),
    _of(OperatorsOnlyError),
    _of(SeveralBackendsError, backends=array(text())),
    _invalid("trace_log_frequency_reserved", "The governor keeps the backend's boot identity in this setting."),
    # Of operators
    _invalid("invalid_field", "A key of the body or the query is unknown, or its value cannot be."),
    _invalid("invalid_reason", "The act has no `reason`, or none that can be one."),
    _of(governor.UnknownIdentityError, identity=text()),
    _of(governor.UnknownClaimError, claimId=count()),
    _of(governor.ClaimOpenError, claimId=count(), state=text()),
    _of(governor.EpochChangedError, expectedEpoch=count(), epoch=count()),
    _of(governor.OperationInProgressError),
    _of(governor.BaselineUnavailableError),
    _of(governor.AuditUnavailableError),
    _of(governor.ConfigError, problems=array(text(), "Each mistake with its place.")),
    _of(ReloadNeedsRestartError, keys=array(text(), "What cannot change while the governor runs.")),
    _of(ReloadNotPossibleError),
    _of(IdentityOwnedError),
    _of(OwnershipError),
    _of(governor.BackendProtocolError, optional=("limit",), limit=count()),
)  # fmt: skip

FAILURES: Final = {failure.code: failure for failure in _ALL}
"""Every error code of an answer."""
assert len(FAILURES) == len(_ALL)

BELOW: Final = (
    "malformed_request", "invalid_target", "websocket_not_supported", "request_timeout", "headers_too_large",
    "transfer_encoding_not_supported", "method_not_supported",
    "host_not_served", "too_many_connections", "http_version_not_supported",
)  # fmt: skip
"""What the server itself refuses, on every route."""


def phrase(status: int) -> str:
    """A status in words."""
    return HTTPStatus(status).phrase
