"""What each method does. Everything here is synchronous: a request is accepted or refused in one step (S2)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from governor.errors import DrainingError, GovernorError, InvalidRequestError

from ..views import models_state, opened, page_of, summary
from ..wire import (
    PAGE_SIZE,
    PAGE_SIZE_MAX,
    WORKSPACE_CWD,
    check_cwd,
    decode_create,
    decode_model_id,
    decode_page,
    decode_prompt,
)
from .errors import UnknownMethodError

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.errors import JsonValue
    from governor.session import Session

    from ..context import GovernorApp
    from ..rate import Tier
    from ..views import View
    from .calls import Call
    from .connection import Binding, Connection
    from .messages import Message, Params

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

PROTOCOL_VERSION: Final = 1
INITIALIZE: Final = "initialize"
CANCEL: Final = "session/cancel"
HEARTBEAT: Final = "_qwen/session/heartbeat"
REQUESTED_ID: Final = "qwen-code/sessionId"
"""In `_meta` of `session/new`: the id that the new session is to have."""


def initialize_result(connection: Connection) -> View:
    """What the governor can do, told to a client that has opened a connection."""
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {
            "loadSession": True,
            "promptCapabilities": {"image": False, "audio": False, "embeddedContext": False},
            "_meta": {
                "qwen": {"connectionId": connection.id, "workspaceCwd": WORKSPACE_CWD, "methods": [HEARTBEAT]},
            },
        },
        "authMethods": [],
    }


def tier_of_method(method: str) -> Tier | None:
    """The kind of a request, for the rate limits; None for one that is never limited."""
    if method == HEARTBEAT:
        return None
    if method == "session/prompt":
        return "prompt"
    return "read" if method == "session/list" else "mutation"


class Request:
    """One message on its way through its method.

    Args:
        app: the application.
        connection: what the message came on.
        session_header: `Acp-Session-Id`, which must agree with the message.

    Attributes:
        prompt: the session and the id of the prompt that was accepted, if one was.
        error: why the request was not carried out; None if it was.
    """

    def __init__(self, app: GovernorApp, connection: Connection, session_header: str | None) -> None:
        self.prompt: tuple[Session, str] | None = None
        self.error: GovernorError | None = None
        self._app = app
        self._governor = app.governor
        self._connection = connection
        self._session_header = session_header

    def notify(self, message: Message) -> None:
        """Carries out a notification; one that means nothing here is passed over.

        Raises:
            InvalidRequestError: `request_id_required`: nobody would learn what became of it.
            GovernorError: it cannot be carried out.
        """
        if message.method == CANCEL:
            self._owned(message.params).cancel()
        elif message.method in _METHODS or message.method == INITIALIZE:
            raise InvalidRequestError(
                f"{message.method} is a request and needs an id; only {CANCEL} is a notification",
                code="request_id_required",
            )

    def carry_out(self, message: Message, call: Call) -> None:
        """Carries out a request. Whatever happens, it has its one response, now or when its turn ends."""
        try:
            method = _METHODS.get(message.method)
            if method is None:
                raise UnknownMethodError(message.method)
            method(self, call, message.params)
        except GovernorError as error:
            self.error = error
            call.fail(error)
        except Exception:  # noqa: BLE001  # a fault in one method costs neither its response nor other requests
            _log.exception("acp_method_failed", method=message.method)
            if not call.answered:
                call.fail(GovernorError("Internal error"))

    def authenticate(self, call: Call, params: Params) -> None:  # noqa: ARG002  # every method has this shape
        """The token of the request has done that already."""
        call.answer({})

    def new(self, call: Call, params: Params) -> None:
        """A session of the connection's own."""
        meta = params.get("_meta")
        wanted = decode_create(
            {
                "cwd": params.get("cwd"),
                "modelServiceId": params.get("modelServiceId"),
                "sessionId": meta.get(REQUESTED_ID) if isinstance(meta, dict) else None,
                "sessionScope": "thread",
            }
        )
        session, _ = self._app.shared_sessions.open(wanted)
        self._tell_owned(call, self._connection.own(session, cursor=0, made=True), attached=False)

    def load(self, call: Call, params: Params) -> None:
        """Attaches to a live session; its stream tells what was told in it before."""
        check_cwd(params.get("cwd"))
        session = self._governor.session(self._session_id(params))
        self._tell_owned(call, self._connection.own(session, cursor=0), attached=True)

    def resume(self, call: Call, params: Params) -> None:
        """Attaches to a live session; its stream begins with what happens from now on."""
        check_cwd(params.get("cwd"))
        session = self._governor.session(self._session_id(params))
        self._tell_owned(call, self._connection.own(session, cursor=session.log.last_id), attached=True)

    def list_sessions(self, call: Call, params: Params) -> None:
        """One page of the live sessions, whoever made them."""
        if self._governor.draining:
            raise DrainingError
        check_cwd(params.get("cwd", params.get("workspaceCwd")))
        meta, cursor = params.get("_meta"), params.get("cursor")
        wanted = meta.get("size") if isinstance(meta, dict) else None
        size = min(wanted, PAGE_SIZE_MAX) if isinstance(wanted, int) and wanted > 0 else PAGE_SIZE
        if cursor is not None and not isinstance(cursor, str):
            cursor = ""  # which is none, and is refused as such
        size, before = decode_page(str(size), cursor)
        page, following = page_of(self._governor.sessions.values(), size, before)
        lines: list[JsonValue] = [
            {**line, "cwd": line["workspaceCwd"], "title": line.get("displayName")} for line in map(summary, page)
        ]
        call.answer({"sessions": lines, **({"nextCursor": following} if following is not None else {})})

    def close(self, call: Call, params: Params) -> None:
        """Closes a session for everybody."""
        binding = self._owned(params)
        self._governor.close_session(binding.session.id, closed_by=binding.client_id)
        call.answer({})

    def prompt_session(self, call: Call, params: Params) -> None:
        """Hands in a prompt; the response comes when its turn has ended."""
        binding = self._owned_for(call, params)
        wanted = decode_prompt(params, max_prompt_bytes=self._governor.config.limits.max_prompt_bytes)
        admission = binding.session.admit(
            wanted.text,
            deadline_ms=wanted.deadline_ms,
            originator=binding.client_id,
            retry=wanted.retry,
            on_settled=partial(binding.settled, call),
        )
        binding.prompts[admission.prompt_id] = None
        self.prompt = binding.session, admission.prompt_id

    def cancel(self, call: Call, params: Params) -> None:
        """The notification, sent as a request."""
        self._owned_for(call, params).cancel()
        call.answer({})

    def set_model(self, call: Call, params: Params) -> None:
        """Sends the turns that begin from now on to another model."""
        binding = self._owned_for(call, params)
        served = self._governor.switch_model(binding.session, decode_model_id(params), binding.client_id)
        call.answer({"modelId": served.config.name})

    def heartbeat(self, call: Call, params: Params) -> None:
        """The session is in use."""
        binding = self._owned(params)
        told: View = {"sessionId": binding.session.id, "clientId": binding.client_id}
        call.answer({**told, "lastSeenAt": binding.session.heartbeat()})

    def _tell_owned(self, call: Call, binding: Binding, *, attached: bool) -> None:
        session = binding.session
        session.touch()
        call.on_taken = binding.learned
        state = models_state(session, self._governor.models)
        call.answer(
            {
                **opened(session, binding.client_id, attached=attached),
                "hasActivePrompt": session.has_active_prompt,
                **state,
                "state": state,
                "lastEventId": binding.cursor,
                "eventEpoch": session.log.epoch,
            }
        )

    def _owned_for(self, call: Call, params: Params) -> Binding:
        """The session that the request is for; its response belongs on that session's stream from now on."""
        binding = self._owned(params)
        call.anchor = binding.session.log.last_id
        call.deliver = binding.deliver
        return binding

    def _owned(self, params: Params) -> Binding:
        binding = self._connection.owned(self._session_id(params))
        binding.session.touch()
        return binding

    def _session_id(self, params: Params) -> str:
        session_id = params.get("sessionId")
        if not isinstance(session_id, str) or not session_id:
            raise InvalidRequestError("`sessionId` is required", code="invalid_session_id")
        if self._session_header is not None and self._session_header != session_id:
            raise InvalidRequestError("Acp-Session-Id header does not match params.sessionId", code="session_mismatch")
        return session_id


_METHODS: Final[dict[str, Callable[[Request, Call, Params], None]]] = {
    "authenticate": Request.authenticate,
    "session/new": Request.new,
    "session/load": Request.load,
    "session/resume": Request.resume,
    "session/list": Request.list_sessions,
    "session/close": Request.close,
    "session/prompt": Request.prompt_session,
    CANCEL: Request.cancel,
    "session/set_model": Request.set_model,
    HEARTBEAT: Request.heartbeat,
}
