"""What operators send, decoded and checked. Pure.

Stricter than the session routes: an unknown key is an error, because a misspelt `drainMs` must not become an act
without a drain.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from governor.errors import InvalidRequestError

from .views import CLAIMS_SHOWN, CLAIMS_SHOWN_MAX, IDENTITIES_SHOWN, IDENTITIES_SHOWN_MAX

if TYPE_CHECKING:
    from collections.abc import Collection

    from governor.errors import JsonValue

REASON_CHARS_MAX: Final = 500
OPERATOR_CHARS_MAX: Final = 100
DRAIN_MS_MAX: Final = 3_600_000
ALL: Final = "all"
_AUDIT_SHOWN: Final = 100
_DIGITS_MAX: Final = 15

Body = dict[str, "JsonValue"]


@dataclass(frozen=True, slots=True)
class RestartBody:
    """The body of `POST /admin/restart`.

    Attributes:
        identity: an id, or `all`.
        reason: why.
        operator: who says so.
        drain_ms: time for the running calls.
        expected_epochs: by identity id.
    """

    identity: str
    reason: str
    operator: str | None
    drain_ms: int
    expected_epochs: dict[str, int]


def decode_body(content_type: str | None, body: bytes) -> Body:
    """A JSON object; an empty body counts as an empty one.

    Raises:
        InvalidRequestError: `invalid_json`: it is anything else.
    """
    if not body.strip():
        return {}
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise InvalidRequestError(
            f"The body must be sent as application/json, not {media_type or 'without Content-Type'}",
            code="invalid_json",
        )
    try:
        value: JsonValue = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError("Invalid JSON in request body", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequestError("The body must be a JSON object", code="invalid_json")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def decode_restart(body: Body) -> RestartBody:
    """Checks the body of `POST /admin/restart`.

    Raises:
        InvalidRequestError: `invalid_field`, `invalid_reason`.
    """
    _only(body, {"identity", "reason", "operator", "drainMs", "expectedEpoch", "expectedEpochs"})
    identity = body.get("identity")
    if not isinstance(identity, str) or not identity:
        _wrong("identity", 'the id of an identity, or "all"')
    expected: dict[str, int] = {}
    if "expectedEpoch" in body:
        if identity == ALL:
            _wrong("expectedEpoch", 'left out with "all"; use expectedEpochs, an epoch for each identity id')
        expected[identity] = _whole(body, "expectedEpoch", at_most=2**53)
    epochs = body.get("expectedEpochs", {})
    if not isinstance(epochs, dict) or len(epochs) > IDENTITIES_SHOWN_MAX:
        _wrong("expectedEpochs", "an object with an epoch for each identity id")
    for name in epochs:
        if identity not in (ALL, name):
            _wrong("expectedEpochs", "an epoch for the identities that are restarted, and for no other")
        expected[name] = _whole(epochs, name, at_most=2**53)
    return RestartBody(
        identity=identity,
        reason=_reason(body, required=True) or "",
        operator=decode_operator(body),
        drain_ms=_whole(body, "drainMs", at_most=DRAIN_MS_MAX) if "drainMs" in body else 0,
        expected_epochs=expected,
    )


def decode_release(body: Body) -> tuple[str, str | None, int | None]:
    """Reason, operator and expected epoch of a release.

    Raises:
        InvalidRequestError: `invalid_field`, `invalid_reason`.
    """
    _only(body, {"reason", "operator", "expectedEpoch"})
    expected = _whole(body, "expectedEpoch", at_most=2**53) if "expectedEpoch" in body else None
    return _reason(body, required=True) or "", decode_operator(body), expected


def decode_why(body: Body) -> tuple[str | None, str | None]:
    """Reason and operator of an act that needs neither.

    Raises:
        InvalidRequestError: `invalid_field`, `invalid_reason`.
    """
    _only(body, {"reason", "operator"})
    return _reason(body, required=False), decode_operator(body)


def decode_reload(body: Body) -> tuple[str | None, str | None, bool]:
    """Reason, operator, and whether to tell only what would be done.

    Raises:
        InvalidRequestError: `invalid_field`, `invalid_reason`.
    """
    _only(body, {"reason", "operator", "dryRun"})
    dry_run = body.get("dryRun", False)
    if not isinstance(dry_run, bool):
        _wrong("dryRun", "true or false")
    return _reason(body, required=False), decode_operator(body), dry_run


def decode_claim_id(text: str) -> int:
    """A claim's id in a path.

    Raises:
        InvalidRequestError: `invalid_field`: it is no number.
    """
    return _number("the claim id", text, at_least=1, at_most=2**53)


def decode_list(size: str | None, after: str | None) -> tuple[int, str | None]:
    """The query of the list of identities.

    Raises:
        InvalidRequestError: `invalid_field`.
    """
    wanted = _number("size", size, at_least=1, at_most=IDENTITIES_SHOWN_MAX) if size is not None else IDENTITIES_SHOWN
    return wanted, after


def decode_claims_max(text: str | None) -> int:
    """How many claims of an identity to show.

    Raises:
        InvalidRequestError: `invalid_field`.
    """
    return _number("claims", text, at_least=0, at_most=CLAIMS_SHOWN_MAX) if text is not None else CLAIMS_SHOWN


def decode_audit(size: str | None, before: str | None) -> tuple[int, int | None]:
    """The query of the audit log.

    Raises:
        InvalidRequestError: `invalid_field`.
    """
    wanted = _number("size", size, at_least=1, at_most=1000) if size is not None else _AUDIT_SHOWN
    return wanted, _number("before", before, at_least=1, at_most=2**53) if before is not None else None


def decode_operator(body: Body) -> str | None:
    """Who says to act.

    Raises:
        InvalidRequestError: `invalid_field`.
    """
    operator = body.get("operator")
    if operator is None:
        return None
    if not isinstance(operator, str) or not _is_plain(operator, OPERATOR_CHARS_MAX):
        _wrong("operator", f"one line of 1 to {OPERATOR_CHARS_MAX} characters, or left out")
    return operator.strip()


def _reason(body: Body, *, required: bool) -> str | None:
    reason = body.get("reason")
    if reason is None and not required:
        return None
    if not isinstance(reason, str) or not _is_plain(reason, REASON_CHARS_MAX):
        raise InvalidRequestError(
            f"reason must say in one line of 1 to {REASON_CHARS_MAX} characters why; the audit log keeps it",
            code="invalid_reason",
        )
    return reason.strip()


def _is_plain(text: str, chars_max: int) -> bool:
    return 0 < len(text.strip()) <= chars_max and text.strip().isprintable()


def _only(body: Body, known: Collection[str]) -> None:
    for key in body:
        if key not in known:
            raise InvalidRequestError(
                f"Unknown key {json.dumps(key[:64])}; expected {', '.join(sorted(known))}", code="invalid_field"
            )


def _whole(body: Body, key: str, *, at_most: int) -> int:
    value = body[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= at_most:
        _wrong(key, f"a whole number from 0 to {at_most}")
    return value


def _number(name: str, text: str, *, at_least: int, at_most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX + 1 and at_least <= int(text) <= at_most:
        return int(text)
    return _wrong(name, f"a whole number from {at_least} to {at_most}")


def _wrong(key: str, expected: str) -> NoReturn:
    raise InvalidRequestError(f"{key} must be {expected}", code="invalid_field")
