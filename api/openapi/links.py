"""What one answer is good for: links from what makes a session or a prompt to the routes that take its id. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from .operations import PROMPT_ID, SESSION_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .operations import Operation
    from .shapes import Schema

_MAKERS: Final = {"createSession": "200", "branchSession": "201"}
_PROMPT: Final = "prompt"
_SESSION_OF_ANSWER: Final = "$response.body#/sessionId"
_CLIENT_OF_ANSWER: Final = "$response.body#/clientId"


def add_links(operations: Iterable[Operation], paths: Mapping[str, Schema]) -> None:
    """Adds them to the answers of the document's paths."""
    by_id = {operation.id: operation for operation in operations}
    for maker, status in _MAKERS.items():
        for operation in by_id.values():
            if SESSION_ID in operation.parameters and PROMPT_ID not in operation.parameters:
                values: Schema = {"session_id": _SESSION_OF_ANSWER}
                if operation.client_id:
                    values["X-Qwen-Client-Id"] = _CLIENT_OF_ANSWER
                _link(paths, by_id[maker], status, operation, values)
    for operation in by_id.values():
        if PROMPT_ID in operation.parameters:
            same: Schema = {"session_id": "$request.path.session_id", "prompt_id": "$response.body#/promptId"}
            _link(paths, by_id[_PROMPT], "202", operation, same)


def _link(paths: Mapping[str, Schema], source: Operation, status: str, target: Operation, values: Schema) -> None:
    told = cast("Schema", paths[source.path][source.method.lower()])
    answer = cast("Schema", cast("Schema", told["responses"])[status])
    links = cast("Schema", answer.setdefault("links", {}))
    links[target.id] = {"operationId": target.id, "parameters": values}
