"""The bodies of the operator's answers, as schemas of the document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .shapes import array, const, count, flag, nullable, one_of, record, ref, table, text, unix_ms

if TYPE_CHECKING:
    from .shapes import Schema

_STATES: Final = ("running", "timed_out", "reconciling", "awaiting_baseline", "quarantined")
_BY_STATE: Final = record({state: count() for state in _STATES})
_AGE: Final = nullable(count("Milliseconds before `atMs`."))
IDENTITY_ID: Final = text("`BACKEND:MODEL`; docs/admin.md says how it is spelt.")
_NOTE: Final[dict[str, Schema]] = {
    "epoch": nullable(count("The epoch that it was sent in.")),
    "kind": one_of("infer", "generate", "generate_stream"),
    "serves": record(
        optional={"sessionId": text(), "promptId": text(), "caller": text("Of a call that is no prompt's.")},
        description="Whom it is made for.",
    ),
    "broke": nullable(text("Why its connection is gone.")),
    "quarantined": nullable(text("Why no counter can prove its end any more.")),
}
_CLAIM: Final = record(
    {
        "id": count(minimum=1),
        "state": one_of(*_STATES),
        "releasable": flag("Its connection is gone."),
        "ageMs": count(),
        "delivered": flag("Its request has left completely."),
        "deliveredAgeMs": _AGE,
        "boot": nullable(text("The backend's process that it went to.")),
    },
    _NOTE,
)
_FORGOTTEN: Final = record({"id": count(minimum=1), "state": one_of(*_STATES[2:]), "ageMs": count()}, _NOTE)
_COUNTS: Final = record({"success": count(), "fail": count()})
_WITNESS: Final = record(
    {"bound": count("What it shows once nothing of ours is left."), "highest": count("The most it has shown.")}
)
_READING: Final = record(
    {
        "ageMs": count(),
        "model": _COUNTS,
        "process": nullable(_COUNTS),
        "boot": nullable(text()),
        "versions": array(text()),
    }
)
_COUNTED_SESSIONS: Final[dict[str, Schema]] = {"live": count(), "pendingPrompts": count(), "activePrompts": count()}
_SESSIONS: Final = record(_COUNTED_SESSIONS)
_QUEUES: Final = array(
    record({"sessionId": text(), "pendingPrompts": count(minimum=1), "active": flag("One of them is being answered.")}),
    "Those with the most pending prompts.",
)
_CALLERS: Final = array(
    record(
        {"waiting": count(minimum=1), "oldestAgeMs": count()},
        {"sessionId": text(), "caller": text("Of calls that are no prompt's.")},
    ),
    "Those with the most waiting calls.",
)
_FACTS: Final = record(
    {
        "decoupled": flag(),
        "ensemble": flag(),
        "warmsUp": flag(),
        "instances": count(),
        "maxBatchSize": count(),
        "versions": array(text()),
    }
)
_COUNTED: Final = (
    "calls", "answered", "undelivered", "broken", "abandoned", "refused", "readingsFailed", "provenQuiet",
    "provenProcessEnded", "releasedUnproven", "baselineMissing", "restarts", "reloads", "unknownFalls", "contested",
)  # fmt: skip
_TOTALS: Final = record({name: count() for name in _COUNTED}, description="Since the governor started; they only grow.")
_IDENTITY: Final[dict[str, Schema]] = {
    "id": IDENTITY_ID,
    "backend": text(),
    "model": text("Triton's name of it."),
    "leaving": flag("No model has it any more; it ends when nothing of it is left."),
    "names": array(text(), "The public names that share its slots."),
    "usable": flag("A call can achieve something now."),
    "problem": nullable(text("Why not.")),
    "remarks": array(text(), "What else is out of the ordinary, each in one sentence."),
    "credits": record({"slots": count(), "free": count(), "held": count("Over `slots` while slots were taken away.")}),
    "handsOutCredits": flag("False while a forced restart waits for the running calls."),
    "states": _BY_STATE,
    "claimsTotal": count(),
    "claims": array(_CLAIM, "The oldest ones."),
    "epoch": count("0 before the first baseline."),
    "boot": nullable(text("Identity of the backend's process, where known.")),
    "hasBaseline": flag(),
    "witnesses": record({"model": nullable(_WITNESS), "process": nullable(_WITNESS)}),
    "reading": nullable(_READING),
    "readingError": nullable(text("Why the last reading asked for could not be had.")),
    "readingErrorAgeMs": _AGE,
    "readingWaitAgeMs": _AGE,
    "polling": flag("Readings are taken because a claim waits for evidence."),
    "contested": flag("Somebody else calls the model."),
    "queue": record(
        {
            "waiting": count(),
            "limit": count(),
            "oldestAgeMs": _AGE,
            "callersTotal": count("Sessions and other callers that wait."),
            "callers": _CALLERS,
        }
    ),
    "sessions": record(
        {**_COUNTED_SESSIONS, "queuesTotal": count("Sessions with pending prompts."), "queues": _QUEUES}
    ),
    "facts": nullable(_FACTS),
    "totals": _TOTALS,
}
_RESTARTED: Final = record(
    {"identity": IDENTITY_ID, "previousEpoch": count(), "ok": flag()},
    {
        "epoch": count("The one that has begun; as the next three, if it is ok."),
        "provenClaims": count("Claims that the fresh reading proved ended."),
        "forgottenClaims": array(_FORGOTTEN, "Claims that were released without proof."),
        "openClaims": count("Claims that stay."),
        "error": text("Why nothing was done; as `code`, if it is not ok."),
        "code": text(),
        "expectedEpoch": count(),
    },
)
_AUDIT_ENTRY: Final = record(
    {
        "id": count(minimum=1),
        "atMs": unix_ms(),
        "endedAtMs": unix_ms(),
        "by": text("`admin token`, or a signal."),
        "address": nullable(text()),
        "operator": nullable(text("What the token's holder calls themselves; not checked.")),
        "act": text(),
        "target": text(),
        "reason": nullable(text()),
        "asked": table({}),
        "result": one_of("done", "refused", "interrupted", "failed"),
        "code": nullable(text()),
        "error": nullable(text()),
        "report": table({}),
    }
)

ADMIN_SCHEMAS: Final[dict[str, Schema]] = {
    "AdminIdentity": record(_IDENTITY),
    "AdminOneIdentity": record({"atMs": unix_ms(), **_IDENTITY}),
    "AdminState": record(
        {
            "v": const(1),
            "atMs": unix_ms(),
            "startedAtMs": unix_ms(),
            "draining": flag("Nothing new is accepted."),
            "stopping": flag("The same, for good."),
            "sessions": _SESSIONS,
            "lastEventId": count("Of the recent events in `/admin/events`."),
            "identitiesTotal": count(),
            "identities": array(ref("AdminIdentity"), "In the order of their ids."),
        },
        {"nextAfter": text("There are more: the `after` of the next page.")},
    ),
    "AdminRestart": record({"restarted": count(), "refused": count(), "results": array(_RESTARTED)}),
    "AdminRelease": record({"identity": IDENTITY_ID, "released": _FORGOTTEN, "freeSlots": count()}),
    "AdminEntrance": record(
        {
            "changed": flag("It was the other way round before."),
            "draining": flag("Nothing new is accepted."),
            "liveSessions": count(),
            "pendingPrompts": count(),
            "waitingCalls": count(),
            "heldSlots": count(),
        }
    ),
    "AdminReload": record(
        {
            "dryRun": flag("Nothing was changed."),
            "changes": array(
                record(
                    {
                        "key": text("Backends and models by their names: `models.chat.slots`."),
                        "before": {"description": "Null where it was not set, and for every secret."},
                        "after": {"description": "Likewise."},
                    }
                )
            ),
            "modelsAdded": array(text()),
            "modelsRemoved": array(text()),
            "leaving": array(
                record(
                    {
                        "identity": IDENTITY_ID,
                        "states": _BY_STATE,
                        "waitingCalls": count(),
                        "pendingPrompts": count(),
                    }
                ),
                "Identities that no model has any more, and what of them has not ended.",
            ),
        }
    ),
    "AdminAudit": record(
        {"entries": array(_AUDIT_ENTRY, "The newest first.")},
        {"nextBefore": count("There may be more: the `before` of the next page.", minimum=1)},
    ),
    "AdminRecent": record(
        {
            "events": array(
                {
                    "type": "object",
                    "required": ["id", "atMs", "lastAtMs", "count", "kind", "identity"],
                    "description": "Its further fields depend on its `kind`; docs/admin.md lists them.",
                }
            )
        }
    ),
}
