"""The operator's routes: `/admin`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from api.admin.decode import DRAIN_MS_MAX, OPERATOR_CHARS_MAX, REASON_CHARS_MAX

from .admin_schemas import IDENTITY_ID
from .operations import Answer, Operation, Parameter
from .shapes import count, flag, record, ref, table, text

if TYPE_CHECKING:
    from .shapes import Schema

_TAG: Final = "admin"
_IDENTITY: Final = Parameter("identity_id", "path", IDENTITY_ID, "Id of the identity.")
_CLAIM: Final = Parameter("claim_id", "path", count(minimum=1), "Id of the claim.")
_WHY: Final[dict[str, Schema]] = {
    "reason": text("Why; the audit log keeps it.", minLength=1, maxLength=REASON_CHARS_MAX),
}
_WHO: Final[dict[str, Schema]] = {
    "operator": text("Who says so; not checked, the audit log keeps it.", maxLength=OPERATOR_CHARS_MAX),
}
_EPOCH: Final = count("The epoch that was seen; in another one nothing is done.")
_ACT: Final = ("invalid_field", "invalid_reason", "unknown_identity", "epoch_changed")


def _operation(
    method: str,
    path: str,
    id_: str,
    summary: str,
    answers: tuple[Answer, ...],
    parameters: tuple[Parameter, ...] = (),
    *,
    body: Schema | None = None,
    errors: tuple[str, ...] = (),
) -> Operation:
    # Without a token of operators there is no such route.
    errors = (*errors, "not_found", *(("audit_unavailable",) if method == "POST" else ()))
    return Operation(
        method, f"/admin{path}", id_, _TAG, summary, answers, parameters, body=body, errors=errors, token=_TAG
    )


def _refused(status: int) -> Answer:
    return Answer(status, "Of several, all were refused; this is the first one's status.", ref("AdminRestart"))


OPERATIONS: Final = (
    _operation(
        "GET",
        "/identities",
        "adminIdentities",
        "Credits, claims, readings and queues of every identity",
        (Answer(200, "A page of them.", ref("AdminState")),),
        (
            Parameter("size", "query", count(minimum=1, maximum=1000, default=100), "Identities of the page."),
            Parameter("after", "query", text(), "The last id of the page before."),
        ),
        errors=("invalid_field",),
    ),
    _operation(
        "GET",
        "/identities/{identity_id}",
        "adminIdentity",
        "One identity",
        (Answer(200, "With its oldest claims.", ref("AdminOneIdentity")),),
        (_IDENTITY, Parameter("claims", "query", count(maximum=1024, default=64), "How many claims.")),
        errors=("invalid_field", "unknown_identity"),
    ),
    _operation(
        "GET",
        "/events",
        "adminEvents",
        "The state and what happens, live",
        (
            Answer(
                200,
                "Frames `state`, as the list of identities, and `recent`.",
                {"anyOf": [ref("AdminState"), ref("AdminRecent")]},
                "text/event-stream",
            ),
        ),
        (Parameter("Last-Event-ID", "header", count(), "The newest recent event that is known already."),),
        errors=("subscriber_limit_exceeded",),
    ),
    _operation(
        "POST",
        "/restart",
        "adminRestart",
        "Forget the broken claims of one identity or of all",
        (
            Answer(200, "At least one was restarted.", ref("AdminRestart")),
            _refused(409),
            _refused(503),
        ),
        body=record(
            {"identity": text("An id, or `all`."), **_WHY},
            {
                **_WHO,
                "drainMs": count("Wait so long for the running calls first.", maximum=DRAIN_MS_MAX),
                "expectedEpoch": _EPOCH,
                "expectedEpochs": table(_EPOCH, "The same by identity id."),
            },
        ),
        errors=(*_ACT, "operation_in_progress", "backend_unavailable", "baseline_unavailable"),
    ),
    _operation(
        "POST",
        "/identities/{identity_id}/claims/{claim_id}/release",
        "adminRelease",
        "Forget one broken claim",
        (Answer(200, "It was released without proof.", ref("AdminRelease")),),
        (_IDENTITY, _CLAIM),
        body=record(_WHY, {**_WHO, "expectedEpoch": _EPOCH}),
        errors=(*_ACT, "unknown_claim", "claim_open"),
    ),
    *(
        _operation(
            "POST",
            f"/{act}",
            f"admin{act.capitalize()}",
            summary,
            (Answer(200, "It is so now.", ref("AdminEntrance")),),
            body=record(optional={**_WHY, **_WHO}),
            errors=("invalid_field", "invalid_reason", "daemon_draining"),
        )
        for act, summary in (("drain", "Accept nothing new"), ("undrain", "Accept new work again"))
    ),
    _operation(
        "POST",
        "/reload",
        "adminReload",
        "Read the configuration again and put it in force",
        (Answer(200, "It is in force, or would be.", ref("AdminReload")),),
        body=record(optional={**_WHY, **_WHO, "dryRun": flag("Tell only what would be done.")}),
        errors=(
            "invalid_field",
            "invalid_reason",
            "daemon_draining",
            "operation_in_progress",
            "config_invalid",
            "reload_needs_restart",
            "reload_not_possible",
            "identity_owned",
            "ownership_unavailable",
        ),
    ),
    _operation(
        "GET",
        "/audit",
        "adminAudit",
        "Who did what, and why",
        (Answer(200, "A page of acts.", ref("AdminAudit")),),
        (
            Parameter("size", "query", count(minimum=1, maximum=1000, default=100), "Acts of the page."),
            Parameter("before", "query", count(minimum=1), "The last id of the page before."),
        ),
        errors=("invalid_field",),
    ),
)
