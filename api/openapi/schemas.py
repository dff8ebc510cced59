"""The bodies of answers, as schemas of the document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .admin_schemas import ADMIN_SCHEMAS
from .events import EVENT_SCHEMAS, EVENTS
from .shapes import array, const, count, flag, moment, nullable, one_of, record, ref, table, text, unix_ms

if TYPE_CHECKING:
    from .shapes import Schema

_TURN_ERROR: Final = record({"message": text(), "code": text("Stable; see the errors of `turn_error`.")})

_SESSION: Final = {
    "sessionId": text("A UUID."),
    "workspaceCwd": const("/", "There are no folders."),
    "createdAt": moment(),
}
_OPENED: Final = {
    **_SESSION,
    "attached": flag("The session was there before."),
    "clientId": text("For `X-Qwen-Client-Id`."),
    "modelServiceId": text("Public name of the model."),
}
_OPENED_MORE: Final = {
    "hasActivePrompt": flag("Of a session that was there before: it is busy."),
    "hasRunningBackgroundTasks": const(False),
}
_RESTORED: Final = {
    **_OPENED,
    "state": record(
        {
            "models": record(
                {
                    "currentModelId": text(),
                    "availableModels": array(record({"modelId": text(), "name": text()})),
                }
            )
        }
    ),
    "hasActivePrompt": flag("It is busy."),
    "lastEventId": count("The cursor from which an event stream continues what this answer tells."),
    "eventEpoch": text("The life of the event log that the cursor belongs to."),
}
_PROMPT_TERMINAL: Final = record(
    {"v": const(1), "promptId": text(), "terminal": one_of("completed", "cancelled", "error"), "at": unix_ms()},
    {"stopReason": one_of("end_turn", "cancelled"), "code": text("Of an error.")},
)
_RESTORED_MORE: Final = {
    "hasRunningBackgroundTasks": const(False),
    "promptTerminals": array(_PROMPT_TERMINAL, "How the last prompts ended, the oldest first.", maxItems=64),
}
_REPLAY: Final = {
    "compactedReplay": {**EVENTS, "description": "Up to the end of the last turn that is over; answers in one piece."},
    "liveJournal": {**EVENTS, "description": "Everything since, as it was told."},
}
_REPLAY_MORE: Final = {
    "partial": const(True, "The oldest events are missing."),
    "replayError": text("Why."),
}
_SUMMARY: Final = {
    **_SESSION,
    "modelServiceId": text("Public name of the model."),
    "clientCount": count("Registered clients."),
    "hasActivePrompt": flag(),
    "activeWorkState": one_of("active", "idle"),
    "hasRunningBackgroundTasks": flag(),
    "isWaitingForPermission": flag(),
    "isWaitingForUserQuestion": flag(),
    "pendingInteractionCount": count(),
    "hasTurnError": flag("The last turn that had begun failed."),
    "pendingInteractions": array({}),
}
_SUMMARY_MORE: Final = {
    "updatedAt": moment("End of the last turn."),
    "displayName": text(),
    "titleSource": const("manual"),
    "turnError": _TURN_ERROR,
}
_TURN: Final = record(
    {"sessionId": text(), "state": one_of("idle", "queued", "running", "completed", "cancelled", "error")},
    {
        "promptId": text("Missing where no prompt ever was."),
        "promptText": text("The first 32768 characters."),
        "promptTextTruncated": const(True),
        "queuedAt": unix_ms(),
        "startedAt": unix_ms(),
        "endedAt": unix_ms(),
        "stopReason": one_of("end_turn", "cancelled"),
        "error": _TURN_ERROR,
        "resultText": text("What the model has said so far: the first 32768 characters."),
        "resultTruncated": const(True),
        "resultCode": const("RESULT_TEXT_TRUNCATED"),
        "originatorClientId": text(),
    },
)
_PENDING: Final = record(
    {"promptId": text(), "text": text(), "queuedAt": unix_ms(), "state": one_of("running", "queued")},
    {"originatorClientId": text()},
)

_LIMIT: Final = nullable(count())
_LIMITS: Final = record(
    {
        "maxPendingPromptsPerSession": nullable(count("Null: no limit.", minimum=1)),
        "maxSessions": _LIMIT,
        "maxSessionsPerWorkspace": _LIMIT,
        "maxTotalSessions": count("Live sessions in all."),
        "maxPromptBytes": count("UTF-8 bytes of one prompt's text."),
        "listenerMaxConnections": count(),
        "eventRingSize": count("Events kept per session."),
        "compactedReplayMaxBytes": count(),
        "promptDeadlineMs": nullable(count("The longest time of one prompt.")),
        "writerIdleTimeoutMs": count("A reader that takes nothing for so long is disconnected."),
        "sessionIdleTimeoutMs": count(),
        "sessionPromptSettledCloseGraceMs": count(),
        "sessionRestoreTimeoutMs": count(),
    }
)
_VERSIONS: Final = record({"current": const("v1"), "supported": array(text())})
_FEATURES: Final = array(text(), "What works, by the protocol's names. Test for these, not for versions.")
_CAPABILITIES: Final = record(
    {
        "v": const(1),
        "protocolVersions": _VERSIONS,
        "governorVersion": text(),
        "mode": const("http-bridge"),
        "features": _FEATURES,
        "modelServices": array(
            record({"id": text("Public name."), "kind": one_of("infer", "generate", "generate_stream")})
        ),
        "workspaceCwd": const("/"),
        "transports": array(text()),
        "limits": ref("Limits"),
    }
)
_IDENTITY: Final = record(
    {
        "backend": text(),
        "model": text("Triton's name of it."),
        "slots": count("Slot credits."),
        "freeSlots": count("Those that nothing holds."),
        "reconciling": count("Held by calls whose connection broke."),
        "awaitingBaseline": count("The same, before the counters could be read at all."),
        "quarantined": count("Held by calls that no counter can prove ended any more."),
        "contested": flag("Somebody else calls the model."),
        "lastReadingError": nullable(text()),
    }
)
_READINESS: Final = {
    "ready": flag(),
    "draining": flag(),
    "models": table(record({"usable": flag(), "reason": nullable(text("Why not."))})),
    "problems": array(text(), "One line for each thing that is wrong with an identity: `backend/model: why`."),
    "identities": array(ref("Identity"), "Those of which an operator should know something."),
}
_ACTIVITY: Final = {
    "lastActivityAt": nullable(moment("Null before the first session.")),
    "idleSinceMs": nullable(count()),
}
_HEALTH: Final = record(
    {"status": const("ok")},
    {
        "workspaceCount": count(),
        "sessions": count(),
        "pendingPermissions": count(),
        "activePrompts": count(),
        "activeWork": flag(),
        "activeWorkReporting": const("full"),
        "activeWorkStaleMs": count(),
        "connectedClients": count("Event streams."),
        "registeredClients": count(),
        "channelAlive": flag("Some backend is up."),
        **_ACTIVITY,
    },
    "Everything but `status` with `deep` only.",
)
_RUNTIME: Final = record(
    {
        "sessions": record({"active": count()}),
        "permissions": record({"pending": count(), "policy": text()}),
        "channel": record({"live": flag()}),
        "channelWorker": record({"enabled": flag(), "state": text(), "channels": array({})}),
        "transport": record(
            {
                "restSseActive": count("Event streams."),
                "acp": record(
                    {
                        "enabled": flag(),
                        "connections": count(),
                        "connectionStreams": count(),
                        "sessionStreams": count(),
                        "sseStreams": count(),
                        "wsStreams": count(),
                        "pendingClientRequests": count("Requests of the governor; it sends none."),
                        "pendingRequests": count("Requests whose responses were not read yet."),
                    }
                ),
            }
        ),
        "rateLimit": record({"enabled": flag(), "rejectedSinceStart": table(count())}),
        "activity": record(
            {
                "activePrompts": count("Running ones."),
                "pendingPrompts": count("Running and waiting ones."),
                "queuedPrompts": count("Waiting ones."),
                **_ACTIVITY,
            }
        ),
    }
)
_LIVE_SESSION: Final = record(
    {**_SUMMARY, "pendingPromptCount": count(), "subscriberCount": count(), "lastEventId": count()}, _SUMMARY_MORE
)
_STATUS: Final = record(
    {
        "v": const(1),
        "detail": one_of("summary", "full"),
        "generatedAt": moment(),
        "status": one_of("ok", "warning"),
        "issues": array(
            record({"code": const("model_unavailable"), "severity": text(), "section": text(), "message": text()}),
            "The models that cannot be used.",
        ),
        "daemon": record(
            {
                "pid": count(),
                "uptimeMs": count(),
                "mode": const("http-bridge"),
                "workspaceCwd": const("/"),
                "governorVersion": text(),
            }
        ),
        "security": record(
            {
                "tokenConfigured": flag(),
                "requireAuth": flag(),
                "loopbackBind": flag(),
                "allowOriginConfigured": flag(),
                "allowOriginMode": one_of("none", "list", "any"),
                "sessionShellCommandEnabled": const(False),
            }
        ),
        "limits": ref("Limits"),
        "capabilities": record({"protocolVersions": _VERSIONS, "features": _FEATURES}),
        "runtime": _RUNTIME,
    },
    {"full": record({"sessions": array(_LIVE_SESSION)}, description="With `detail=full`.")},
)

SCHEMAS: Final[dict[str, Schema]] = {
    "Created": record(_OPENED, {**_OPENED_MORE, "modelApplied": const(True)}),
    "Loaded": record({**_RESTORED, **_REPLAY}, {**_RESTORED_MORE, **_REPLAY_MORE}),
    "Resumed": record(_RESTORED, _RESTORED_MORE),
    "Branched": record(
        {
            **_RESTORED,
            **_REPLAY,
            "displayName": text("Name of the new session."),
            "forkedFrom": record({"sessionId": text(), "displayName": text()}),
        },
        {**_RESTORED_MORE, **_REPLAY_MORE},
    ),
    "Session": record(_SUMMARY, _SUMMARY_MORE),
    "Accepted": record(
        {
            "promptId": text("A UUID; the terminal event carries it."),
            "lastEventId": count("For `Last-Event-ID`: an event stream from here misses nothing of the turn."),
            "eventEpoch": text("For `X-Qwen-Event-Epoch`."),
        }
    ),
    "PendingPrompt": _PENDING,
    "Turn": _TURN,
    "Limits": _LIMITS,
    "Capabilities": _CAPABILITIES,
    "DaemonStatus": _STATUS,
    "Health": _HEALTH,
    "Identity": _IDENTITY,
    "Readiness": record(_READINESS),
    "NotReady": record({"error": text(), "code": const("not_ready"), **_READINESS}),
    **EVENT_SCHEMAS,
    **ADMIN_SCHEMAS,
}
"""The named schemas, but for those of the errors."""
