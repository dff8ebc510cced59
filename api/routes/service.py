"""What the governor says about itself: health, readiness, capabilities, metrics."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST
from quart import Blueprint, Response, request

from ..context import this_app
from ..errors import JSON, json_response
from ..features import MODE, PROTOCOL_VERSIONS, features, limits
from ..health import readiness
from ..openapi import document_text
from ..status import daemon_status, deep_health
from ..wire import WORKSPACE_CWD

if TYPE_CHECKING:
    from governor.errors import JsonValue

blueprint = Blueprint("service", __name__)


@blueprint.get("/health")
async def health() -> Response:
    """The process answers; with `deep`, also how much it does."""
    told: dict[str, JsonValue] = {"status": "ok"}
    if request.args.get("deep") in {"1", "true"}:
        governor = this_app().governor
        told |= deep_health(governor, governor.now_ms())
    return json_response(told)


@blueprint.get("/daemon/status")
async def status() -> Response:
    """See `daemon_status`."""
    app = this_app()
    rejected = app.rate_limiter.rejected if app.rate_limiter is not None else None
    full = request.args.get("detail") == "full"
    return json_response(daemon_status(app.governor, app.governor.now_ms(), rejected, app.acp.statistics(), full=full))


@blueprint.get("/healthz")
async def alive() -> Response:
    """The same for orchestrators: never red for a backend's fault, so that none restarts the governor for it."""
    return json_response({"status": "ok"})


@blueprint.get("/readyz")
async def ready() -> Response:
    """See `readiness`."""
    is_ready, body = readiness(this_app().governor)
    return json_response(body, 200 if is_ready else 503)


@blueprint.get("/metrics")
async def metrics() -> Response:
    """See `GovernorCollector`."""
    return Response(this_app().collector.exposition(), content_type=CONTENT_TYPE_LATEST)


@blueprint.get("/capabilities")
async def capabilities() -> Response:
    """What a client may rely on (A3)."""
    config = this_app().governor.config
    services: list[JsonValue] = [{"id": model.name, "kind": model.kind} for model in config.models]
    return json_response(
        {
            "v": 1,
            "protocolVersions": PROTOCOL_VERSIONS,
            "governorVersion": version("triton-governor"),
            "mode": MODE,
            "features": features(config),
            "modelServices": services,
            "workspaceCwd": WORKSPACE_CWD,
            "transports": ["rest"],
            "limits": limits(config),
        }
    )


@blueprint.get("/openapi.json")
async def openapi() -> Response:
    """What this service answers, for programs (A9). It needs the token, as everything that is no probe does."""
    text = document_text(with_token=this_app().governor.config.tokens.api is not None)
    return Response(text, content_type=JSON)
