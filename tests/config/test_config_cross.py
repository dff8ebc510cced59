"""Each rule between values; also held by a `Config` that is built in Python."""

from __future__ import annotations

import pytest

from governor.config import BackendConfig, Config, ModelConfig, ServerConfig
from governor.errors import ConfigError
from tests.config.config_samples import BACKEND, MINIMAL, MODEL, load, only_problem, problems

TOKEN = "0123456789abcdef"


def test_there_is_at_least_one_backend_and_one_model() -> None:
    assert problems("") == [
        'backends: none given; expected at least one, such as [[backends]] name = "triton"',
        'models: none given; expected at least one, such as [[models]] name = "chat"',
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.com", "10.0.0.1"])
def test_an_open_address_needs_a_token_for_callers(host: str) -> None:
    text = f'{MINIMAL}[server]\nhost = "{host}"\n'
    problem = only_problem(text)
    assert problem.startswith(f'line 10: server.host: "{host}" can be reached from other machines')
    assert "set tokens.api" in problem
    assert problems(f'{text}[tokens]\napi = "{TOKEN}"\n') == []
    assert "server.host" in only_problem(f'{text}[tokens]\nadmin = "{TOKEN}"\n')


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_a_loopback_address_needs_none(host: str) -> None:
    assert problems(f'{MINIMAL}[server]\nhost = "{host}"\n') == []


def test_a_wrong_token_is_one_mistake_not_two() -> None:
    assert "tokens.api" in only_problem(f'{MINIMAL}[server]\nhost = "::"\n[tokens]\napi = "short"\n')


@pytest.mark.parametrize("host", ["", "a b", "http://a", "999.0.0.1", "127.1", "a:80", "127.0.0.1:80"])
def test_a_host_is_an_address_or_a_name(host: str) -> None:
    assert "server.host: received" in only_problem(f'{MINIMAL}[server]\nhost = "{host}"\n')


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("http://127.0.0.1:4170", ""),
        ("http://localhost:4170", ""),
        ("http://[::1]:4171", 'host = "::1"\nport = 4171'),
        ("http://127.0.0.1:4170", 'host = "localhost"'),
        ("http://127.0.0.1:4171", f'host = "0.0.0.0"\nport = 4171\n[tokens]\napi = "{TOKEN}"'),
        ("http://gov.example:4170", f'host = "gov.example"\n[tokens]\napi = "{TOKEN}"'),
    ],
)
def test_a_governor_is_not_its_own_backend(url: str, server: str) -> None:
    text = MINIMAL.replace("http://127.0.0.1:8000", url) + f"[server]\n{server}\n"
    assert f'backends[0].url: "{url}" is where this governor itself listens' in only_problem(text)
    for other in ("http://elsewhere.example:4170", "http://127.0.0.1:4169", "https://127.0.0.9:4199"):
        assert problems(text.replace(url, other)) == []


def test_another_address_of_this_machine_is_another_server() -> None:
    assert problems(MINIMAL.replace(":8000", ":4170") + '[server]\nhost = "127.0.0.9"\n') == []


def test_a_free_port_is_nobodys() -> None:
    assert problems(f"{MINIMAL}[server]\nport = 0\n") == []


def test_operators_have_a_token_of_their_own() -> None:
    problem = only_problem(f'{MINIMAL}[tokens]\napi = "{TOKEN}"\nadmin = "{TOKEN}"\n')
    assert "tokens.admin: it is the same as tokens.api" in problem
    assert TOKEN not in problem


def test_names_are_unique() -> None:
    other_server = BACKEND.replace("8000", "8001")
    problem = only_problem(BACKEND + other_server + MODEL)
    assert problem.startswith('line 5: backends[1].name: "triton" is already the name of a backend in backends[0].name')
    problem = only_problem(BACKEND + MODEL + MODEL)
    assert problem.startswith('line 10: models[1].name: "chat" is already the name of a model in models[0].name')


@pytest.mark.parametrize(
    "same",
    ["http://127.0.0.1:8000", "http://127.0.0.1:8000/", "HTTP://localhost:8000", "http://LOCALHOST.:8000/"],
)
def test_two_backends_with_one_normalised_url_are_one_server(same: str) -> None:
    text = f'{BACKEND}[[backends]]\nname = "other"\nurl = "{same}"\n{MODEL}'
    problem = only_problem(text)
    assert problem.startswith("line 6: backends[1].url: ")
    assert "is the same server as backends[0].url" in problem


@pytest.mark.parametrize("other", ["http://127.0.0.1:8001", "https://127.0.0.1:8000", "http://127.0.0.2:8000"])
def test_two_urls_are_two_servers(other: str) -> None:
    assert problems(f'{BACKEND}[[backends]]\nname = "other"\nurl = "{other}"\n{MODEL}') == []


def test_metrics_belong_to_one_process() -> None:
    metrics = 'metrics_url = "http://127.0.0.1:8002"\n'
    text = f'{BACKEND}{metrics}[[backends]]\nname = "b"\nurl = "http://127.0.0.1:8010"\n{metrics}{MODEL}'
    assert "backends[1].metrics_url" in only_problem(text)


def test_a_model_runs_on_a_backend_that_exists() -> None:
    problem = only_problem(BACKEND + MODEL.replace('"triton"', '"tritom"'))
    assert problem == 'line 6: models[0].backend: no backend is named "tritom"; did you mean "triton"?'
    problem = only_problem(BACKEND + MODEL.replace('"triton"', '"xyz"'))
    assert problem.endswith('no backend is named "xyz"; the backends are: "triton"')


def test_a_model_on_a_misnamed_backend_has_no_mistake_of_its_own() -> None:
    assert "backends[0].name" in only_problem(MINIMAL.replace('"triton"', '"Triton 1"'))


@pytest.mark.parametrize(("key", "one", "two"), [("slots", 1, 2), ("lane_idle_ms", 2000, 500)])
def test_two_public_names_of_one_identity_agree_on_slots_and_lanes(key: str, one: int, two: int) -> None:
    first = 'name = "a"\nbackend = "triton"\ntriton_model = "m"\nkind = "infer"\n'
    second = 'name = "b"\nbackend = "triton"\ntriton_model = "m"\nkind = "generate"\n'
    rest = "" if key == "slots" else "slots = 1\n"
    problem = only_problem(f"{BACKEND}[[models]]\n{first}{rest}{key}={one}\n[[models]]\n{second}{rest}{key}={two}\n")
    assert f"models[1].{key}: received {two}, but models[0].{key} is {one}" in problem
    assert 'the model "m" on backend "triton"' in problem
    assert problems(f"{BACKEND}[[models]]\n{first}{rest}{key}={two}\n[[models]]\n{second}{rest}{key}={two}\n") == []


def test_the_default_triton_model_counts_for_identity_too() -> None:
    alias = '[[models]]\nname = "b"\nbackend = "triton"\ntriton_model = "chat"\nslots = 3\nkind = "generate_stream"\n'
    assert "models[1].slots: received 3, but models[0].slots is 1" in only_problem(MINIMAL + alias)


def test_models_of_one_name_on_two_servers_are_two_identities() -> None:
    other = '[[backends]]\nname = "b"\nurl = "http://127.0.0.1:8010"\n'
    alias = '[[models]]\nname = "x"\nbackend = "b"\ntriton_model = "chat"\nslots = 3\nkind = "generate_stream"\n'
    assert problems(BACKEND + other + MODEL + alias) == []


def test_every_web_page_may_come_only_where_a_token_is_asked_for() -> None:
    text = f'{MINIMAL}[server]\nallow_origins = ["*"]\n'
    problem = only_problem(text)
    assert problem.startswith("line 10: server.allow_origins")
    assert "set tokens.api" in problem
    assert problems(f'{text}[tokens]\napi = "0123456789abcdef"\n') == []
    assert problems(f'{MINIMAL}[server]\nallow_origins = ["https://chat.example"]\n') == []


def test_a_prompt_fits_into_a_body() -> None:
    problem = only_problem(f"{MINIMAL}[limits]\nmax_body_bytes = 1000\nmax_prompt_bytes = 1001\n")
    assert problem.startswith("line 11: limits.max_prompt_bytes: received 1001")
    assert "limits.max_body_bytes = 1000" in problem
    assert problems(f"{MINIMAL}[limits]\nmax_body_bytes = 1000\nmax_prompt_bytes = 1000\n") == []
    assert "max_prompt_bytes" in only_problem(f"{MINIMAL}[limits]\nmax_body_bytes = 1000\n")


def test_a_caller_cannot_wait_longer_than_the_call_lasts() -> None:
    assert "models[0].timeout_ms: received 11" in only_problem(f"{MINIMAL}timeout_ms = 11\ncall_limit_ms = 10\n")
    assert problems(f"{MINIMAL}timeout_ms = 10\ncall_limit_ms = 10\n") == []
    assert problems(f"{MINIMAL}timeout_ms = 0\ncall_limit_ms = 10\n") == []


@pytest.mark.parametrize("kind", ["infer", "generate"])
def test_disconnecting_is_for_streams(kind: str) -> None:
    text = MINIMAL.replace("generate_stream", kind)
    assert "models[0].on_abandon" in only_problem(f'{text}on_abandon = "disconnect"\n')
    assert problems(f'{text}on_abandon = "finish"\n') == []
    assert problems(f'{MINIMAL}on_abandon = "disconnect"\n') == []


@pytest.mark.parametrize("kind", ["infer", "generate", "generate_stream"])
def test_a_parameter_cannot_overwrite_what_the_governor_sends(kind: str) -> None:
    text = MINIMAL.replace("generate_stream", kind)
    problem = only_problem(f"{text}parameters = {{ text_input = 1 }}\n")
    assert "models[0].parameters.text_input: this name is taken: the governor sends the prompt's text" in problem
    assert "the prompt's text" in only_problem(f'{text}text_input = "p"\nparameters = {{ p = "x" }}\n')
    assert "models[0].parameters.id: this name is taken" in only_problem(f"{text}parameters = {{ id = 1 }}\n")
    assert problems(f'{text}text_input = "p"\nparameters = {{ text_input = "x" }}\n') == []


def test_evidence_of_a_backend_refines_the_shared_one_key_by_key() -> None:
    config = load(
        f"{BACKEND}[backends.evidence]\nsettle_ms = 5\n"
        f'{MODEL}[evidence]\nsettle_ms = 7\npoll_interval_ms = 9\non_fall = "hold"\n'
    )
    resolved = config.backends[0].evidence
    assert (resolved.settle_ms, resolved.poll_interval_ms, resolved.on_fall) == (5, 9, "hold")
    assert config.evidence.settle_ms == 7


def test_a_backend_may_switch_off_what_is_shared() -> None:
    config = load(
        f"{BACKEND}[backends.evidence]\nmax_unprovable_age_ms = 0\n{MODEL}[evidence]\nmax_unprovable_age_ms = 9\n"
    )
    assert config.backends[0].evidence.max_unprovable_age_ms is None
    assert config.evidence.max_unprovable_age_ms == 9


def test_evidence_set_to_its_default_for_a_backend_goes_before_the_shared_one() -> None:
    config = load(f'{BACKEND}[backends.evidence]\non_fall = "seen"\n{MODEL}[evidence]\non_fall = "hold"\n')
    assert config.backends[0].evidence.on_fall == "seen"


def test_evidence_of_a_backend_is_checked_where_it_stands() -> None:
    problem = only_problem(f"{BACKEND}[backends.evidence]\nsettle_ms = 0\n{MODEL}")
    assert problem.startswith("line 5: backends[0].evidence.settle_ms: received 0")


def test_the_rules_hold_for_a_config_built_in_python() -> None:
    backend = BackendConfig(name="b", url="http://127.0.0.1:1")
    model = ModelConfig(name="m", backend="other", slots=1, kind="infer")
    with pytest.raises(ConfigError) as caught:
        Config(server=ServerConfig(host="0.0.0.0"), backends=(backend, backend), models=(model,))
    text = "\n".join(caught.value.problems)
    for path in ("server.host", "backends[1].name", "backends[1].url", "models[0].backend"):
        assert path in text
    with pytest.raises(ConfigError):
        Config(backends=(), models=())
