"""Which model a `/v2` request means, and how Triton's answer about it is handed on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quart import Response, request

from governor.errors import UnknownModelError
from governor.triton.wire import WireRequest, model_path

from .names import renamed

if TYPE_CHECKING:
    from governor.backend import Backend
    from governor.reads import Reply
    from governor.service import Governor
    from governor.triton.wire import Headers
    from governor.turn import ServedModel


class UnknownTritonModelError(UnknownModelError):
    """As `UnknownModelError`, beginning with Triton's own words for it, which clients may look for."""

    def __init__(self, model: str, known: list[str]) -> None:
        super().__init__(model, known)
        self.message = f"Request for unknown model: '{model}' is not found; this governor serves: {', '.join(known)}"


def find(governor: Governor, name: str) -> ServedModel:
    """The model of this name; see `Governor.model`.

    Raises:
        UnknownTritonModelError: there is none.
    """
    try:
        return governor.model(name)
    except UnknownModelError:
        raise UnknownTritonModelError(name, list(governor.models)) from None


async def ask_about(served: ServedModel, called: str, version: str | None, *what: str) -> Response:
    """Triton's answer to `GET /v2/models/{model}[/versions/{version}][/{what}]`, under the name the caller used.

    Raises:
        BackendError, ReadQueueFullError: as `Reads.ask`, and when the answer cannot be renamed.
    """
    config = served.config
    path = model_path(config.triton_model, version or config.triton_version, *what)
    wire = WireRequest(method="GET", path=path, headers=forwarded(served.backend))
    reply = await served.backend.reads.ask(wire)
    body = reply.body
    if reply.status == 200 and what in {(), ("config",)}:
        body = renamed(body, called, config.triton_model)
    return handed_on(reply, body)


def forwarded(backend: Backend) -> Headers:
    """The fields of the current request that its operator has Triton get."""
    names = backend.config.forward_headers
    return tuple((name, value) for name, value in request.headers.items(lower=True) if name in names) if names else ()


def handed_on(reply: Reply, body: bytes | None = None) -> Response:
    """Triton's answer as it is, or with another body."""
    response = Response(reply.body if body is None else body, status=reply.status, content_type=reply.content_type)
    if reply.content_type is None:
        del response.headers["Content-Type"]
    return response
