"""Every mistake at once, each with its place, and no secret in any of it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from governor.config import load_config
from governor.config.problems import did_you_mean, dotted, show
from governor.errors import ConfigError
from tests.config.config_samples import BACKEND, MINIMAL, MODEL, load, only_problem, problems

if TYPE_CHECKING:
    from pathlib import Path

MANY = """\
colour = "red"
[server]
host = "0.0.0.0"
port = "4170"
max_sessions = 3
[limits]
max_pending_prompts_per_session = 2.5
max_prompt_bytes = 99999999
hartbeat_interval_ms = 3
[tokens]
apii = "sesame-sesame-sesame"
admin = "sesame"
[evidence]
settle_ms = 0
[[backends]]
name = "GPU 0"
url = "http://user:sesame@host/x"
[backends.evidence]
on_fall = "holdd"
[[backends]]
name = "b"
url = "http://localhost:8000"
[[backends]]
name = "b"
url = "http://127.0.0.1:8000/"
[[models]]
name = "m"
backend = "c"
slots = 1
kind = "infer"
timeout_ms = 9999999
on_abandon = "disconnect"
[[models]]
name = "m2"
backend = "c"
triton_model = "m"
slots = 2
kind = "stream"
parameters = { text_input = "x", when = 1979-05-27 }
[[models]]
name = "m2"
"""

MANY_PLACES = [
    "line 1: colour: unknown key",
    'line 3: server.host: "0.0.0.0" can be reached',
    'line 4: server.port: received "4170"; expected an integer from 0 to 65535',
    "line 5: server.max_sessions: unknown key here; it belongs in [limits]",
    "line 7: limits.max_pending_prompts_per_session: received 2.5",
    "line 8: limits.max_prompt_bytes: received 99999999, but",
    'line 9: limits.hartbeat_interval_ms: unknown key; did you mean "heartbeat_interval_ms"?',
    'line 11: tokens.apii: unknown key; did you mean "api"?',
    "line 12: tokens.admin: received a value that is not shown: it is 6 characters long",
    "line 14: evidence.settle_ms: received 0",
    'line 16: backends[0].name: received "GPU 0"',
    'line 17: backends[0].url: received "********@host/x"',
    'line 19: backends[0].evidence.on_fall: received "holdd"; expected "restart", "seen" or "hold"',
    'line 24: backends[2].name: "b" is already',
    "line 25: backends[2].url: ",
    'line 28: models[0].backend: no backend is named "c"',
    "line 31: models[0].timeout_ms: received 9999999, but",
    'line 32: models[0].on_abandon: "disconnect" frees nothing',
    'line 35: models[1].backend: no backend is named "c"',
    "line 37: models[1].slots: received 2, but models[0].slots is 1",
    'line 38: models[1].kind: received "stream"; expected "infer", "generate" or "generate_stream"',
    "line 39: models[1].parameters.when: received a date",
    "line 40: models[2].backend: missing; expected the name of one of the [[backends]]",
    "line 40: models[2].slots: missing; expected an integer from 1 to 1024",
    'line 40: models[2].kind: missing; expected "infer", "generate" or "generate_stream"',
    'line 41: models[2].name: "m2" is already the name of a model in models[1].name',
]


def test_a_file_with_many_mistakes_is_reported_whole_in_its_own_order() -> None:
    found = problems(MANY)
    assert len(found) == len(MANY_PLACES), "\n".join(found)
    for problem, start in zip(found, MANY_PLACES, strict=True):
        assert problem.startswith(start), (problem, start)


def test_no_message_holds_a_secret() -> None:
    assert "sesame" not in "\n".join(problems(MANY))
    assert "sesame" not in str(problems(f"{MINIMAL}[tokens]\napi = [\"sesame\"]\nadmin = {{ a = 'sesame' }}\n"))
    assert "sesame" not in str(problems(f'tokens = ["sesame"]\n{MINIMAL}'))
    assert "sesame" not in str(problems(f'token = "sesame"\n{MINIMAL}'))
    assert "sesame" not in str(problems(MINIMAL, {"GOVERNOR__TOKENS__API": "sesame", "GOVERNOR__TOKEN": "sesame"}))
    assert "sesame" not in str(problems(MINIMAL, tokens__api="sesame", tokens="sesame"))


def test_masked_shows_that_a_secret_is_set_but_not_which() -> None:
    config = load(f'{MINIMAL}[tokens]\napi = "sesame-sesame-api"\nadmin = "sesame-sesame-admin"\n')
    masked = config.masked()
    assert masked["tokens"] == {"api": "********", "admin": "********", "metrics_public": False}
    for text in (json.dumps(masked), repr(config), str(config), repr(config.tokens), f"{config.tokens}"):
        assert "sesame" not in text
    assert load(MINIMAL).masked()["tokens"] == {"api": None, "admin": None, "metrics_public": False}


def test_masked_holds_every_section_as_plain_json() -> None:
    config = load(f"{MINIMAL}parameters = {{ max_tokens = 5 }}\n")
    masked = json.loads(json.dumps(config.masked(), allow_nan=False))
    assert set(masked) == {"server", "limits", "evidence", "tokens", "backends", "models"}
    assert masked["models"][0]["parameters"] == {"max_tokens": 5}
    assert masked["backends"][0]["evidence"]["poll_interval_ms"] == 250


def test_a_syntax_error_has_its_line() -> None:
    assert only_problem("[server]\nport = 80 80\n").startswith("line 2: not valid TOML: ")
    assert "text needs double quotes" in only_problem("[server]\nhost = localhost\n")
    assert only_problem("a = [").startswith("not valid TOML: ")
    assert only_problem("a = 1\na = 2\n").startswith("line 2: not valid TOML: ")
    assert "nested too deeply" in only_problem("a = " + "[" * 100_000)
    assert "not valid TOML" in only_problem("a = " + "1" * 5000)


def test_the_file_is_named_as_compilers_do(tmp_path: Path) -> None:
    path = tmp_path / "governor.toml"
    path.write_text(MINIMAL + "[server]\nport = -1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.problems == [f"{path}:10: server.port: received -1; expected an integer from 0 to 65535"]


def test_a_good_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "governor.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load_config(path) == load(MINIMAL)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\n# \xff\n", ":2: not UTF-8"),
        (b"#" * 1_048_577, "larger than 1048576 bytes"),
        (b"a = \x00", "not valid TOML"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "governor.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        load_config(path)


def test_a_file_that_cannot_be_read_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="is no path"):
        load_config(tmp_path / "a\0b")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / ("x" * 300))


def test_environment_and_flags_go_before_the_file() -> None:
    text = f"{MINIMAL}[server]\nport = 1\n"
    assert load(text).server.port == 1
    assert load(text, {"GOVERNOR__SERVER__PORT": "2"}).server.port == 2
    assert load(text, {"GOVERNOR__SERVER__PORT": "2"}, server__port=3).server.port == 3
    assert load(text, {"GOVERNOR__SERVER__PORT": "2"}, server__port=None).server.port == 2
    assert load(MINIMAL).server.port == 4170


def test_a_value_that_is_overridden_is_not_checked() -> None:
    text = f"{MINIMAL}[server]\nport = -1\n"
    assert load(text, {"GOVERNOR__SERVER__PORT": "2"}).server.port == 2
    assert "environment GOVERNOR__SERVER__PORT: server.port: received -2" in only_problem(
        text, {"GOVERNOR__SERVER__PORT": "-2"}
    )
    assert "option server.port: server.port: received -3" in only_problem(
        text, {"GOVERNOR__SERVER__PORT": "2"}, server__port=-3
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("LIMITS__MAX_PENDING_PROMPTS_PER_SESSION", "7", 7),
        ("LIMITS__MAX_PENDING_PROMPTS_PER_SESSION", "unlimited", None),
        ("LIMITS__MAX_PENDING_PROMPTS_PER_SESSION", "inf", None),
        ("TOKENS__API", "12345678901234567890", "12345678901234567890"),
        ("TOKENS__METRICS_PUBLIC", "true", True),
        ("EVIDENCE__ON_FALL", "hold", "hold"),
        ("BACKENDS__0__URL", "http://triton:8000", "http://triton:8000"),
        ("BACKENDS__0__EVIDENCE__SETTLE_MS", "5", 5),
        ("MODELS__0__TRITON_VERSION", "3", "3"),
        ("MODELS__0__TIMEOUT_MS", "0", None),
        ("MODELS__0__PARAMETERS", "{ a = 1 }", {"a": 1}),
        ("MODELS__0__PARAMETERS__MAX_TOKENS", "256", 256),
        ("MODELS__0__PARAMETERS__STOP", "END", "END"),
        ("MODELS__0__PARAMETERS__STOP", "1\nb = 2", "1\nb = 2"),
    ],
)
def test_a_variable_sets_any_key_by_its_path(name: str, text: str, value: object) -> None:
    node: object = load(MINIMAL, {f"GOVERNOR__{name}": text})
    for step in name.lower().split("__"):
        if isinstance(node, tuple):
            node = node[int(step)]
        elif isinstance(node, dict):
            node = node[step]
        else:
            node = getattr(node, step)
    assert node == value


def test_a_whole_configuration_can_come_from_the_environment() -> None:
    environ = {
        "GOVERNOR__MODELS__0__NAME": "chat",
        "GOVERNOR__MODELS__0__BACKEND": "triton",
        "GOVERNOR__MODELS__0__SLOTS": "1",
        "GOVERNOR__MODELS__0__KIND": "generate_stream",
        "GOVERNOR__BACKENDS__0__URL": "http://127.0.0.1:8000",
        "GOVERNOR__BACKENDS__0__NAME": "triton",
        "GOVERNOR_CONFIG": "not ours",
        "PATH": "/bin",
    }
    assert load("", environ) == load(MINIMAL)


def test_arrays_grow_in_order_of_their_positions_past_nine() -> None:
    environ = {f"GOVERNOR__MODELS__{index}__NAME": f"m{index}" for index in range(1, 12)}
    for index in range(1, 12):
        environ |= {
            f"GOVERNOR__MODELS__{index}__BACKEND": "triton",
            f"GOVERNOR__MODELS__{index}__SLOTS": "1",
            f"GOVERNOR__MODELS__{index}__KIND": "infer",
        }
    assert [model.name for model in load(MINIMAL, environ).models[1:]] == [f"m{index}" for index in range(1, 12)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "GOVERNOR__SERVER__PROT",
            'environment GOVERNOR__SERVER__PROT: server.prot: unknown key; did you mean "port"?',
        ),
        (
            "GOVERNOR__SEVER__PORT",
            'environment GOVERNOR__SEVER__PORT: sever: unknown key; did you mean "server"?',
        ),
        (
            "GOVERNOR__MODELS__2__NAME",
            'environment GOVERNOR__MODELS__2__NAME: models: "2" is no position; expected 0 to 1',
        ),
        ("GOVERNOR__MODELS__CHAT__NAME", '"chat" is no position; expected 0 to 1'),
        ("GOVERNOR__SERVER__PORT__X", "server.port: it is no table, so nothing can be set inside it"),
        ("GOVERNOR__server__PORT", "the variable's name must be in upper case: GOVERNOR__SERVER__PORT"),
        ("GOVERNOR__", "unknown key"),
        (
            "GOVERNOR_TOKENS__API",
            "GOVERNOR_TOKENS__API: tokens.api: the variable sets nothing; did you mean GOVERNOR__TOKENS__API?",
        ),
        ("GOVERNOR_models__0__slots", "did you mean GOVERNOR__MODELS__0__SLOTS?"),
    ],
)
def test_a_variable_that_sets_nothing_is_a_mistake(name: str, expected: str) -> None:
    assert expected in only_problem(f"{MINIMAL}[server]\nport = 1\n", {name: "1"})


@pytest.mark.parametrize(
    "name", ["GOVERNOR_SERVER_PORT", "GOVERNOR_SERVICE_HOST", "GOVERNOR_TOKEN", "GOVERNOR_URL", "GOVERNOR_CONFIG"]
)
def test_a_variable_of_somebody_else_is_none_of_ours(name: str) -> None:
    """Kubernetes sets some for a service of that name, and the clients have their own."""
    assert problems(MINIMAL, {name: "tcp://10.0.0.1:80"}) == []


def test_an_empty_variable_is_an_empty_value_and_opens_nothing() -> None:
    text = f'{MINIMAL}[tokens]\napi = "0123456789abcdef"\n'
    assert "environment GOVERNOR__TOKENS__API: tokens.api" in only_problem(text, {"GOVERNOR__TOKENS__API": ""})
    assert 'server.port: received ""' in only_problem(MINIMAL, {"GOVERNOR__SERVER__PORT": ""})


def test_mistakes_of_all_sources_are_told_together() -> None:
    found = problems(f"{MINIMAL}[limits]\nmax_sessions = 0\n", {"GOVERNOR__SERVER__PORT": "x"}, evidence__settle_ms=0)
    assert len(found) == 3
    assert [problem.split(":")[0] for problem in found] == [
        "line 10",
        "environment GOVERNOR__SERVER__PORT",
        "option evidence.settle_ms",
    ]


def test_a_backend_refined_on_one_line_is_found() -> None:
    text = 'backends = [\n  { name = "triton", url = "http://127.0.0.1:8000", evidence = { settle_ms = 0 } },\n'
    assert only_problem(f"{text}]\n{MODEL}").startswith("line 2: backends[0].evidence.settle_ms")


def test_a_missing_key_is_reported_at_its_table() -> None:
    found = problems(f'{BACKEND}{MODEL}[[backends]]\nurl = "http://127.0.0.1:8001"\n')
    assert len(found) == 1
    assert found[0].startswith("line 9: backends[1].name: missing; expected 1 to 64 of the characters")


def test_undecodable_variables_do_no_harm() -> None:
    value = os.fsdecode(b"\xff")
    assert problems(MINIMAL, {"GOVERNOR__MODELS__0__PARAMETERS__STOP": value})
    assert problems(MINIMAL, {"GOVERNOR__BACKENDS__0__NAME": value})
    assert problems(MINIMAL, {"GOVERNOR__" + value: "1"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        ("a\n\u00e4", '"a\\n\\u00e4"'),
        ("x" * 1000, '"' + "x" * 56 + "..."),
        pytest.param(16**5000, "an integer of more than 60 digits", id="huge"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        ({}, "a table of 0 keys"),
        ({"a": 1}, "a table of 1 key"),
        ([1], "an array of 1 value"),
        (None, "null"),
    ],
)
def test_a_received_value_is_shown_in_one_short_line(value: object, text: str) -> None:
    assert show(value) == text
    assert len(show(value)) <= 60


def test_paths_are_written_as_people_write_them() -> None:
    assert dotted(("backends", 0, "evidence", "settle_ms")) == "backends[0].evidence.settle_ms"
    assert dotted(("a b", "", "c\n")) == '"a b".""."c\\n"'


def test_did_you_mean_ignores_case_and_dashes_but_not_meaning() -> None:
    assert did_you_mean("Max-Sessions", ["max_sessions", "port"]) == "max_sessions"
    assert did_you_mean("colour", ["max_sessions", "port"]) is None
    assert did_you_mean("x" * 10_000, ["x" * 10_000]) is None
