"""Every act of an operator: who, what, why, and what came of it (A7).

An act is one log event, one entry of a bounded ring and, where the operator wants it, one line of a file. The entry is
made when the act has ended, in whatever way. The file is opened for each act, so that it can be moved away and a new
one begins; an act that could not be written there is not begun.
"""

from __future__ import annotations

import json
import os
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from governor.errors import AuditUnavailableError, GovernorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from governor.errors import JsonValue

_log = structlog.get_logger(__name__)

ENTRIES_MAX: Final = 512
"""Acts that are kept in memory."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, as far as it is known.

    Attributes:
        by: `admin token`, or the signal that the process got.
        address: from where; None for a signal.
        operator: what the holder of the token calls themselves; nobody checks it.
    """

    by: str
    address: str | None = None
    operator: str | None = None


@dataclass(slots=True)
class AuditEntry:
    """One act.

    Attributes:
        id: counts up from 1 while the process lives.
        at_ms: when it was asked for, in Unix milliseconds.
        actor: who.
        act: what, such as `restart`.
        target: on what, such as an identity.
        reason: why, in the actor's words.
        asked: further parameters.
        ended_at_ms: when it had ended.
        result: `done`, `refused` (nothing was done), `interrupted` (whoever asked left, or the governor stopped; what
            was done by then is done), or `failed` (a fault of the governor).
        code: of the error, where there was one.
        error: its sentence.
        report: what was done.
    """

    id: int
    at_ms: int
    actor: Actor
    act: str
    target: str
    reason: str | None
    asked: dict[str, JsonValue]
    ended_at_ms: int = 0
    result: str = "interrupted"
    code: str | None = None
    error: str | None = None
    report: dict[str, JsonValue] = field(default_factory=dict)

    def json(self) -> dict[str, JsonValue]:
        """As plain JSON values, in wire spelling."""
        return {
            "id": self.id,
            "atMs": self.at_ms,
            "endedAtMs": self.ended_at_ms,
            "by": self.actor.by,
            "address": self.actor.address,
            "operator": self.actor.operator,
            "act": self.act,
            "target": self.target,
            "reason": self.reason,
            "asked": self.asked,
            "result": self.result,
            "code": self.code,
            "error": self.error,
            "report": self.report,
        }


class AuditLog:
    """The acts of one process.

    Args:
        now_ms: wall-clock time in Unix milliseconds.
        path: the file; None for none.
    """

    def __init__(self, now_ms: Callable[[], int], path: str | None = None) -> None:
        self._now_ms = now_ms
        self._path = path
        self._entries: deque[AuditEntry] = deque(maxlen=ENTRIES_MAX)
        self._last_id = 0
        try:
            self._check_file()
        except AuditUnavailableError as error:
            # Said when there is time to mend it, not first to the operator who must act.
            _log.error("audit_unwritable", path=path, error=error.message)

    def before(self, entry_id: int | None, count: int) -> list[AuditEntry]:
        """The newest `count` kept entries older than an id (None: the newest of all), the newest first."""
        found = [entry for entry in reversed(self._entries) if entry_id is None or entry.id < entry_id]
        return found[:count]

    @contextmanager
    def act(
        self, actor: Actor, act: str, *, target: str, reason: str | None, **asked: JsonValue
    ) -> Iterator[AuditEntry]:
        """Wraps one act; what is written into `report` inside is kept. Errors pass through.

        Raises:
            AuditUnavailableError: the file cannot be written; the act was not begun.
        """
        self._last_id += 1
        entry = AuditEntry(self._last_id, self._now_ms(), actor, act, target, reason, asked)
        try:
            self._check_file()
            yield entry
            if entry.result == "interrupted":
                entry.result = "done"
        except GovernorError as error:
            entry.result, entry.code, entry.error = "refused", error.code, error.message
            raise
        except Exception as error:
            entry.result, entry.error = "failed", repr(error)
            raise
        finally:
            entry.ended_at_ms = self._now_ms()
            self._entries.append(entry)
            self._tell(entry)
            self._write(entry)

    def _check_file(self) -> None:
        if self._path is None:
            return
        try:
            os.close(self._open(self._path))
        except OSError as error:
            raise AuditUnavailableError(error.strerror or str(error)) from error

    def _write(self, entry: AuditEntry) -> None:
        if self._path is None or entry.code == AuditUnavailableError.code:
            return
        try:
            descriptor = self._open(self._path)
            try:
                os.write(descriptor, json.dumps(entry.json()).encode() + b"\n")
            finally:
                os.close(descriptor)
        except OSError as error:
            _log.error("audit_write_failed", path=self._path, audit_id=entry.id, error=str(error))

    @staticmethod
    def _open(path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _tell(self, entry: AuditEntry) -> None:
        _log.warning(
            "operator_act",
            audit_id=entry.id,
            by=entry.actor.by,
            address=entry.actor.address,
            operator=entry.actor.operator,
            act=entry.act,
            target=entry.target,
            reason=entry.reason,
            asked=entry.asked,
            result=entry.result,
            code=entry.code,
            error=entry.error,
            report=entry.report,
        )
