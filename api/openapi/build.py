"""Puts the document together. Pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, cast

from .failures import FAILURES, phrase
from .links import add_links
from .operations import CLIENT_ID, JSON
from .schemas import SCHEMAS
from .shapes import Schema, const, count, record, ref, text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.errors import JsonValue

    from .operations import Answer, Operation, Parameter

OPENAPI: Final = "3.1.1"
ABOUT: Final = (
    "A gateway for NVIDIA Triton. Sessions and prompts as `qwen serve` has them; docs/protocol.md tells what happens in"
    " which order. Every `GET` route answers `HEAD` as well, without the body. A path that is not here is"
    " `404 not_found`, another method of one that is `405 method_not_allowed`. Answers may have more fields than are"
    " named here. The schema of an event stream is that of one event."
)
TOKENS: Final[dict[str, str]] = {
    "bearer": "`tokens.api` of the configuration.",
    "admin": "`tokens.admin` of the configuration.",
}
"""The schemes of tokens, and what each is."""
EVENT_STREAM: Final = "text/event-stream"
_COMMON: Final = "#/components/responses/"


def build(operations: Iterable[Operation], *, version: str, tags: dict[str, str], with_token: bool) -> Schema:
    """The OpenAPI document of these routes.

    Args:
        operations: the routes.
        version: of the governor.
        tags: the groups of routes and what they are, in order.
        with_token: the configuration asks for a token.
    """
    paths: defaultdict[str, Schema] = defaultdict(dict)
    operations = tuple(operations)
    for operation in operations:
        paths[operation.path][operation.method.lower()] = _operation(operation, with_token=with_token)
    add_links(operations, paths)
    schemas: dict[str, Schema] = {**SCHEMAS, **{_error(code): FAILURES[code].schema for code in FAILURES}}
    document: Schema = {
        "openapi": OPENAPI,
        "info": {
            "title": "The governor",
            "version": version,
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": meaning} for name, meaning in tags.items()],
        "paths": cast("JsonValue", dict(paths)),
        "components": {
            "schemas": cast("JsonValue", schemas),
            "responses": cast("JsonValue", _share_responses(paths)),
            "securitySchemes": {
                name: {"type": "http", "scheme": "bearer", "description": meaning} for name, meaning in TOKENS.items()
            },
        },
    }
    return document


def _operation(operation: Operation, *, with_token: bool) -> Schema:
    told: Schema = {"operationId": operation.id, "tags": [operation.tag], "summary": operation.summary}
    if operation.description:
        told["description"] = operation.description
    parameters = [*operation.parameters, *((CLIENT_ID,) if operation.client_id else ())]
    if parameters:
        told["parameters"] = [_parameter(parameter) for parameter in parameters]
    if operation.body is not None:
        required = bool(operation.body.get("required"))
        told["requestBody"] = {"required": required, "content": {JSON: {"schema": operation.body}}}
    elif operation.raw_body is not None:
        content_type, schema = operation.raw_body
        told["requestBody"] = {"required": True, "content": {content_type: {"schema": schema}}}
    told["responses"] = _responses(operation)
    told["security"] = _security(operation, with_token=with_token)
    return told


def _security(operation: Operation, *, with_token: bool) -> JsonValue:
    if operation.token is None or operation.is_public:
        return []
    needed: JsonValue = {operation.token: []}
    if operation.token == "bearer" and (operation.may_be_public or not with_token):  # noqa: S105  # a scheme's name
        return [needed, {}]
    return [needed]


def _parameter(parameter: Parameter) -> Schema:
    told: Schema = {"name": parameter.name, "in": parameter.place, "description": parameter.meaning}
    if parameter.place == "path":
        told["required"] = True
    return {**told, "schema": parameter.schema}


def _responses(operation: Operation) -> Schema:
    """By status: the good answers, and every error that has this status."""
    by_status: defaultdict[int, list[str]] = defaultdict(list)
    for code in operation.codes():
        by_status[FAILURES[code].status].append(code)
    answers = {answer.status: answer for answer in operation.answers}
    told: Schema = {}
    for status in sorted({*by_status, *answers}):
        told[str(status)] = _response(status, answers.get(status), by_status[status], anything=operation.passes_on)
    if operation.passes_on:
        told["default"] = {"description": "Whatever else the backend answers.", "content": {"*/*": {"schema": {}}}}
    return told


def _response(status: int, answer: Answer | None, codes: list[str], *, anything: bool) -> Schema:
    meanings = [answer.meaning] if answer is not None else []
    meanings += [f"`{code}`" for code in codes]
    told: Schema = {"description": f"{phrase(status)}: {', '.join(meanings)}" if codes else meanings[0]}
    headers: Schema = {}
    content: dict[str, Schema] = {}
    if answer is not None:
        headers |= {
            name: {"description": meaning, "required": True, "schema": {"type": "string"}}
            for name, meaning in answer.headers.items()
        }
        if answer.schema is not None:
            content[answer.content_type] = _media(answer)
    if codes:
        errors = [ref(_error(code)) for code in codes]
        good = content.get(JSON, {}).get("schema")
        if good is not None:
            errors.insert(0, cast("Schema", good))
        if anything:
            errors.append({"description": "The backend's own."})
            content["*/*"] = {"schema": {}}
        content[JSON] = {"schema": _either(errors)}
        headers |= _error_headers(codes)
    if headers:
        told["headers"] = headers
    if content:
        told["content"] = cast("JsonValue", content)
    return told


def _media(answer: Answer) -> Schema:
    """Of an event stream, the schema is that of each event, as OpenAPI before 3.2 has no other place for it."""
    if answer.content_type == EVENT_STREAM:
        data: Schema = {"type": "string", "contentMediaType": JSON, "contentSchema": answer.schema}
        frame = record({"data": data}, {"id": text(pattern="^[0-9]+$"), "event": text(), "retry": const("3000")})
        return {"schema": frame}
    return {"schema": answer.schema}


def _either(schemas: list[Schema]) -> Schema:
    if len(schemas) == 1:
        return schemas[0]
    return {"anyOf": [*schemas]}


def _error_headers(codes: list[str]) -> Schema:
    headers: Schema = {}
    if any(FAILURES[code].retry_after for code in codes):
        every = all(FAILURES[code].retry_after for code in codes)
        headers["Retry-After"] = {
            "description": "Seconds after which the same request may succeed.",
            "schema": count(minimum=1),
            "required": every,
        }
    if "rate_limit_exceeded" in codes:
        for name in ("Limit", "Remaining", "Reset"):
            headers[f"X-RateLimit-{name}"] = {"description": "Of a rate limit.", "schema": count()}
    if "unauthorized" in codes:
        headers["WWW-Authenticate"] = {"description": "`Bearer`.", "schema": {"type": "string"}}
    return headers


def _error(code: str) -> str:
    """Name of the schema of an error."""
    return "Error_" + code


def _share_responses(paths: defaultdict[str, Schema]) -> Schema:
    """Takes out the answers that several routes have, so that each is there once; returns them by name."""
    operations = [cast("Schema", operation) for path in paths.values() for operation in path.values()]
    answers = [cast("Schema", operation["responses"]) for operation in operations]
    found = Counter(_key(status, told) for each in answers for status, told in each.items())
    names: dict[str, str] = {}
    shared: Schema = {}
    of_status: Counter[str] = Counter()
    for each in answers:
        for status, told in each.items():
            key = _key(status, told)
            if found[key] < 2:
                continue
            if key not in names:
                of_status[status] += 1
                names[key] = f"Answer{status}" + (f"_{of_status[status]}" if of_status[status] > 1 else "")
                shared[names[key]] = told
            each[status] = {"$ref": _COMMON + names[key]}
    return shared


def _key(status: str, told: JsonValue) -> str:
    return status + json.dumps(told, sort_keys=True)
