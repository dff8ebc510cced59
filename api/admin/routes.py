"""The operator's routes. The gate in front of them has checked the token (`api.auth`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quart import Blueprint, Response, request

from governor.audit import Actor
from governor.errors import GovernorError
from governor.operations import RestartOrder

from ..auth import is_operator
from ..context import this_app
from ..errors import UnauthorizedError, UnsupportedEncodingError, error_response, json_response
from ..guard import after_response
from ..sse import STREAM_HEAD
from .decode import (
    ALL,
    decode_audit,
    decode_body,
    decode_claim_id,
    decode_claims_max,
    decode_list,
    decode_release,
    decode_reload,
    decode_restart,
    decode_why,
)
from .ids import find_key
from .stream import FeedBody
from .views import forgotten_claim, identity_view, leaving, restart_result, state, work_left

if TYPE_CHECKING:
    from governor.errors import JsonValue

    from ..views import View
    from .decode import Body

blueprint = Blueprint("admin", __name__, url_prefix="/admin")


@blueprint.before_request
async def check_operator() -> None:
    """The gate decides; should it ever take a path for another than the routes do, nothing opens by it."""
    if not is_operator(request.scope):
        raise UnauthorizedError


@blueprint.get("/identities")
async def identities() -> Response:
    """See `state`."""
    size, after = decode_list(request.args.get("size"), request.args.get("after"))
    return json_response(state(this_app().governor, size=size, after=after))


@blueprint.get("/identities/<identity_id>")
async def one_identity(identity_id: str) -> Response:
    """See `identity_view`."""
    governor = this_app().governor
    claims_max = decode_claims_max(request.args.get("claims"))
    identity = governor.identities[find_key(governor.identities, identity_id)]
    told: dict[str, JsonValue] = {"atMs": governor.now_ms()}
    return json_response(told | identity_view(governor, identity, claims_max=claims_max))


@blueprint.post("/restart")
async def restart() -> Response:
    """Forces a restart of one identity or all (E11)."""
    app = this_app()
    wanted = decode_restart(await _body())
    known = app.governor.identities
    order = RestartOrder(
        reason=wanted.reason,
        keys=None if wanted.identity == ALL else [find_key(known, wanted.identity)],
        drain_ms=wanted.drain_ms,
        expected_epochs={find_key(known, name): epoch for name, epoch in wanted.expected_epochs.items()},
    )
    results = await app.operations.restart(order, _actor(wanted.operator))
    errors = [result.outcome for result in results if isinstance(result.outcome, GovernorError)]
    if wanted.identity != ALL and errors:
        return error_response(errors[0])
    told: dict[str, JsonValue] = {
        "restarted": len(results) - len(errors),
        "refused": len(errors),
        "results": [restart_result(result) for result in results],
    }
    if not errors or len(errors) < len(results):
        return json_response(told)
    # Of several that were all refused the first one's reason stands for the whole.
    response = json_response(told, errors[0].status)
    if errors[0].retry_after_s is not None:
        response.headers["Retry-After"] = str(errors[0].retry_after_s)
    return response


@blueprint.post("/identities/<identity_id>/claims/<claim_id>/release")
async def release(identity_id: str, claim_id: str) -> Response:
    """Releases one broken claim without proof (E11)."""
    app = this_app()
    reason, operator, expected_epoch = decode_release(await _body())
    key = find_key(app.governor.identities, identity_id)
    wanted = decode_claim_id(claim_id)
    claim = app.operations.release(key, wanted, reason=reason, actor=_actor(operator), expected_epoch=expected_epoch)
    free = app.governor.identities[key].statistics().ledger.free
    return json_response({"identity": identity_id, "released": forgotten_claim(claim), "freeSlots": max(0, free)})


@blueprint.post("/drain")
async def drain() -> Response:
    """Lets in nothing new until `undrain`."""
    reason, operator = decode_why(await _body())
    return json_response(_entrance(changed=this_app().operations.drain(reason, _actor(operator))))


@blueprint.post("/undrain")
async def undrain() -> Response:
    """Lets new work in again."""
    reason, operator = decode_why(await _body())
    return json_response(_entrance(changed=this_app().operations.undrain(reason, _actor(operator))))


@blueprint.post("/reload")
async def reload() -> Response:
    """Reads the configuration again and puts it in force, whole or not at all."""
    app = this_app()
    reason, operator, dry_run = decode_reload(await _body())
    plan = await app.operations.reload(reason, _actor(operator), dry_run=dry_run)
    return json_response({"dryRun": dry_run, **plan.told(), "leaving": leaving(app.governor)})


@blueprint.get("/audit")
async def audit() -> Response:
    """The operator's acts, the newest first."""
    size, before = decode_audit(request.args.get("size"), request.args.get("before"))
    entries = this_app().operations.audit.before(before, size)
    told: dict[str, JsonValue] = {"entries": [entry.json() for entry in entries]}
    if len(entries) == size:
        told["nextBefore"] = entries[-1].id
    return json_response(told)


@blueprint.get("/events")
async def events() -> Response:
    """The state and what happens, live (`stream`)."""
    if request.method == "HEAD":
        shown = Response(b"", headers=STREAM_HEAD)
        del shown.headers["Content-Length"]
        return shown
    app = this_app()
    last_id = request.headers.get("Last-Event-ID", "")
    known = int(last_id) if last_id.isascii() and last_id.isdigit() and len(last_id) <= 15 else 0
    body = FeedBody(app.admin_feed, heartbeat_s=app.governor.config.limits.heartbeat_interval_ms / 1000, after_id=known)
    after_response(request.scope, body.close)
    response = Response(body, headers=STREAM_HEAD)
    response.timeout = None
    return response


async def _body() -> Body:
    content = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise UnsupportedEncodingError
    return decode_body(request.headers.get("Content-Type"), content)


def _entrance(*, changed: bool) -> View:
    """The answer to a drain or its end: what is still to end by itself."""
    return {"changed": changed, **work_left(this_app().governor)}


def _actor(operator: str | None) -> Actor:
    return Actor("admin token", request.remote_addr, operator)
