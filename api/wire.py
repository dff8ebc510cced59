"""What clients send, decoded and checked: bytes and strings in, typed requests or `InvalidRequestError` out. Pure.

The shapes are those of the qwen serve protocol; `docs/protocol.md` has them in words. Keys that are not known here
are ignored, as the protocol asks.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from governor.errors import InvalidRequestError

from .errors import PromptTooLargeError

if TYPE_CHECKING:
    from governor.errors import JsonValue

WORKSPACE_CWD: Final = "/"
"""Stands where the protocol names a folder: a governor has models, and no folders."""
DISPLAY_NAME_CHARS_MAX: Final = 256
BRANCH_NAME_CHARS_MAX: Final = 200
GENERATION_BYTES_MAX: Final = 32 * 1024
"""UTF-8 bytes of the text of a generation; qwen serve has the same bound."""
HISTORY_PAGE_MAX: Final = 500
PAGE_SIZE: Final = 20
PAGE_SIZE_MAX: Final = 1000

_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_DIGITS = re.compile(r"[0-9]{1,16}")
_EPOCH = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_CURSOR_MAX = 2**53 - 1
_MAX_QUEUED = range(16, 2049)


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """The body of `POST /session`.

    Attributes:
        model: public name of the model; None for the first configured one.
        session_id: the id that the caller wants, a lower-case UUID.
        shared: attach to the one session that callers of this model share, if it is live (`single` scope).
    """

    model: str | None
    session_id: str | None
    shared: bool


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """The body of `POST /session/:id/prompt`.

    Attributes:
        text: the text blocks, joined by line breaks.
        deadline_ms: the caller's own deadline.
        retry: the text was told by the prompt before, whose turn failed.
    """

    text: str
    deadline_ms: int | None
    retry: bool


def decode_object(content_type: str | None, body: bytes) -> dict[str, JsonValue]:
    """A request's body as an object. What is no JSON by its content type, or no object, counts as an empty one.

    Raises:
        InvalidRequestError: `invalid_json`: it says it is JSON and is not.
    """
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if not body.strip() or not (media_type == "application/json" or media_type.endswith("+json")):
        return {}
    value = parse_json(body)
    return value if isinstance(value, dict) else {}


def parse_json(body: bytes) -> JsonValue:
    """Bytes as JSON, strictly.

    Raises:
        InvalidRequestError: `invalid_json`: they are none.
    """
    try:
        value: JsonValue = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError("Invalid JSON in request body", code="invalid_json") from error
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def decode_create(body: dict[str, JsonValue]) -> CreateRequest:
    """Checks the body of `POST /session`.

    Raises:
        InvalidRequestError: `invalid_session_scope`, `invalid_session_id`, `invalid_cwd`,
            `invalid_model_service_id`.
    """
    scope = body.get("sessionScope")
    if scope not in (None, "single", "thread"):
        raise InvalidRequestError('sessionScope must be "single" or "thread"', code="invalid_session_scope")
    session_id = body.get("sessionId")
    if session_id is not None:
        session_id = session_id.lower() if isinstance(session_id, str) else ""
        if not _UUID.fullmatch(session_id):
            raise InvalidRequestError("sessionId must be a UUID of version 1 to 5", code="invalid_session_id")
    check_cwd(body.get("cwd"))
    model = body.get("modelServiceId")
    if model is not None and not isinstance(model, str):
        raise InvalidRequestError(
            "modelServiceId must be the name of a model; GET /capabilities lists them",
            code="invalid_model_service_id",
        )
    return CreateRequest(model=model, session_id=session_id, shared=scope != "thread" and session_id is None)


def check_cwd(cwd: JsonValue) -> None:
    """What stands for a folder must look like one; which one it is does not matter.

    Raises:
        InvalidRequestError: `invalid_cwd`.
    """
    if cwd is not None and not (isinstance(cwd, str) and cwd.startswith("/")):
        raise InvalidRequestError("cwd must be an absolute path; it may be left out", code="invalid_cwd")


def _detail_mode(body: dict[str, JsonValue], key: str, *, code: str) -> None:
    """Both modes are accepted; for turns that are nothing but text they are the same."""
    if body.get(key) not in (None, "full", "summary"):
        raise InvalidRequestError(f'{key} must be "full" or "summary"', code=code)


def check_restore(body: dict[str, JsonValue]) -> None:
    """Checks the body of `POST /session/:id/load` and `/resume`, in which nothing changes the answer.

    Raises:
        InvalidRequestError: `invalid_cwd`, `invalid_live_replay_mode`, `invalid_compacted_replay_mode`,
            `invalid_transcript_limit`.
    """
    check_cwd(body.get("cwd"))
    page = body.get("historyPageSize")
    if page is not None and (isinstance(page, bool) or not isinstance(page, int) or not 1 <= page <= HISTORY_PAGE_MAX):
        raise InvalidRequestError(
            f"historyPageSize must be a whole number from 1 to {HISTORY_PAGE_MAX}",
            code="invalid_transcript_limit",
            maxLimit=HISTORY_PAGE_MAX,
        )
    _detail_mode(body, "liveReplayMode", code="invalid_live_replay_mode")
    _detail_mode(body, "compactedReplayMode", code="invalid_compacted_replay_mode")


def decode_model_id(body: dict[str, JsonValue]) -> str:
    """The body of `POST /session/:id/model`: the public name of a model.

    Raises:
        InvalidRequestError: `invalid_model_id`.
    """
    model = body.get("modelId")
    if not isinstance(model, str) or not model:
        raise InvalidRequestError("`modelId` is required and must be a non-empty string", code="invalid_model_id")
    return model


def decode_display_name(body: dict[str, JsonValue]) -> str | None:
    """The body of `PATCH /session/:id/metadata`: the new name, cut at 256 characters; None to change nothing.

    Raises:
        InvalidRequestError: `invalid_metadata`.
    """
    name = body.get("displayName")
    if name is None:
        return None
    problem = None
    if not isinstance(name, str):
        problem = "must be a string"
    elif _CONTROL.search(name):
        problem = "must not contain control characters"
    elif not name.strip():
        problem = "must not be empty"
    elif _SURROGATE.search(name):
        problem = "must be Unicode text, without halves of surrogate pairs"
    if problem is not None or not isinstance(name, str):
        raise InvalidRequestError(f"`displayName` {problem}", code="invalid_metadata", field="displayName")
    return name[:DISPLAY_NAME_CHARS_MAX]


def decode_branch_name(body: dict[str, JsonValue]) -> str | None:
    """The body of `POST /session/:id/branch`: the new session's name, without control characters; None for none.

    Raises:
        InvalidRequestError: `branch_point_invalid`: a branch from somewhere in the past is asked for.
    """
    if body.get("atRecordId") is not None:
        raise InvalidRequestError(
            "A session can be branched where it is now only; leave `atRecordId` out", code="branch_point_invalid"
        )
    name = body.get("name")
    if not isinstance(name, str):
        return None
    return _SURROGATE.sub("", _CONTROL.sub("", name))[:BRANCH_NAME_CHARS_MAX] or None


def decode_page(size: str | None, cursor: str | None) -> tuple[int, int | None]:
    """The query of a list of sessions: how many, and the number of the last one that was seen before.

    Raises:
        InvalidRequestError: `invalid_cursor`. A size that is none counts as the default.
    """
    wanted = int(size) if size is not None and _DIGITS.fullmatch(size) else PAGE_SIZE
    if cursor is not None and not _DIGITS.fullmatch(cursor):
        raise InvalidRequestError("cursor must be the nextCursor of an earlier answer", code="invalid_cursor")
    return max(1, min(PAGE_SIZE_MAX, wanted)), int(cursor) if cursor is not None else None


def decode_prompt(body: dict[str, JsonValue], *, max_prompt_bytes: int) -> PromptRequest:
    """Checks the body of `POST /session/:id/prompt`, in the protocol's order.

    Args:
        body: the decoded body.
        max_prompt_bytes: the most UTF-8 bytes that the text may have.

    Raises:
        InvalidRequestError: `invalid_event_detail_mode`, `invalid_prompt`, `unsupported_content_block`,
            `invalid_prompt_text`, `invalid_deadline_ms`.
        PromptTooLargeError: the text is larger than allowed.
    """
    _detail_mode(body, "eventDetailMode", code="invalid_event_detail_mode")
    blocks = body.get("prompt")
    if not isinstance(blocks, list) or not blocks:
        raise InvalidRequestError(
            '"prompt" is required and must be a non-empty array of content blocks, sent as application/json',
            code="invalid_prompt",
        )
    text = "\n".join(_text_of(position, block) for position, block in enumerate(blocks))
    _check_text(text, max_prompt_bytes)
    return PromptRequest(text=text, deadline_ms=_deadline(body.get("deadlineMs")), retry=body.get("retry") is True)


def decode_generation(body: dict[str, JsonValue]) -> str:
    """The body of `POST /session/:id/generate`: the text.

    Raises:
        InvalidRequestError: `invalid_prompt`, `invalid_prompt_text`.
        PromptTooLargeError: the text is larger than allowed.
    """
    text = body.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequestError(
            '"prompt" is required and must be a non-empty string, sent as application/json', code="invalid_prompt"
        )
    _check_text(text, GENERATION_BYTES_MAX)
    return text


def _text_of(position: int, block: JsonValue) -> str:
    if not isinstance(block, dict):
        raise InvalidRequestError(
            f'prompt[{position}] must be an object such as {{"type": "text", "text": "..."}}',
            code="invalid_prompt",
        )
    if block.get("type") != "text":
        raise InvalidRequestError(
            f"prompt[{position}] is no text block; the models here take text only",
            code="unsupported_content_block",
        )
    text = block.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"prompt[{position}].text must be a string", code="invalid_prompt_text")
    return text


def _check_text(text: str, max_bytes: int) -> None:
    if "\x00" in text:
        raise InvalidRequestError(
            f"The prompt's text holds a NUL character at position {text.index(chr(0))}; remove it",
            code="invalid_prompt_text",
        )
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"The prompt's text holds half of a surrogate pair at position {error.start}, which is no character",
            code="invalid_prompt_text",
        ) from error
    if size > max_bytes:
        raise PromptTooLargeError(max_bytes, size)


def _deadline(value: JsonValue) -> int | None:
    if value is None:
        return None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or not isinstance(value, int | float) or value <= 0:
        raise InvalidRequestError(
            "deadlineMs must be a positive whole number of milliseconds", code="invalid_deadline_ms"
        )
    return int(value)


def decode_client_id(value: str | None) -> str | None:
    """`X-Qwen-Client-Id`; None for an anonymous caller, who may do everything.

    Raises:
        InvalidRequestError: `invalid_client_id`.
    """
    if not value:
        return None
    if not _CLIENT_ID.fullmatch(value):
        raise InvalidRequestError(
            "X-Qwen-Client-Id must be 1 to 128 of the characters A-Z a-z 0-9 . _ : -",
            code="invalid_client_id",
        )
    return value


def decode_cursor(value: str | None) -> int | None:
    """`Last-Event-ID`; None, that is live events only, for anything but digits up to 2^53 - 1."""
    if value is None or not _DIGITS.fullmatch(value) or int(value) > _CURSOR_MAX:
        return None
    return int(value)


def decode_epoch(value: str | None) -> str | None:
    """`X-Qwen-Event-Epoch`; None for what can be none."""
    return value if value is not None and _EPOCH.fullmatch(value) else None


def decode_max_queued(values: list[str]) -> int | None:
    """The query's `maxQueued`; None if it is not given.

    Raises:
        InvalidRequestError: `invalid_max_queued`.
    """
    if not values:
        return None
    value = values[-1]
    if not _DIGITS.fullmatch(value) or int(value) not in _MAX_QUEUED:
        raise InvalidRequestError("maxQueued must be a whole number from 16 to 2048", code="invalid_max_queued")
    return int(value)
