"""What a client may rely on: protocol versions, feature names, limits (A3). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from governor.core.events import REPLAY_BYTES_MAX

from .rate import RateLimiter

if TYPE_CHECKING:
    from governor.config import Config
    from governor.errors import JsonValue

MODE: Final = "http-bridge"
PROTOCOL_VERSIONS: Final[dict[str, JsonValue]] = {"current": "v1", "supported": ["v1"]}
RESTORE_TIMEOUT_MS: Final = 60_000
"""How long a client should wait for a session that it comes back to."""

_ALWAYS: Final = (
    "health",
    "capabilities",
    "daemon_status",
    "session_create",
    "session_id_override",
    "session_scope_override",
    "session_load",
    "session_resume",
    "session_list",
    "session_prompt",
    "non_blocking_prompt",
    "session_turn_status",
    "session_cancel",
    "session_events",
    "slow_client_warning",
    "typed_event_schema",
    "session_set_model",
    "client_identity",
    "client_heartbeat",
    "session_status",
    "session_close",
    "session_metadata",
    "session_branch",
    "session_generation",
    "writer_idle_timeout",
)


def features(config: Config) -> list[JsonValue]:
    """What works, by the protocol's names."""
    found: list[JsonValue] = [*_ALWAYS]
    if config.tokens.api is not None:
        found.append("require_auth")
    if config.server.allow_origins:
        found.append("allow_origin")
    if config.limits.prompt_deadline_ms is not None:
        found.append("prompt_absolute_deadline")
    if RateLimiter.of(config.limits) is not None:
        found.append("rate_limit")
    return found


def limits(config: Config) -> dict[str, JsonValue]:
    """The bounds that a client may meet; null where there is none."""
    limits = config.limits
    return {
        "maxPendingPromptsPerSession": limits.max_pending_prompts_per_session,
        "maxSessions": None,
        "maxSessionsPerWorkspace": None,
        "maxTotalSessions": limits.max_sessions,
        "maxPromptBytes": limits.max_prompt_bytes,
        "listenerMaxConnections": config.server.max_connections,
        "eventRingSize": limits.event_ring_size,
        "compactedReplayMaxBytes": REPLAY_BYTES_MAX,
        "promptDeadlineMs": limits.prompt_deadline_ms,
        "writerIdleTimeoutMs": config.server.send_timeout_ms,
        "sessionIdleTimeoutMs": limits.session_idle_timeout_ms,
        "sessionPromptSettledCloseGraceMs": limits.session_detached_timeout_ms,
        "sessionRestoreTimeoutMs": RESTORE_TIMEOUT_MS,
    }
