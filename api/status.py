"""`GET /daemon/status` and `GET /health?deep=1`: the governor in the words of the protocol's operators. Pure.

What the protocol has for coding agents only (channels, permissions, memory budgets) is told as what it is here: none.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING

from governor.config.crosscheck import is_loopback

from .cors import AllowedOrigins
from .features import MODE, PROTOCOL_VERSIONS, features, limits
from .views import iso, summary
from .wire import WORKSPACE_CWD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.errors import JsonValue
    from governor.service import Governor

    from .views import View


def deep_health(governor: Governor, now_ms: int) -> View:
    """What `/health?deep=1` adds to the answer that the process is alive."""
    statistics = governor.statistics()
    clients: int = sum(len(session.clients) for session in governor.sessions.values())
    return {
        "workspaceCount": 1,
        "sessions": statistics.sessions,
        "pendingPermissions": 0,
        "activePrompts": statistics.active_prompts,
        "activeWork": statistics.active_prompts > 0,
        "activeWorkReporting": "full",
        "activeWorkStaleMs": 0,
        "connectedClients": statistics.subscribers,
        "registeredClients": clients,
        "channelAlive": any(backend.status.problem is None for backend in governor.backends.values()),
        **_activity(governor, now_ms),
    }


def daemon_status(
    governor: Governor, now_ms: int, rejected: dict[str, int] | None, acp: Mapping[str, int], *, full: bool
) -> View:
    """The whole report.

    Args:
        governor: whose.
        now_ms: Unix milliseconds.
        rejected: requests that the rate limiter has refused, by tier; None where there is no limiter.
        acp: connections and streams of ACP clients.
        full: with every session.
    """
    config, statistics = governor.config, governor.statistics()
    issues = _issues(governor)
    loopback = is_loopback(config.server.host)
    told: View = {
        "v": 1,
        "detail": "full" if full else "summary",
        "generatedAt": iso(now_ms),
        "status": "warning" if issues else "ok",
        "issues": issues,
        "daemon": {
            "pid": os.getpid(),
            "uptimeMs": now_ms - governor.started_at_ms,
            "mode": MODE,
            "workspaceCwd": WORKSPACE_CWD,
            "governorVersion": version("triton-governor"),
        },
        "security": {
            "tokenConfigured": config.tokens.api is not None,
            "requireAuth": config.tokens.api is not None,
            "loopbackBind": loopback,
            "allowOriginConfigured": bool(config.server.allow_origins),
            "allowOriginMode": AllowedOrigins(config).mode,
            "sessionShellCommandEnabled": False,
        },
        "limits": limits(config),
        "capabilities": {"protocolVersions": PROTOCOL_VERSIONS, "features": features(config)},
        "runtime": {
            "sessions": {"active": statistics.sessions},
            "permissions": {"pending": 0, "policy": "none"},
            "channel": {"live": any(backend.status.problem is None for backend in governor.backends.values())},
            "channelWorker": {"enabled": False, "state": "disabled", "channels": []},
            "transport": {
                "restSseActive": statistics.subscribers - acp["sessionStreams"],
                "acp": {"enabled": True, **acp},
            },
            "rateLimit": {"enabled": rejected is not None, "rejectedSinceStart": {**(rejected or {})}},
            "activity": {
                "activePrompts": statistics.active_prompts,
                "pendingPrompts": statistics.pending_prompts,
                "queuedPrompts": statistics.pending_prompts - statistics.active_prompts,
                **_activity(governor, now_ms),
            },
        },
    }
    if full:
        told["full"] = {"sessions": _sessions(governor)}
    return told


def _activity(governor: Governor, now_ms: int) -> View:
    idle_ms = governor.idle_ms()
    last = iso(now_ms - idle_ms) if idle_ms is not None else None
    return {"lastActivityAt": last, "idleSinceMs": idle_ms}


def _issues(governor: Governor) -> list[JsonValue]:
    return [
        {"code": "model_unavailable", "severity": "warning", "section": name, "message": f'Model "{name}": {reason}'}
        for name, reason in governor.problems().items()
    ]


def _sessions(governor: Governor) -> list[JsonValue]:
    return [
        {
            **summary(session),
            "pendingPromptCount": session.pending_count,
            "subscriberCount": session.log.subscriber_count,
            "lastEventId": session.log.last_id,
        }
        for session in governor.sessions.values()
    ]
