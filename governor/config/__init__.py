"""The configuration: one TOML file, validated whole at start, overridable by environment and flags (D10).

Read with `load_config` or `parse_config`; both raise `governor.errors.ConfigError` that names every mistake at
once, each with its place, its key, what was received and what would be right. `docs/configuration.md` is the
operator's reference.
"""

from governor.config.load import load_config, parse_config
from governor.config.models import (
    BackendConfig,
    CallKind,
    Config,
    EvidenceConfig,
    LimitsConfig,
    ModelConfig,
    ServerConfig,
    TokensConfig,
)

__all__ = [
    "BackendConfig",
    "CallKind",
    "Config",
    "EvidenceConfig",
    "LimitsConfig",
    "ModelConfig",
    "ServerConfig",
    "TokensConfig",
    "load_config",
    "parse_config",
]
