"""What a changed configuration asks of a running governor: live, or only by a restart."""

from __future__ import annotations

from typing import Any

import pytest

from governor.config import (
    BackendConfig,
    Config,
    EvidenceConfig,
    LimitsConfig,
    ModelConfig,
    ServerConfig,
    TokensConfig,
    parse_config,
)
from governor.config.explain import TABLES
from governor.identity import IdentityKey
from governor.reload import LIVE_OF_BACKENDS, Change, ReloadPlan, plan_reload

BACKEND: dict[str, Any] = {"name": "b", "url": "http://127.0.0.1:8000"}
MODEL: dict[str, Any] = {"name": "m", "backend": "b", "slots": 2, "kind": "generate"}


def config(
    *,
    backends: tuple[dict[str, Any], ...] = (BACKEND,),
    models: tuple[dict[str, Any], ...] = (MODEL,),
    **sections: Any,
) -> Config:
    return Config(
        backends=tuple(BackendConfig(**backend) for backend in backends),
        models=tuple(ModelConfig(**model) for model in models),
        **sections,
    )


def plan(old: Config, new: Config) -> ReloadPlan:
    return plan_reload(
        old,
        new,
        backends={backend.name: backend for backend in old.backends},
        identities=[IdentityKey(model.backend, model.triton_model) for model in old.models],
    )


def test_nothing_changes_nothing() -> None:
    assert plan(config(), config()) == ReloadPlan((), (), (), (), ())


@pytest.mark.parametrize(
    ("key", "new"),
    [
        ("server.host", config(server=ServerConfig(host="127.0.0.2"))),
        ("server.port", config(server=ServerConfig(port=1))),
        ("server.max_in_flight", config(server=ServerConfig(max_in_flight=7))),
        ("backends.b.url", config(backends=({**BACKEND, "url": "http://127.0.0.1:9000"},))),
        ("backends.b.metrics_url", config(backends=({**BACKEND, "metrics_url": "http://127.0.0.1:8002/metrics"},))),
        (
            "backends.b.evidence.on_fall",
            config(backends=({**BACKEND, "evidence": EvidenceConfig(on_fall="hold")},)),
        ),
    ],
)
def test_what_the_process_was_built_around_needs_a_restart(key: str, new: Config) -> None:
    found = plan(config(), new)
    assert found.needs_restart == (key,)
    assert found.changes == ()


@pytest.mark.parametrize(
    ("change", "new"),
    [
        (Change("models.m.slots", 2, 3), config(models=({**MODEL, "slots": 3},))),
        (Change("models.m.timeout_ms", 300_000, 5), config(models=({**MODEL, "timeout_ms": 5},))),
        (Change("models.m.parameters.x", None, 9), config(models=({**MODEL, "parameters": {"x": 9}},))),
        (Change("limits.max_sessions", 800, 9), config(limits=LimitsConfig(max_sessions=9))),
        (Change("limits.prompt_deadline_ms", None, 9), config(limits=LimitsConfig(prompt_deadline_ms=9))),
        (
            Change("backends.b.when_unavailable", "fail", "wait"),
            config(backends=({**BACKEND, "when_unavailable": "wait"},)),
        ),
        (Change("backends.b.health_interval_ms", 1000, 5), config(backends=({**BACKEND, "health_interval_ms": 5},))),
    ],
)
def test_what_can_change_live_is_told_with_its_values(change: Change, new: Config) -> None:
    found = plan(config(), new)
    assert found.changes == (change,)
    assert found.needs_restart == ()


def test_a_secret_is_named_and_never_shown() -> None:
    old = config(tokens=TokensConfig(api="0123456789abcdef"))
    found = plan(old, config(tokens=TokensConfig(api="fedcba9876543210", admin="0123456789abcdee")))
    assert found.changes == (Change("tokens.api"), Change("tokens.admin"))


def test_models_and_backends_come_and_go() -> None:
    """What is in them is no change of a key: they are named once."""
    other = {"name": "c", "url": "http://127.0.0.1:9000"}
    old = config(models=(MODEL, {**MODEL, "name": "gone"}))
    found = plan(old, config(backends=(BACKEND, other), models=(MODEL, {**MODEL, "name": "new", "backend": "c"})))
    assert found == ReloadPlan((), (), ("new",), ("gone",), (("c", "new"),))
    assert plan(config(backends=(BACKEND, other)), config()) == ReloadPlan((), (), (), (), ())


def test_a_second_name_of_an_identity_adds_none() -> None:
    found = plan(config(), config(models=(MODEL, {**MODEL, "name": "also", "triton_model": "m"})))
    assert found.models_added == ("also",)
    assert found.identities_added == ()


def test_a_model_that_moves_to_another_backend_is_another_identity() -> None:
    other = {"name": "c", "url": "http://127.0.0.1:9000"}
    found = plan(
        config(backends=(BACKEND, other)), config(backends=(BACKEND, other), models=({**MODEL, "backend": "c"},))
    )
    assert found.changes == (Change("models.m.backend", "b", "c"),)
    assert found.identities_added == (("c", "m"),)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:8000"])
def test_a_backend_that_is_only_called_otherwise_needs_a_restart(url: str) -> None:
    """D8: the old name's calls may still run, and both names would hand out the same slots."""
    renamed = config(backends=({"name": "c", "url": url},), models=({**MODEL, "backend": "c"},))
    assert plan(config(), renamed).needs_restart == ("backends.c.url",)


def test_a_backend_that_is_still_being_left_counts_as_there() -> None:
    """It left the file earlier, with calls that have not ended: its name cannot stand for another server meanwhile."""
    found = plan_reload(
        config(),
        config(backends=(BACKEND, {"name": "c", "url": "http://127.0.0.1:7000"})),
        backends={"b": BackendConfig(**BACKEND), "c": BackendConfig(name="c", url="http://127.0.0.1:9000")},
        identities=[IdentityKey("b", "m"), IdentityKey("c", "m")],
    )
    assert found.needs_restart == ("backends.c.url",)


def test_names_with_dots_are_names() -> None:
    old = config(backends=({**BACKEND, "name": "a"}, {"name": "a.url", "url": "http://127.0.0.1:1"}),
                 models=({**MODEL, "backend": "a"},))  # fmt: skip
    new = config(backends=({**BACKEND, "name": "a"}, {"name": "a.url", "url": "http://127.0.0.1:2"}),
                 models=({**MODEL, "backend": "a"},))  # fmt: skip
    assert plan(old, new).needs_restart == ("backends.a.url.url",)


def test_shared_evidence_counts_where_it_is_in_force() -> None:
    text = (
        '[evidence]\nsettle_ms = {}\n[[backends]]\nname = "b"\nurl = "http://127.0.0.1:8000"\n{}\n'
        '[[models]]\nname = "m"\nbackend = "b"\nslots = 1\nkind = "infer"\n'
    )
    own = "[backends.evidence]\nsettle_ms = 3000"
    assert plan(parse_config(text.format(1000, "")), parse_config(text.format(2000, ""))).needs_restart == (
        "backends.b.evidence.settle_ms",
    )
    assert plan(parse_config(text.format(1000, own)), parse_config(text.format(2000, own))).needs_restart == ()


def test_every_section_is_decided_on() -> None:
    """A new section must be taken into the plan, or its changes would be passed over in silence."""
    assert set(TABLES) == {"server", "limits", "evidence", "tokens"}
    assert set(BackendConfig.model_fields) >= LIVE_OF_BACKENDS
