"""What only an operator may do of Triton's `/v2`: model control, trace and log settings, shared memory (A6).

A caller that could load a model, or hand Triton memory of its own, could harm every other one. The operator's token
(`tokens.admin`) opens these routes; without one they are closed to everybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quart import Blueprint, Response, request

from governor.audit import Actor
from governor.errors import CallerError
from governor.modelcontrol import ModelControl, SeveralBackendsError

from ..auth import is_operator
from ..context import this_app
from .models import find, forwarded, handed_on

if TYPE_CHECKING:
    from governor.backend import Backend

blueprint = Blueprint("triton_control", __name__)


class OperatorsOnlyError(CallerError):
    """The route exists, but not for ordinary callers."""

    code = "operators_only"
    status = 403

    def __init__(self) -> None:
        super().__init__(
            "Model control, trace and log settings and shared memory are closed to all but operators; send tokens.admin"
            " of the governor's configuration as the bearer token, or ask Triton at its own address"
        )


@blueprint.before_request
async def check_operator() -> None:
    """The gate has looked at the token."""
    if not is_operator(request.scope):
        raise OperatorsOnlyError


@blueprint.post("/v2/repository/models/<model>/load")
async def load(model: str) -> Response:
    """Has a model loaded."""
    return await _load(model, unload=False)


@blueprint.post("/v2/repository/models/<model>/unload")
async def unload(model: str) -> Response:
    """Has a model unloaded."""
    return await _load(model, unload=True)


@blueprint.route("/v2/models/<model>/trace/setting", methods=["GET", "POST"])
async def trace_of_a_model(model: str) -> Response:
    """Shows or changes how a model is traced."""
    served = find(this_app().governor, model)
    backend, name = served.backend, served.config.triton_model
    body, headers = await _body(), forwarded(backend)
    return handed_on(await _control().trace_settings(backend, name, _method(), body, headers, _actor()))


@blueprint.route("/v2/trace/setting", methods=["GET", "POST"])
async def trace() -> Response:
    """Shows or changes how all models are traced."""
    backend = _only_backend()
    body, headers = await _body(), forwarded(backend)
    return handed_on(await _control().trace_settings(backend, None, _method(), body, headers, _actor()))


@blueprint.route("/v2/logging", methods=["GET", "POST"])
@blueprint.get("/v2/<memory:memory>/status")
@blueprint.get("/v2/<memory:memory>/region/<region>/status")
@blueprint.post("/v2/<memory:memory>/unregister")
@blueprint.post("/v2/<memory:memory>/region/<region>/register")
@blueprint.post("/v2/<memory:memory>/region/<region>/unregister")
async def settings(memory: str | None = None, region: str | None = None) -> Response:  # noqa: ARG001  # in the path
    """Shows or changes log settings and shared memory."""
    path = request.scope["raw_path"].decode("ascii").partition("?")[0]
    backend = _only_backend()
    body, headers = await _body(), forwarded(backend)
    return handed_on(await _control().settings(backend, _method(), path, body, headers, _actor()))


async def _load(model: str, *, unload: bool) -> Response:
    served = find(this_app().governor, model)
    body, headers = await _body(), forwarded(served.backend)
    return handed_on(await _control().load(served, body, headers, _actor(), unload=unload))


def _control() -> ModelControl:
    return ModelControl(this_app().operations.audit)


def _actor() -> Actor:
    return Actor("admin token", request.remote_addr)


def _method() -> str:
    return "GET" if request.method == "HEAD" else request.method


def _only_backend() -> Backend:
    backends = this_app().governor.backends
    if len(backends) > 1:
        raise SeveralBackendsError(list(backends))
    return next(iter(backends.values()))


async def _body() -> bytes:
    body: bytes = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    return body
