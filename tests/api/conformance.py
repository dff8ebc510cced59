"""Holds answers against the OpenAPI document: what is answered is promised there, and nothing else is.

The document leaves objects open, as a client must take no offence at a new field. Here they are closed, so that a field
that the document does not know is found.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import jsonschema_rs

from api.openapi import FAILURES, document

if TYPE_CHECKING:
    from collections.abc import Mapping

EVENT_STREAM: Final = "text/event-stream"
MADE_UP: Final = "test"
"""Type of the events that tests publish themselves."""
NO_JSON: Final = "no JSON"
_HINT: Final = "describe it in api/openapi (its docstring says how), or mend the answer"


class DriftError(AssertionError):
    """An answer is not as the document has it."""


def check_answer(method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Holds one complete answer against the document.

    Args:
        method: of the request.
        path: of the request, decoded.
        status: of the answer.
        headers: of the answer, their names in lower case.
        body: of the answer; that of an event stream is not looked at, see `check_event`.

    Raises:
        DriftError: it is not promised.
    """
    where = f"{method} {path} answered {status}"
    told = _json(body) if _kind(headers) == "application/json" and method != "HEAD" else None
    code = told.get("code") if status >= 400 and isinstance(told, dict) else None
    if isinstance(code, str) and code in FAILURES:
        _check_failure(where, status, code, headers)
    if status == 405 or (status < 300 and method == "OPTIONS"):
        return
    template = template_of(path)
    operation = _paths().get(template, {}).get("get" if method == "HEAD" else method.lower()) if template else None
    if operation is None:
        _check_schema(f"{where}, which is no route", _error_schema(code), told)
        return
    response = operation["responses"].get(str(status)) or operation["responses"].get("default")
    if response is None:
        raise DriftError(f"{where} ({code or body[:200]!r}), a status that the document does not know: {_HINT}")
    _check_content(where, _resolved(response), headers, told, body if method != "HEAD" else None)


def check_event(envelope: object, path: str = "/session/s/events") -> None:
    """Holds the data of one frame of a stream against the document.

    Args:
        envelope: the data.
        path: of the request.

    Raises:
        DriftError: it is not promised.
    """
    kind = envelope.get("type") if isinstance(envelope, dict) else None
    if kind == MADE_UP or not path.startswith("/session/"):
        return
    if path.endswith("/generate"):
        _check_schema(f"event {kind}", "#/components/schemas/GenerationEvent", envelope)
        return
    known = _closed_document()["components"]["schemas"]
    if f"Event_{kind}" not in known:
        raise DriftError(f"the document knows no event {kind!r}: {_HINT}")
    _check_schema(f"event {kind}", f"#/components/schemas/Event_{kind}", envelope)


@cache
def template_of(path: str) -> str | None:
    """The path of the document that a request's path belongs to; further slashes in front count for nothing."""
    path = f"/{path.lstrip('/')}"
    for template in sorted(_paths(), key=lambda each: each.count("{")):
        pattern = re.sub(r"\\{(\w+)\\}", lambda name: ".+" if name[1] == "cwd" else "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path):
            return template
    return None


def _check_failure(where: str, status: int, code: str, headers: Mapping[str, str]) -> None:
    failure = FAILURES[code]
    if failure.status != status:
        raise DriftError(f"{where} with code {code}, whose status is {failure.status}")
    if failure.retry_after != ("retry-after" in headers):
        raise DriftError(f"{where} with code {code}: the document and Retry-After disagree")


def _check_content(
    where: str, response: dict[str, Any], headers: Mapping[str, str], told: object, body: bytes | None
) -> None:
    kind = _kind(headers)
    missing = [
        name
        for name, header in response.get("headers", {}).items()
        if header.get("required") and name.lower() not in headers
    ]
    if missing:
        raise DriftError(f"{where} without {', '.join(missing)}")
    content = response.get("content")
    if content is None:
        if body:
            raise DriftError(f"{where} with a body, which the document does not know: {_HINT}")
        return
    if body is None:
        return
    media = next((content[each] for each in content if each.partition(";")[0] in {kind, "*/*"}), None)
    if media is None:
        raise DriftError(f"{where} as {kind!r}, and the document has {list(content)}: {_HINT}")
    if kind == "application/json" and media["schema"]:
        _check_schema(where, json.dumps(media["schema"]), told)


def _check_schema(where: str, schema: str, value: object) -> None:
    error = next(_validator(schema).iter_errors(value), None)
    if error is not None:
        path = "/".join(str(part) for part in error.instance_path)
        raise DriftError(f"{where}: at /{path}: {error.message[:500]}: {_HINT}")


@cache
def _validator(schema: str) -> jsonschema_rs.Draft202012Validator:
    """Of a reference, or of a schema as JSON."""
    told = {"$ref": schema} if schema.startswith("#") else json.loads(schema)
    return jsonschema_rs.Draft202012Validator({**told, "components": _closed_document()["components"]})


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return NO_JSON


def _kind(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip()


def _error_schema(code: object) -> str:
    if not isinstance(code, str) or code not in FAILURES:
        return json.dumps({"not": {}})
    return f"#/components/schemas/Error_{code}"


def _resolved(response: dict[str, Any]) -> dict[str, Any]:
    name = response.get("$ref", "").rpartition("/")[2]
    return cast("dict[str, Any]", _closed_document()["components"]["responses"][name] if name else response)


def _paths() -> dict[str, Any]:
    return cast("dict[str, Any]", _closed_document()["paths"])


@cache
def _closed_document() -> dict[str, Any]:
    return cast("dict[str, Any]", _closed(document(with_token=False)))


def _closed(value: Any) -> Any:
    if isinstance(value, list):
        return [_closed(each) for each in value]
    if not isinstance(value, dict):
        return value
    told = {name: _closed(each) for name, each in value.items()}
    if told.get("type") == "object" and "properties" in told:
        told.setdefault("additionalProperties", False)
    return told
