"""What a changed configuration asks of a running governor: what can be done live, and what needs a restart. Pure.

Limits, tokens, and everything about models can change while calls run. What the process was built around cannot: where
it listens, which servers its backends are, how ends are proven. A reload that asks for any of that is refused as a
whole, so that the running configuration is always one that stands in a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from governor.config.crosscheck import server_key
from governor.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from governor.config import BackendConfig, Config
    from governor.config.models import Section
    from governor.errors import JsonValue
    from governor.identity import IdentityKey

LIVE_OF_BACKENDS: Final = frozenset({"health_interval_ms", "when_unavailable", "unavailable_wait_ms"})
"""What can change of a backend that is in use."""
_HIDDEN: Final = "tokens"


class ReloadNotPossibleError(CallerError):
    """The governor was not made from a configuration file."""

    code = "reload_not_possible"
    status = 409

    def __init__(self) -> None:
        super().__init__("This governor was not made from a configuration file, so there is none to read again")


class ReloadNeedsRestartError(CallerError):
    """The new configuration changes what a running governor cannot; nothing of it is in force."""

    code = "reload_needs_restart"
    status = 409

    def __init__(self, keys: list[str]) -> None:
        super().__init__(
            f"These cannot change while the governor runs: {', '.join(keys)}. Nothing was changed; put them back, or"
            " restart the governor",
            keys=[*keys],
        )


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs.

    Attributes:
        key: dotted, backends and models by their names: `models.chat.slots`.
        before, after: its values; None for one that is not there, and for every secret.
    """

    key: str
    before: JsonValue = None
    after: JsonValue = None


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """What a reload would do.

    Attributes:
        changes: values that change live, in the order of the file.
        needs_restart: keys that cannot.
        models_added, models_removed: public names.
        identities_added: (backend, Triton's model) that were not governed before.
    """

    changes: tuple[Change, ...]
    needs_restart: tuple[str, ...]
    models_added: tuple[str, ...]
    models_removed: tuple[str, ...]
    identities_added: tuple[tuple[str, str], ...]

    def told(self) -> dict[str, JsonValue]:
        """As plain JSON values."""
        return {
            "changes": [{"key": change.key, "before": change.before, "after": change.after} for change in self.changes],
            "modelsAdded": [*self.models_added],
            "modelsRemoved": [*self.models_removed],
        }


def plan_reload(
    old: Config, new: Config, *, backends: Mapping[str, BackendConfig], identities: Iterable[IdentityKey]
) -> ReloadPlan:
    """Compares a configuration with the running one.

    Args:
        old: the running one.
        new: the other one, valid in itself.
        backends: the servers that are watched, those of removed models whose calls have not ended included.
        identities: what is governed, likewise.
    """
    governed = {(key.backend, key.model) for key in identities}
    wanted = dict.fromkeys((model.backend, model.triton_model) for model in new.models)
    added = tuple(identity for identity in wanted if identity not in governed)
    stays = [backend for backend in new.backends if backend.name in backends]
    before, after = ([model.name for model in config.models] for config in (old, new))
    live = [
        *_changes("limits", _table(old.limits), _table(new.limits)),
        *_changes("tokens", _table(old.tokens), _table(new.tokens)),
    ]
    fixed = _changes("server", _table(old.server), _table(new.server))
    for backend in stays:
        for change in _changes(f"backends.{backend.name}", _table(backends[backend.name]), _table(backend)):
            key = change.key.removeprefix(f"backends.{backend.name}.")
            (live if key in LIVE_OF_BACKENDS else fixed).append(change)
    for model in new.models:
        if model.name in before:
            live += _changes(f"models.{model.name}", _table(old.model(model.name)), _table(model))
    return ReloadPlan(
        changes=tuple(live),
        needs_restart=(*(change.key for change in fixed), *_renamed(new, backends, governed, added)),
        models_added=tuple(name for name in after if name not in before),
        models_removed=tuple(name for name in before if name not in after),
        identities_added=added,
    )


def _renamed(
    new: Config,
    backends: Mapping[str, BackendConfig],
    governed: Iterable[tuple[str, str]],
    added: Iterable[tuple[str, str]],
) -> list[str]:
    """The same model on the same server under another name of the backend: two owners of one set of slots (D8)."""
    taken = {(server_key(backends[backend].url), model) for backend, model in governed}
    return list(
        dict.fromkeys(
            f"backends.{backend}.url"
            for backend, model in added
            if (server_key(new.backend(backend).url), model) in taken
        )
    )


def _table(section: Section) -> dict[str, JsonValue]:
    values: dict[str, JsonValue] = section.model_dump(mode="json")
    return values


def _changes(path: str, old: Mapping[str, JsonValue], new: Mapping[str, JsonValue]) -> list[Change]:
    """What differs between two tables, the tables in them included."""
    found: list[Change] = []
    for key in dict.fromkeys((*old, *new)):
        before, after, inner = old.get(key), new.get(key), f"{path}.{key}"
        if isinstance(before, dict) and isinstance(after, dict):
            found += _changes(inner, before, after)
        elif before != after:
            found.append(Change(inner) if path == _HIDDEN else Change(inner, before, after))
    return found
