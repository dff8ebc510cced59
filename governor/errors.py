"""Every error the governor raises on purpose, in one tree.

The class says whose fault it is, `code` is stable and machine-readable, `status` is the HTTP status the
error suggests (the core and the shell know no server), and the message says what was received, what was
expected and what to do.

    GovernorError
    ├── CallerError            the request is wrong; the same request will fail again           4xx
    │   ├── InvalidRequestError
    │   ├── SessionNotFoundError
    │   ├── UnknownModelError
    │   ├── UnknownClaimError
    │   ├── ClaimOpenError
    │   ├── UnknownIdentityError
    │   ├── EpochChangedError
    │   ├── OperationInProgressError
    │   └── BodyTooLargeError
    ├── RefusedError           the request is fine; the governor has no room or no time         503
    │   ├── PromptQueueFullError
    │   ├── CreditQueueFullError
    │   ├── CreditWaitTimeoutError
    │   ├── BranchWaitError
    │   ├── SessionLimitError
    │   ├── AuditUnavailableError
    │   └── DrainingError
    ├── BackendError           the backend did not answer, or not with a result                 5xx
    │   ├── BackendUnavailableError   the call never reached it completely (E3)
    │   │   └── BaselineUnavailableError   a forced restart got no reading to begin at (E11)
    │   ├── ConnectionLostError       the call was delivered, its end is unknown (E5)
    │   ├── BackendAnswerError        it answered with an error of its own
    │   ├── BackendTimeoutError       it did not answer in time; the call goes on
    │   └── BackendProtocolError      it answered something that is no answer
    ├── PromptEndedError       the prompt ended for its caller before an answer (S3)
    │   ├── PromptDeadlineError
    │   ├── PromptCancelledError
    │   ├── SessionClosedError
    │   └── ShutdownError
    └── ConfigError            the operator's configuration cannot work
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"
"""What `json.loads` can return."""


class GovernorError(Exception):
    """Base of everything the governor raises on purpose.

    Attributes:
        code: stable machine-readable name of the error.
        status: the HTTP status that fits it.
        retry_after_s: seconds after which the same request may succeed; None when it never will by waiting.
        details: further fields of the error body (`sessionId`, `limit`, ...), in wire spelling.
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    retry_after_s: ClassVar[int | None] = None

    def __init__(self, message: str, /, **details: JsonValue) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def body(self) -> dict[str, JsonValue]:
        """The JSON error body: always a string `error` and a `code`, then the details (A9)."""
        return {"error": self.message, "code": self.code, **self.details}


class CallerError(GovernorError):
    """The caller's request is wrong; sending it again unchanged fails again."""

    code = "invalid_request"
    status = 400


class InvalidRequestError(CallerError):
    """A field, header or body is malformed. `code` may be narrowed per instance (`invalid_deadline_ms`)."""

    def __init__(self, message: str, /, *, code: str = "invalid_request", **details: JsonValue) -> None:
        super().__init__(message, **details)
        self.code = code  # type: ignore[misc]  # narrowed per instance: one class, many stable codes


class SessionNotFoundError(CallerError):
    """No live session has this id (`session_not_found`), or it is closing (`session_closing`)."""

    code = "session_not_found"
    status = 404

    def __init__(self, session_id: str, *, closing: bool = False) -> None:
        super().__init__(f'No session with id "{session_id}"', sessionId=session_id)
        if closing:
            self.code = "session_closing"  # type: ignore[misc]  # the protocol names the two cases apart


class UnknownModelError(CallerError):
    """The named model is not in the configuration."""

    code = "unknown_model"
    status = 404

    def __init__(self, model: str, known: list[str]) -> None:
        names = ", ".join(known) or "none"
        super().__init__(f'Unknown model "{model}"; this governor serves: {names}', model=model, models=[*known])


class UnknownClaimError(CallerError):
    """No claim of the identity has this id; it may have ended meanwhile."""

    code = "unknown_claim"
    status = 404

    def __init__(self, identity: str, claim_id: int) -> None:
        super().__init__(f"Identity {identity} has no claim {claim_id}; it may have ended", claimId=claim_id)


class ClaimOpenError(CallerError):
    """E11: an open claim cannot be released; its own answer or break decides."""

    code = "claim_open"
    status = 409

    def __init__(self, identity: str, claim_id: int, state: str) -> None:
        super().__init__(
            f"Claim {claim_id} of identity {identity} is {state}: its connection lives, and its own answer or break"
            " decides. Only broken claims can be released",
            claimId=claim_id,
            state=state,
        )


class UnknownIdentityError(CallerError):
    """No identity has this id; a reload of the configuration may have taken it away."""

    code = "unknown_identity"
    status = 404

    def __init__(self, identity: str, meant: str | None = None) -> None:
        hint = f'did you mean "{meant}"? ' if meant is not None else ""
        super().__init__(
            f'No identity has the id "{identity}"; {hint}GET /admin/identities lists them', identity=identity
        )


class EpochChangedError(CallerError):
    """The operator's command was meant for another epoch of the identity: what it was decided on has changed."""

    code = "epoch_changed"
    status = 409

    def __init__(self, identity: str, expected: int, epoch: int) -> None:
        super().__init__(
            f"Identity {identity} is in epoch {epoch}, not {expected}: its counters began anew since you looked, and"
            " claims may have ended by it. Look again, then decide again",
            expectedEpoch=expected,
            epoch=epoch,
        )


class OperationInProgressError(CallerError):
    """An operator's act that takes time is under way on the same thing."""

    code = "operation_in_progress"
    status = 409

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is under way already; wait for its end, then look again")


class BodyTooLargeError(CallerError):
    """The request body is larger than the configured limit in bytes."""

    code = "body_too_large"
    status = 413


class RefusedError(GovernorError):
    """The request is well-formed, but the governor has no room or no time for it now."""

    code = "refused"
    status = 503
    retry_after_s = 5


class PromptQueueFullError(RefusedError):
    """S1, S2, A2: the session already has `limit` pending prompts; nothing was counted or queued."""

    code = "prompt_queue_full"

    def __init__(self, session_id: str, limit: int, pending_count: int) -> None:
        super().__init__(
            f'Prompt queue full for session "{session_id}" ({pending_count}/{limit} pending)',
            sessionId=session_id,
            limit=limit,
            pendingCount=pending_count,
        )
        self.session_id = session_id
        self.limit = limit
        self.pending_count = pending_count


class CreditQueueFullError(RefusedError):
    """A6: too many callers already wait for a slot credit of this identity."""

    code = "credit_queue_full"

    def __init__(self, model: str, limit: int) -> None:
        super().__init__(f'{limit} callers already wait for model "{model}"; retry later', model=model, limit=limit)


class CreditWaitTimeoutError(RefusedError):
    """A6: no slot credit came free within the configured wait in milliseconds."""

    code = "credit_wait_timeout"

    def __init__(self, model: str, waited_ms: int) -> None:
        super().__init__(
            f'No slot of model "{model}" came free within {waited_ms} ms; retry later',
            model=model,
            waitedMs=waited_ms,
        )


class BranchWaitError(RefusedError):
    """S5: the prompts that were accepted before a branch did not settle in time."""

    code = "branch_while_prompt_active"
    status = 409

    def __init__(self, session_id: str, waited_s: float) -> None:
        super().__init__(
            f'Prompts of session "{session_id}" were still pending after {waited_s:g} s, and a branch comes after '
            "them; cancel them or retry later",
            sessionId=session_id,
        )


class SessionLimitError(RefusedError):
    """The configured number of live sessions exists already."""

    code = "session_limit_exceeded"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} sessions are live, which is the limit; close one or retry later",
            limit=limit,
            scope="total",
        )


class AuditUnavailableError(RefusedError):
    """The file of the audit log cannot be written, and no act goes without its line there."""

    code = "audit_unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The audit log cannot be written ({reason}), so no act is done; make server.audit_file writable"
        )


class DrainingError(RefusedError):
    """The governor is shutting down: it finishes what it accepted and accepts nothing more."""

    code = "daemon_draining"

    def __init__(self) -> None:
        super().__init__("The daemon is draining and no longer accepts work.", errorKind="daemon_draining")


class BackendError(GovernorError):
    """The backend gave no result."""

    code = "backend_error"
    status = 502


class BackendUnavailableError(BackendError):
    """E3: the call never reached the backend completely, so it never executes and is safe to send again."""

    code = "backend_unavailable"
    status = 503
    retry_after_s = 5


class BaselineUnavailableError(BackendUnavailableError):
    """E11: the backend gave no reading at which a forced restart could begin; nothing was done."""

    code = "baseline_unavailable"


class ConnectionLostError(BackendError):
    """The call was delivered and its connection died: it may still execute; only evidence tells (E5)."""

    code = "backend_connection_lost"
    status = 502


class BackendAnswerError(BackendError):
    """The backend answered this call with an error of its own.

    Attributes:
        backend_status: the HTTP status the backend used.
    """

    code = "backend_answered_error"
    status = 502

    def __init__(self, message: str, /, *, backend_status: int) -> None:
        super().__init__(message, backendStatus=backend_status)
        self.backend_status = backend_status


class BackendTimeoutError(BackendError):
    """The caller's wait for the backend's answer is over; the call goes on and keeps its credit (E2)."""

    code = "backend_timeout"
    status = 504

    def __init__(self, model: str, timeout_ms: int) -> None:
        super().__init__(f'Model "{model}" gave no answer within {timeout_ms} ms', model=model, timeoutMs=timeout_ms)


class BackendProtocolError(BackendError):
    """The backend's answer is not what its protocol promises (not JSON, a field missing, too large)."""

    code = "backend_protocol_error"


class PromptEndedError(GovernorError):
    """The prompt ended for its caller before an answer came; its claim may go on (S6)."""

    code = "prompt_ended"


class PromptDeadlineError(PromptEndedError):
    """S6: the prompt's deadline, counted from admission, has passed."""

    code = "prompt_deadline_exceeded"
    status = 504

    def __init__(self, deadline_ms: int) -> None:
        super().__init__(f"prompt exceeded the {deadline_ms}ms deadline")


class PromptCancelledError(PromptEndedError):
    """The caller cancelled the prompt."""

    code = "prompt_cancelled"
    status = 499


class SessionClosedError(PromptEndedError):
    """The prompt's session was closed."""

    code = "session_closed"

    def __init__(self) -> None:
        super().__init__("session closed before the prompt completed")


class ShutdownError(PromptEndedError):
    """The governor shut down."""

    code = "daemon_shutdown"
    status = 503

    def __init__(self) -> None:
        super().__init__("daemon shut down before the prompt completed")


class ConfigError(GovernorError):
    """The configuration cannot work; `problems` names every mistake at once (D10)."""

    code = "config_invalid"
    status = 422

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems), problems=[*problems])
        self.problems = problems
