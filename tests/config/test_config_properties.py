"""Whatever is in a file, in a variable or in a flag: a `Config` comes out, or a `ConfigError`, and nothing else."""

from __future__ import annotations

import datetime as dt
import json
import math
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from governor.config import Config, load_config, parse_config
from governor.config.explain import ARRAYS, TABLES
from governor.config.validate import validate
from governor.errors import ConfigError, JsonValue
from tests.config.config_samples import MINIMAL

if TYPE_CHECKING:
    from pathlib import Path

    from governor.config.models import Section

SECTIONS = {**TABLES, **ARRAYS}
FIELDS = sorted({key for model in SECTIONS.values() for key in model.model_fields})
WORDS = [
    "triton",
    "chat",
    "infer",
    "generate",
    "generate_stream",
    "http://127.0.0.1:8000",
    "unlimited",
    "0.0.0.0",
]
KEYS = st.sampled_from(FIELDS) | st.text(max_size=8)

LEAVES = (
    st.sampled_from(WORDS)
    | st.text(max_size=20)
    | st.integers()
    | st.integers(min_value=0, max_value=9)
    | st.floats()
    | st.booleans()
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.just(2**200)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def tables_of(model: type[Section]) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(st.sampled_from(sorted(model.model_fields)), VALUES)


NEARLY = st.fixed_dictionaries(
    {},
    optional={
        **{name: tables_of(model) for name, model in TABLES.items()},
        **{name: st.lists(tables_of(model), max_size=3) for name, model in ARRAYS.items()},
    },
)


@settings(deadline=None)
@given(NEARLY | st.dictionaries(st.sampled_from(sorted(SECTIONS)) | KEYS, VALUES, max_size=5))
def test_any_tables_are_right_or_have_problems(raw: dict[str, object]) -> None:
    result = validate(raw)
    if not isinstance(result, Config):
        assert result
        for problem in result:
            sentence = problem.sentence()
            assert sentence.isprintable()
            assert "pydantic" not in sentence.lower()


def toml(value: object) -> str:
    """TOML of a value on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return hex(value) if isinstance(value, int) and value > 2**64 else repr(value)


def text(value: str) -> str:
    """A TOML string; what UTF-8 cannot write is left out."""
    return json.dumps(value.encode(errors="ignore").decode(), ensure_ascii=False).replace("\x7f", "")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "governor.toml"


@settings(deadline=None)
@given(NEARLY | st.dictionaries(st.sampled_from(sorted(SECTIONS)), VALUES, max_size=5))
def test_any_file_loads_or_is_a_config_error(path: Path, raw: dict[str, object]) -> None:
    path.write_text("".join(f"{text(key)} = {toml(value)}\n" for key, value in raw.items()))
    with suppress(ConfigError):
        assert isinstance(load_config(path), Config)


@settings(deadline=None)
@given(st.binary(max_size=80))
@example(b"[limits]\nmax_sessions = 0x" + b"f" * 5000)
@example(b"a = " + b"{a=" * 20_000)
@example(b"a" + b".a" * 1_000 + b" = 1")
def test_any_bytes_are_a_config_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load_config(path)


ENVIRONMENT_NAMES = st.lists(
    st.sampled_from([*SECTIONS, *FIELDS, "0", "1", "99", "", "X"]) | st.text(max_size=4),
    min_size=1,
    max_size=5,
).map(lambda steps: "GOVERNOR__" + "__".join(steps).upper())


@settings(deadline=None)
@given(st.dictionaries(ENVIRONMENT_NAMES, st.text(max_size=20) | VALUES.map(toml), max_size=4))
def test_any_environment_is_right_or_a_config_error(environ: dict[str, str]) -> None:
    with suppress(ConfigError):
        assert isinstance(parse_config(MINIMAL, environ=environ), Config)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=4) | st.sampled_from(["server.port", "models.0.slots", "models"]), VALUES))
def test_any_flags_are_right_or_a_config_error(overrides: dict[str, object]) -> None:
    flags = cast("dict[str, JsonValue]", overrides)  # also what the type forbids
    with suppress(ConfigError):
        assert isinstance(parse_config(MINIMAL, overrides=flags), Config)


# The start keeps a token apart from words that a printed configuration holds anyway.
TOKENS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=9, max_size=64).map("sesame-".__add__)


@settings(deadline=None)
@given(TOKENS, TOKENS)
def test_no_printed_configuration_holds_a_token(api: str, admin: str) -> None:
    overrides: dict[str, JsonValue] = {"tokens.api": api, "tokens.admin": admin}
    if api == admin:
        with pytest.raises(ConfigError) as caught:
            parse_config(MINIMAL, overrides=overrides)
        printed = str(caught.value)
    else:
        config = parse_config(MINIMAL, overrides=overrides)
        assert (config.tokens.api, config.tokens.admin) == (api, admin)
        printed = json.dumps(config.masked()) + repr(config)
    assert api not in printed
    assert admin not in printed


@settings(deadline=None)
@given(st.text(max_size=30), st.integers(0, 2))
def test_no_message_about_a_wrong_token_holds_it(token: str, extra: int) -> None:
    secret = "sesame" + token
    with pytest.raises(ConfigError) as caught:
        parse_config(MINIMAL, overrides={"tokens.api": secret + " ", "tokens.admin": [secret] * extra})
    assert "sesame" not in str(caught.value)
