"""What only an operator may do of Triton's `/v2`: model control, trace and log settings, shared memory (A6).

A caller that could load a model, or hand Triton memory of its own, could harm every other one.
"""

from __future__ import annotations

from typing import NoReturn

from quart import Blueprint

from governor.errors import CallerError

blueprint = Blueprint("triton_control", __name__)


class OperatorsOnlyError(CallerError):
    """The route exists, but not for ordinary callers."""

    code = "operators_only"
    status = 403

    def __init__(self) -> None:
        super().__init__(
            "Model control, trace and log settings and shared memory are closed here; ask Triton at its own address"
        )


@blueprint.post("/v2/repository/models/<model>/load")
@blueprint.post("/v2/repository/models/<model>/unload")
@blueprint.route("/v2/models/<model>/trace/setting", methods=["GET", "POST"])
async def of_a_model(model: str) -> NoReturn:  # noqa: ARG001  # closed for every model
    """Loads or unloads a model, or changes how it is traced."""
    raise OperatorsOnlyError


@blueprint.route("/v2/logging", methods=["GET", "POST"])
@blueprint.route("/v2/trace/setting", methods=["GET", "POST"])
async def of_the_server() -> NoReturn:
    """Shows or changes settings of the server."""
    raise OperatorsOnlyError


@blueprint.get("/v2/<memory:memory>/status")
@blueprint.get("/v2/<memory:memory>/region/<region>/status")
@blueprint.post("/v2/<memory:memory>/unregister")
@blueprint.post("/v2/<memory:memory>/region/<region>/register")
@blueprint.post("/v2/<memory:memory>/region/<region>/unregister")
async def of_memory(memory: str, region: str | None = None) -> NoReturn:  # noqa: ARG001  # closed for every region
    """Shows, registers or forgets shared memory."""
    raise OperatorsOnlyError
