"""From the plain tables of a TOML text to a `Config`, or to every mistake in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import ValidationError

from governor.config.crosscheck import Draft, View, cross_check
from governor.config.explain import ARRAYS, TABLES, explain, not_a_table, unknown_key
from governor.config.models import (
    BackendConfig,
    Config,
    EvidenceConfig,
    LimitsConfig,
    ModelConfig,
    Section,
    ServerConfig,
    TokensConfig,
)
from governor.config.problems import KeyPath, Problem, show
from governor.config.values import normalise_host, normalise_metrics_url, normalise_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_TABLES = 1_000
"""Most backends, and most models, of one configuration."""

SectionT = TypeVar("SectionT", bound=Section)

_SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "host": normalise_host,
    "url": normalise_url,
    "metrics_url": normalise_metrics_url,
}


@dataclass(frozen=True)
class _Checked(Generic[SectionT]):
    """One validated table: the section when it is right, and what is usable of it in either case."""

    section: SectionT | None
    view: View


def validate(raw: Mapping[str, object]) -> Config | list[Problem]:
    """The configuration that `raw` describes, or all that is wrong with it (never an empty list)."""
    problems = [
        Problem((key,), unknown_key(Config, key, section="")) for key in raw if key not in TABLES and key not in ARRAYS
    ]
    server = _table(ServerConfig, ("server",), raw.get("server", {}), problems)
    limits = _table(LimitsConfig, ("limits",), raw.get("limits", {}), problems)
    evidence = _table(EvidenceConfig, ("evidence",), raw.get("evidence", {}), problems)
    tokens = _table(TokensConfig, ("tokens",), raw.get("tokens", {}), problems)
    given_tokens = raw.get("tokens")
    backends = _array("backends", raw, problems)
    models = _array("models", raw, problems)
    shared = evidence.section or EvidenceConfig()
    checked_backends = [
        _backend(("backends", index), table, shared, problems) for index, table in enumerate(backends or [])
    ]
    checked_models = [
        _table(ModelConfig, ("models", index), table, problems) for index, table in enumerate(models or [])
    ]
    draft = Draft(
        server=server.view,
        limits=limits.view,
        tokens=tokens.view,
        backends=None if backends is None else [checked.view for checked in checked_backends],
        models=None if models is None else [checked.view for checked in checked_models],
        misnamed=_misnamed(backends or [], [checked.view for checked in checked_backends]),
        api_token_given=given_tokens is not None and not (isinstance(given_tokens, dict) and "api" not in given_tokens),
    )
    problems += cross_check(draft)
    if problems or not (server.section and limits.section and tokens.section):
        return problems
    return Config(
        server=server.section,
        limits=limits.section,
        evidence=shared,
        tokens=tokens.section,
        backends=tuple(checked.section for checked in checked_backends if checked.section),
        models=tuple(checked.section for checked in checked_models if checked.section),
    )


def _table(model: type[SectionT], path: KeyPath, raw: object, problems: list[Problem]) -> _Checked[SectionT]:
    """Validate one table and add what is wrong with it to `problems`."""
    if not isinstance(raw, dict):
        problems.append(not_a_table(path, raw))
        return _Checked(None, View())
    try:
        section = model.model_validate(raw)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        found = [explain(model, path, error) for error in errors]
        problems += [problem for problem in found if problem is not None]
        return _Checked(None, _usable(model, raw, {str(error["loc"][0]) for error in errors}))
    return _Checked(section, View(dict(section)))


def _usable(model: type[Section], raw: Mapping[str, object], wrong: set[str]) -> View:
    """The values of an invalid table that are right by themselves, with the defaults of those not given."""
    values: dict[str, object] = {}
    for key, field in model.model_fields.items():
        if key in wrong:
            continue
        if key not in raw:
            values[key] = field.get_default(call_default_factory=True, validated_data=values)
            continue
        given, spelling = raw[key], _SPELLINGS.get(key)
        values[key] = spelling(given) if spelling and isinstance(given, str) else given
    return View(values)


def _array(name: str, raw: Mapping[str, object], problems: list[Problem]) -> list[object] | None:
    """The tables of an array section, or None when it is something else."""
    given = raw.get(name, [])
    if not isinstance(given, list):
        hint = f"; write [[{name}]] with two brackets" if isinstance(given, dict) else ""
        problems.append(Problem((name,), f"received {show(given)}; expected an array of tables{hint}"))
        return None
    if len(given) > MAX_TABLES:
        problems.append(Problem((name,), f"received {show(given)}; expected at most {MAX_TABLES}"))
        return None
    return given


def _backend(path: KeyPath, raw: object, shared: EvidenceConfig, problems: list[Problem]) -> _Checked[BackendConfig]:
    """Validate one backend; its own evidence settings go before the shared ones, key by key."""
    if not isinstance(raw, dict):
        return _table(BackendConfig, path, raw, problems)
    own = _table(EvidenceConfig, (*path, "evidence"), raw.get("evidence", {}), problems).section
    differing = {key: getattr(own, key) for key in own.model_fields_set} if own else {}
    resolved = shared.model_copy(update=differing)
    return _table(BackendConfig, path, {**raw, "evidence": resolved}, problems)


def _misnamed(backends: list[object], views: list[View]) -> frozenset[str]:
    """Names that backends were given although they may not have them."""
    names = set()
    for table, view in zip(backends, views, strict=True):
        name = table.get("name") if isinstance(table, dict) else None
        if isinstance(name, str) and view.text("name") is None:
            names.add(name)
    return frozenset(names)
