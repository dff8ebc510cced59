"""Every error that the client raises on purpose.

    DaemonError
    ├── DaemonPendingPromptLimitError   as many prompts of the session are pending as may be
    ├── DaemonHttpError                 the server answered with an error
    │   └── DaemonTurnError             a prompt was accepted and ended in `turn_error`
    ├── DaemonConnectionError           no answer: not reached, or the connection broke
    ├── DaemonStreamError               an event stream ended and could not be continued
    ├── DaemonProtocolError             an answer that is none
    │   ├── DaemonSessionIdProtocolError  another session than the one asked for
    │   └── SseFramingError             an event stream that cannot be split into events
    └── DaemonUsageError                the caller uses the client in a way that cannot work

A time limit that the caller set (`timeout_s`) is Python's own `TimeoutError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from governor.errors import JsonValue

_SHOWN_MAX: Final = 500
_TURN_ERROR_STATUS: Final = 500


class DaemonError(Exception):
    """Base of everything the client raises on purpose."""


class DaemonPendingPromptLimitError(DaemonError):
    """C2: the session has as many pending prompts as it may have.

    Attributes:
        session_id: which session.
        limit: how many it may have; 0 if the server refused and did not say.
        pending_count: how many it has; 0 if the server refused and did not say.
        sent: False if the client refused by itself and sent nothing; True if the server refused.
    """

    def __init__(self, session_id: str, limit: int, pending_count: int, *, sent: bool = False) -> None:
        who = "the server refused this one" if sent else "nothing was sent"
        super().__init__(f'Pending prompts full: "{session_id}" ({pending_count}/{limit}); {who}')
        self.session_id = session_id
        self.limit = limit
        self.pending_count = pending_count
        self.sent = sent


class DaemonHttpError(DaemonError):
    """The server answered with an error.

    Attributes:
        status: HTTP status.
        body: the answer's body, as JSON if it is JSON, else as text.
        retry_after_s: what `Retry-After` says, in seconds; None without one.
    """

    def __init__(self, status: int, body: JsonValue, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.retry_after_s = retry_after_s

    @classmethod
    def of_answer(cls, label: str, status: int, body: JsonValue, retry_after_s: float | None) -> DaemonHttpError:
        """The error that an answer stands for; `label` says what was asked."""
        told = body.get("error") if isinstance(body, dict) else None
        reason = told if isinstance(told, str) and told else f"HTTP {status}"
        return cls(status, body, f"{label}: {reason[:_SHOWN_MAX]}", retry_after_s=retry_after_s)

    @property
    def code(self) -> str | None:
        """The stable machine-readable name of the error, if the server gave one (docs/http-api.md lists them)."""
        code = self.body.get("code") if isinstance(self.body, dict) else None
        return code if isinstance(code, str) else None


class DaemonTurnError(DaemonHttpError):
    """The prompt was accepted, and its turn ended in `turn_error`.

    Attributes:
        prompt_id: which prompt.
        text: what the model had said until then.
    """

    def __init__(self, prompt_id: str, code: str, message: str, *, text: str = "") -> None:
        super().__init__(_TURN_ERROR_STATUS, {"error": message, "code": code}, message)
        self.prompt_id = prompt_id
        self.text = text


class DaemonConnectionError(DaemonError):
    """There is no answer: the server was not reached, the connection broke, or it took too long.

    Attributes:
        delivered: False if nothing can have reached the server; True if it may have acted.
    """

    def __init__(self, message: str, *, delivered: bool) -> None:
        super().__init__(message)
        self.delivered = delivered


class DaemonStreamError(DaemonError):
    """An event stream ended before its time and could not be continued, or an outcome can no longer be learned."""


class DaemonProtocolError(DaemonError):
    """The answer is not what the protocol promises: no JSON, a field missing, another content type, too large."""


class DaemonSessionIdProtocolError(DaemonProtocolError):
    """The server answered with another session than the one that was asked for.

    Attributes:
        requested_session_id: what was asked for.
        actual_session_id: what came.
    """

    def __init__(self, requested_session_id: str, actual_session_id: str) -> None:
        super().__init__(f'Asked for session "{requested_session_id}" and was given "{actual_session_id}"')
        self.requested_session_id = requested_session_id
        self.actual_session_id = actual_session_id


class SseFramingError(DaemonProtocolError):
    """One event of a stream is larger than allowed, so that its end cannot be waited for."""


class DaemonUsageError(DaemonError):
    """The client is used in a way that cannot work; the message says what to do instead."""
