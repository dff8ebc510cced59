"""What operators do to a Triton server through the governor (A6): load, unload, settings, shared memory.

A load may be a reload, by which the counters begin anew while old work goes on (E7). So a reading is taken right
before and right after it: none of the old life's ends is missed that could be seen, and the new life is noticed at
once, before the counters can grow past the old ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from governor.errors import CallerError, InvalidRequestError
from governor.triton.jsons import parse_json
from governor.triton.text import error_message
from governor.triton.wire import WireRequest, path_of

if TYPE_CHECKING:
    from governor.audit import Actor, AuditLog
    from governor.backend import Backend
    from governor.errors import JsonValue
    from governor.reads import Reply
    from governor.triton.wire import Headers
    from governor.turn import ServedModel

CONTROL_TIMEOUT_MS: Final = 600_000
"""Longest time for one act: large models take minutes to load."""
_JSON: Final = (("Content-Type", "application/json"),)


class SeveralBackendsError(CallerError):
    """The governor stands in front of several servers, and the path names none of them."""

    code = "several_backends"
    status = 409

    def __init__(self, backends: list[str]) -> None:
        super().__init__(
            "This concerns a whole server, and there are several here; ask the one that is meant at its own address",
            backends=[*backends],
        )


class ModelControl:
    """The acts, each written into the audit log.

    Args:
        audit: the log.
    """

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    async def load(
        self, served: ServedModel, body: bytes, headers: Headers, actor: Actor, *, unload: bool = False
    ) -> Reply:
        """Has a model loaded, or unloaded. Answers as Triton does.

        Raises:
            BackendError: Triton gave no answer; it may go on loading.
            ReadQueueFullError: too much waits to be done there already.
        """
        act = "unload" if unload else "load"
        identity, backend = served.identity, served.backend
        path = path_of("v2", "repository", "models", identity.key.model, act)
        with self._audit.act(actor, f"{act}_model", target=str(identity.key), reason=None) as entry:
            await identity.take_reading()
            try:
                reply = await _ask(backend, "POST", path, body, headers)
            finally:
                # With an ensemble, or what depends on one, others are loaded and unloaded as well.
                for each in backend.identities.values():
                    each.expect_another_load()
            entry.report = _told(reply)
            if reply.status == 200 and not unload:
                await identity.take_reading()
            return reply

    async def trace_settings(
        self, backend: Backend, model: str | None, method: str, body: bytes, headers: Headers, actor: Actor
    ) -> Reply:
        """Shows or changes trace settings, of one model or of the server.

        Raises:
            InvalidRequestError: `trace_log_frequency_reserved`: in this setting the governor keeps what tells one
                process of the backend from the next (E8); `invalid_json`.
            BackendError, ReadQueueFullError: as `load`.
        """
        if method == "POST":
            _check_trace_settings(body)
        path = path_of("v2", *(("models", model) if model is not None else ()), "trace", "setting")
        return await self.settings(backend, method, path, body, headers, actor)

    async def settings(
        self, backend: Backend, method: str, path: str, body: bytes, headers: Headers, actor: Actor
    ) -> Reply:
        """Shows or changes something of the server, by the path that Triton has for it.

        Raises:
            BackendError, ReadQueueFullError: as `load`.
        """
        if method == "GET":
            return await _ask(backend, method, path, body, headers)
        with self._audit.act(actor, "triton_settings", target=f"{backend.config.name}{path}", reason=None) as entry:
            reply = await _ask(backend, method, path, body, headers)
            entry.report = _told(reply)
            return reply


async def _ask(backend: Backend, method: str, path: str, body: bytes, headers: Headers) -> Reply:
    wire = WireRequest(method=method, path=path, headers=(*(_JSON if body else ()), *headers), body=body)
    return await backend.control.ask(wire, timeout_ms=CONTROL_TIMEOUT_MS)


def _told(reply: Reply) -> dict[str, JsonValue]:
    told: dict[str, JsonValue] = {"status": reply.status}
    return told if reply.status == 200 else {**told, "error": error_message(reply.body)}


def _check_trace_settings(body: bytes) -> None:
    try:
        settings = parse_json(body) if body.strip() else {}
    except ValueError as error:
        raise InvalidRequestError(f"The trace settings are no JSON: {error}", code="invalid_json") from error
    if isinstance(settings, dict) and "log_frequency" in settings:
        raise InvalidRequestError(
            "log_frequency cannot be set through the governor: in it the governor keeps what tells one process of the"
            " backend from the next",
            code="trace_log_frequency_reserved",
        )
