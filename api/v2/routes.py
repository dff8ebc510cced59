"""What every caller may read: metadata, configuration, readiness, statistics, the repository index (A6).

Each answer is Triton's own, asked for at once and passed on; see `governor.reads` for its bounds. Only models that
are configured here exist, under their public names.
"""

from __future__ import annotations

from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Final

from quart import Blueprint, Response, request

from governor.errors import BackendProtocolError, InvalidRequestError
from governor.triton.jsons import parse_json
from governor.triton.nesting import find_fatal_nesting
from governor.triton.wire import WireRequest

from ..context import this_app
from ..errors import JSON, RouteNotFoundError, empty_response, json_response
from ..health import readiness
from .models import ask_about, find, forwarded, handed_on
from .names import entries_renamed, index_body, index_entries, statistics_body, statistics_entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.backend import Backend
    from governor.errors import JsonValue
    from governor.service import Governor

blueprint = Blueprint("triton", __name__)

_OPERATORS_EXTENSIONS: Final = frozenset(
    {"system_shared_memory", "cuda_shared_memory", "trace", "logging", "model_repository(unload_dependents)"}
)
"""Extensions whose routes are closed without an admin token."""


@blueprint.get("/v2/health/live")
async def live() -> Response:
    """Triton's liveness route, answered by the governor for itself."""
    return empty_response(200)


@blueprint.get("/v2/health/ready")
async def ready() -> Response:
    """Triton's readiness route: as `/readyz`."""
    is_ready, body = readiness(this_app().governor)
    if is_ready:
        return empty_response(200)
    return json_response({"error": "no model can be used; GET /readyz says why", "code": "not_ready", **body}, 503)


@blueprint.get("/v2")
async def server() -> Response:
    """The server's metadata: Triton's own where there is one, else what all of them have in common."""
    governor = this_app().governor
    documents: list[dict[str, JsonValue]] = []
    for backend in governor.backends.values():
        reply = await backend.reads.ask(WireRequest(method="GET", path="/v2", headers=forwarded(backend)))
        if reply.status != 200:
            return handed_on(reply)
        documents.append(_server_document(reply.body))
    extensions = _common_extensions(documents)
    if governor.config.tokens.admin is None:
        extensions = [each for each in extensions if each not in _OPERATORS_EXTENSIONS]
    own: dict[str, JsonValue] = {"name": "triton-governor", "version": version_of("triton-governor")}
    return json_response({**(documents[0] if len(documents) == 1 else own), "extensions": [*extensions]})


@blueprint.get("/v2/models/<model>")
@blueprint.get("/v2/models/<model>/versions/<model_version>")
async def metadata(model: str, model_version: str | None = None) -> Response:
    """The model's metadata."""
    return await _about(model, model_version)


@blueprint.get("/v2/models/<model>/config")
@blueprint.get("/v2/models/<model>/versions/<model_version>/config")
async def configuration(model: str, model_version: str | None = None) -> Response:
    """The model's configuration."""
    return await _about(model, model_version, "config")


@blueprint.get("/v2/models/<model>/ready")
@blueprint.get("/v2/models/<model>/versions/<model_version>/ready")
async def model_ready(model: str, model_version: str | None = None) -> Response:
    """Whether Triton says that the model, or one version of it, can serve."""
    return await _about(model, model_version, "ready")


@blueprint.get("/v2/models/<model>/stats")
@blueprint.get("/v2/models/<model>/versions/<model_version>/stats")
async def model_statistics(model: str, model_version: str | None = None) -> Response:
    """The model's statistics, of all versions unless one is named."""
    response = await _about(model, model_version, "stats")
    triton = find(this_app().governor, model).config.triton_model
    if response.status_code == 200 and triton != model:
        entries = statistics_entries(await response.get_data(as_text=False))
        response.set_data(statistics_body(entries_renamed(entries, {triton: [model]})))
    return response


@blueprint.get("/v2/models/stats")
async def statistics() -> Response:
    """The statistics of all models that are configured here."""
    return await _of_all("GET", "/v2/models/stats", b"", statistics_entries, statistics_body)


@blueprint.post("/v2/repository/index")
async def index() -> Response:
    """The repository index, of the models that are configured here."""
    body = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    fault = find_fatal_nesting(body)
    if fault is not None:
        raise InvalidRequestError(fault.sentence)
    return await _of_all("POST", "/v2/repository/index", body, index_entries, index_body)


async def _about(model: str, model_version: str | None, *what: str) -> Response:
    if model_version is not None and not (model_version.isascii() and model_version.isdigit()):
        raise RouteNotFoundError  # as Triton's own routes, which know versions of digits only
    return await ask_about(find(this_app().governor, model), model, model_version, *what)


async def _of_all(
    method: str,
    path: str,
    body: bytes,
    entries_of: Callable[[bytes], list[JsonValue]],
    body_of: Callable[[list[JsonValue]], bytes],
) -> Response:
    """One answer from those of all backends; the first that is no success is passed on instead."""
    governor = this_app().governor
    found: list[JsonValue] = []
    for backend in governor.backends.values():
        headers = (*((("Content-Type", JSON),) if body else ()), *forwarded(backend))
        reply = await backend.reads.ask(WireRequest(method=method, path=path, headers=headers, body=body))
        if reply.status != 200:
            return handed_on(reply)
        found += entries_renamed(entries_of(reply.body), _public_names(governor, backend))
    return Response(body_of(found), content_type=JSON)


def _public_names(governor: Governor, backend: Backend) -> dict[str, list[str]]:
    """The public names of each model of a backend, by Triton's name of it."""
    names: dict[str, list[str]] = {}
    for public, served in governor.models.items():
        if served.backend is backend:
            names.setdefault(served.config.triton_model, []).append(public)
    return names


def _server_document(body: bytes) -> dict[str, JsonValue]:
    try:
        document = parse_json(body)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("extensions"), list):
        raise BackendProtocolError('The backend answered /v2 without "extensions"; is it a Triton server?')
    return document


def _common_extensions(documents: list[dict[str, JsonValue]]) -> list[str]:
    """The extensions that all have, in the order of the first."""
    lists = [_strings(document["extensions"]) for document in documents]
    return [each for each in lists[0] if all(each in others for others in lists)]


def _strings(value: JsonValue) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
