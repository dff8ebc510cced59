"""Each rule about a single value."""

from __future__ import annotations

import math

import pydantic
import pytest

from governor.config import Config, LimitsConfig, ModelConfig
from governor.config.explain import TABLES
from governor.errors import UnknownModelError
from tests.config.config_samples import BACKEND, MINIMAL, MODEL, load, only_problem, problems


def limits(line: str) -> str:
    return f"{MINIMAL}[limits]\n{line}\n"


def test_two_tables_are_a_whole_configuration_and_the_rest_has_defaults() -> None:
    config = load(MINIMAL)
    assert (config.server.host, config.server.port) == ("127.0.0.1", 4170)
    assert config.limits.max_pending_prompts_per_session == 5
    assert config.limits.prompt_deadline_ms is None
    assert config.evidence.poll_interval_ms == 250
    assert config.evidence.on_fall == "seen"
    assert config.tokens.api is None
    assert config.backend("triton").evidence == config.evidence
    assert config.model("chat").triton_model == "chat"
    assert config.model("chat").timeout_ms == 300_000


def test_nothing_in_a_configuration_can_be_changed() -> None:
    config = load(MINIMAL)
    with pytest.raises(pydantic.ValidationError):
        config.server.port = 1
    assert isinstance(config.backends, tuple)
    assert isinstance(config.models, tuple)


def test_an_unknown_name_is_a_known_error() -> None:
    config = load(MINIMAL)
    with pytest.raises(KeyError):
        config.backend("other")
    with pytest.raises(UnknownModelError, match="chat"):
        config.model("other")


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("7", 7), ("0", None), ("inf", None), ('"unlimited"', None)])
def test_s1_pending_prompts_take_positive_integers_and_three_spellings_of_no_limit(
    text: str, value: int | None
) -> None:
    config = load(limits(f"max_pending_prompts_per_session = {text}"))
    assert config.limits.max_pending_prompts_per_session == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-1", "negative"),
        ("-inf", "negative"),
        ("-0.5", "negative"),
        ("2.5", "fraction"),
        ("5.0", "without a decimal point"),
        ("nan", "NaN"),
        ("true", "no number"),
        ("false", "no number"),
        ('"5"', "no number"),
        ('"many"', "no number"),
        ("[5]", "no number"),
        ("1979-05-27", "no number"),
        ("1000001", "larger than 1000000"),
    ],
)
def test_s1_everything_else_is_refused_with_the_reason(text: str, reason: str) -> None:
    problem = only_problem(limits(f"max_pending_prompts_per_session = {text}"))
    assert "limits.max_pending_prompts_per_session: received" in problem
    assert reason in problem
    assert 'expected a positive integer; 0, inf or "unlimited" for no limit' in problem


@pytest.mark.parametrize("value", [-1, 2.5, math.nan, True, False, "5", [5]])
def test_s1_holds_for_a_configuration_built_in_python_too(value: object) -> None:
    with pytest.raises(pydantic.ValidationError):
        LimitsConfig.model_validate({"max_pending_prompts_per_session": value})


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        ("prompt_deadline_ms", MINIMAL + "[limits]\nprompt_deadline_ms = {}\n"),
        ("timeout_ms", MINIMAL + "timeout_ms = {}\n"),
        ("max_unprovable_age_ms", MINIMAL + "[evidence]\nmax_unprovable_age_ms = {}\n"),
    ],
)
def test_the_other_limits_that_can_be_off_follow_the_same_rule(key: str, lines: str) -> None:
    for off in ("0", "inf", '"unlimited"'):
        assert problems(lines.format(off)) == []
    for wrong in ("-1", "0.5", "nan", "true", '"soon"', "604800001"):
        assert f".{key}: received" in only_problem(lines.format(wrong))


def test_a_limit_that_is_off_is_none() -> None:
    config = load(MINIMAL + "timeout_ms = 0\n[evidence]\nmax_unprovable_age_ms = inf\n")
    assert config.model("chat").timeout_ms is None
    assert config.evidence.max_unprovable_age_ms is None


INTEGERS = [
    (table, key)
    for table, model in TABLES.items()
    for key, field in model.model_fields.items()
    if field.annotation is int and key != "port"
]


@pytest.mark.parametrize(("table", "key"), INTEGERS)
@pytest.mark.parametrize("wrong", ["0", "-1", "1.5", "1.0", "true", '"1"', "nan", "inf", "99999999999999999999"])
def test_every_duration_size_and_count_is_a_positive_bounded_integer(table: str, key: str, wrong: str) -> None:
    problem = only_problem(f"{MINIMAL}[{table}]\n{key} = {wrong}\n")
    assert f"{table}.{key}: received" in problem
    assert "expected an integer" in problem
    assert "from 1 to" in problem


def test_the_list_of_integers_is_not_empty_by_accident() -> None:
    assert len(INTEGERS) >= 20


@pytest.mark.parametrize("port", ["-1", "65536", '"4170"', "4170.0", "true"])
def test_a_port_is_an_integer_of_sixteen_bits(port: str) -> None:
    assert "server.port" in only_problem(f"{MINIMAL}[server]\nport = {port}\n")


def test_port_0_asks_for_any_free_port() -> None:
    assert load(f"{MINIMAL}[server]\nport = 0\n").server.port == 0


@pytest.mark.parametrize("slots", ["0", "-1", "1025", "1.0", "true", '"1"'])
def test_slots_are_1_to_1024(slots: str) -> None:
    problem = only_problem(BACKEND + MODEL.replace("slots = 1", f"slots = {slots}"))
    assert problem.startswith("line 7: models[0].slots: received")
    assert "from 1 to 1024" in problem


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("HTTP://Triton.Example:8000/", "http://triton.example:8000"),
        ("http://triton.example.:80", "http://triton.example"),
        ("https://triton:443", "https://triton"),
        ("https://triton:80", "https://triton:80"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://[0:0:0:0:0:0:0:1]:8000", "http://[::1]:8000"),
        ("http://under_score:8000", "http://under_score:8000"),
    ],
)
def test_a_backend_url_has_one_spelling(given: str, kept: str) -> None:
    assert load(MINIMAL.replace("http://127.0.0.1:8000", given)).backends[0].url == kept


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "localhost",
        "ftp://triton",
        "unix:///run/triton",
        "http://",
        "http://:8000",
        "http:///v2",
        "http://triton/v2",
        "http://triton?a=1",
        "http://triton#a",
        "http://triton:0",
        "http://triton:65536",
        "http://triton:port",
        "http://tri ton",
        "http://tri\\ton",
        "http://tri\\tton",
        "http://trit\u00f6n",
        "http://-triton",
        "http://a..b",
        "http://[::1",
        "http://127.1",
        "http://999.1.1.1",
        "http://user:pw@triton:8000",
        "http://" + "a" * 300,
    ],
)
def test_a_backend_url_is_scheme_host_and_port_and_nothing_more(url: str) -> None:
    problem = only_problem(MINIMAL.replace("http://127.0.0.1:8000", url))
    assert problem.startswith("line 3: backends[0].url: received")
    assert "expected scheme, host and port only" in problem


@pytest.mark.parametrize("url", ["http://user:sesame@triton:8000", "user:sesame@triton", "http://u:ses@ame@triton/"])
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    problem = only_problem(MINIMAL.replace("http://127.0.0.1:8000", url))
    assert "ses" not in problem
    assert "********@triton" in problem


def origins(value: str) -> tuple[str, ...]:
    return load(f"{MINIMAL}[server]\nallow_origins = {value}\n").server.allow_origins


def test_origins_of_web_pages_have_one_spelling() -> None:
    assert origins('["HTTPS://Chat.Example:443", "https://chat.example", "http://[::1]:80"]') == (
        "https://chat.example",
        "http://[::1]",
    )
    assert origins('["http://localhost:3000"]') == ("http://localhost:3000",)
    assert origins("[]") == load(MINIMAL).server.allow_origins == ()


@pytest.mark.parametrize(
    "value",
    ['"https://a"', "[1]", '["a.example"]', '["null"]', '["https://a/"]', '["https://a/b"]', '["https://a?b"]',
     '["ftp://a"]', '["https://u@a"]', '["*", "https://a"]', '["https://a:0"]', '[["https://a"]]', "true", "{}"],
)  # fmt: skip
def test_what_is_no_origin_is_refused(value: str) -> None:
    assert "server.allow_origins: received" in only_problem(f"{MINIMAL}[server]\nallow_origins = {value}\n")


def test_names_of_headers_have_one_spelling() -> None:
    backend = load(f'{BACKEND}forward_headers = ["X-Tenant", "x-tenant", "triton_key"]\n{MODEL}').backends[0]
    assert backend.forward_headers == ("x-tenant", "triton_key")


@pytest.mark.parametrize(
    "value", ['"x-a"', "[1]", '[""]', '["x a"]', '["x:a"]', '["ä"]', '["Authorization"]', '["host"]', '["Cookie"]']
)
def test_what_is_no_header_to_forward_is_refused(value: str) -> None:
    problem = only_problem(f"{BACKEND}forward_headers = {value}\n{MODEL}")
    assert "forward_headers: received" in problem


def test_a_metrics_url_may_have_a_path_and_means_metrics_without_one() -> None:
    def metrics_of(url: str) -> str | None:
        return load(f'{BACKEND}metrics_url = "{url}"\n{MODEL}').backends[0].metrics_url

    assert metrics_of("http://127.0.0.1:8002") == "http://127.0.0.1:8002/metrics"
    assert metrics_of("http://127.0.0.1:8002/") == "http://127.0.0.1:8002/metrics"
    assert metrics_of("http://127.0.0.1:8002/other") == "http://127.0.0.1:8002/other"
    assert load(MINIMAL).backends[0].metrics_url is None


@pytest.mark.parametrize("url", ["127.0.0.1:8002", "http://a/metrics?x=1", "http://a/metrics#x", "http://u@a/metrics"])
def test_a_metrics_url_is_a_plain_http_url(url: str) -> None:
    assert "backends[0].metrics_url: received" in only_problem(f'{BACKEND}metrics_url = "{url}"\n{MODEL}')


@pytest.mark.parametrize("name", ["", "GPU", "a b", "a/b", "\u00e4", "a\\n", ".", "..", "a" * 65, "a:b"])
def test_backend_names_are_short_and_plain(name: str) -> None:
    text = MINIMAL.replace('name = "triton"', f'name = "{name}"').replace('backend = "triton"', f'backend = "{name}"')
    found = problems(text)
    assert any("backends[0].name: received" in problem for problem in found), found


@pytest.mark.parametrize("name", ["a", "0", "gpu-0", "gpu.0", "_x", "a" * 64])
def test_good_backend_names(name: str) -> None:
    text = MINIMAL.replace('name = "triton"', f'name = "{name}"').replace('backend = "triton"', f'backend = "{name}"')
    assert load(text).backends[0].name == name


@pytest.mark.parametrize("name", ["", "a b", "a/b", "\u00e4", ".", "..", "a" * 65, "a\\u0000"])
def test_public_model_names_fit_into_a_url(name: str) -> None:
    found = problems(MINIMAL.replace("chat", name))
    assert any("models[0].name: received" in problem for problem in found), found


def test_public_model_names_may_have_capitals_as_triton_models_do() -> None:
    assert load(MINIMAL.replace("chat", "Llama-3.1")).models[0].triton_model == "Llama-3.1"


@pytest.mark.parametrize("name", ["", "a/b", "a b", "..", "a\\\\b", "a\\u0000"])
def test_triton_model_names_fit_into_a_url(name: str) -> None:
    assert "models[0].triton_model: received" in only_problem(f'{MINIMAL}triton_model = "{name}"\n')


@pytest.mark.parametrize("version", ['""', '"0"', '"-1"', '"latest"', "1", '"01"'])
def test_a_version_is_a_positive_number_in_quotes(version: str) -> None:
    assert "models[0].triton_version: received" in only_problem(f"{MINIMAL}triton_version = {version}\n")


def test_a_version_is_kept_as_text() -> None:
    assert load(f'{MINIMAL}triton_version = "12"\n').models[0].triton_version == "12"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (BACKEND + MODEL.replace("generate_stream", "stream"), "models[0].kind"),
        (MINIMAL + '[evidence]\non_fall = "never"\n', "evidence.on_fall"),
        (MINIMAL + '[evidence]\nboot_identity = "uuid"\n', "evidence.boot_identity"),
        (BACKEND + 'when_unavailable = "retry"\n' + MODEL, "backends[0].when_unavailable"),
        (MINIMAL + 'on_abandon = "kill"\n', "models[0].on_abandon"),
        (MINIMAL + "on_abandon = 3\n", "models[0].on_abandon"),
    ],
)
def test_a_choice_is_one_of_its_words_and_the_words_are_told(text: str, path: str) -> None:
    problem = only_problem(text)
    assert f"{path}: received" in problem
    assert 'expected "' in problem
    assert ' or "' in problem


@pytest.mark.parametrize("value", ["1", '"true"', "0"])
def test_a_truth_value_is_true_or_false(value: str) -> None:
    problem = only_problem(f"{MINIMAL}[tokens]\nmetrics_public = {value}\n")
    assert "expected true or false" in problem


@pytest.mark.parametrize(
    "token", ["a" * 15, "a" * 513, "", "secret token secret", "secrets\\tsecrets!", "s\u00e9cret" * 5]
)
def test_a_token_is_long_printable_and_without_spaces_and_never_shown(token: str) -> None:
    for key in ("api", "admin"):
        problem = only_problem(f'{MINIMAL}[tokens]\n{key} = "{token}"\n')
        assert f"tokens.{key}: received a value that is not shown" in problem
        assert "expected 16 to 512 printable ASCII characters without spaces" in problem
        assert token == "" or token not in problem


def test_a_token_of_16_characters_is_enough() -> None:
    assert load(f'{MINIMAL}[tokens]\napi = "0123456789abcde~"\n').tokens.api == "0123456789abcde~"


def test_parameters_are_json_scalars() -> None:
    config = load(f'{MINIMAL}parameters = {{ max_tokens = 5, stop = "x", t = 0.5, echo = false, big = -1 }}\n')
    assert dict(config.models[0].parameters) == {
        "max_tokens": 5,
        "stop": "x",
        "t": 0.5,
        "echo": False,
        "big": -1,
    }


@pytest.mark.parametrize(
    "value",
    ["nan", "inf", "[1]", "{a = 1}", "1979-05-27", "12:00:00", "9223372036854775808", "0x" + "f" * 5000],
)
def test_what_json_cannot_carry_is_no_parameter(value: str) -> None:
    problem = only_problem(f"{MINIMAL}parameters = {{ x = {value} }}\n")
    assert problem.startswith("line 9: models[0].parameters.x: received")


def test_parameters_are_a_table() -> None:
    assert "models[0].parameters: received 3; expected a table" in only_problem(f"{MINIMAL}parameters = 3\n")


def test_a_section_that_is_no_table_is_named() -> None:
    for table in ("server", "limits", "evidence"):
        assert f"{table}: received 3; expected a table" in only_problem(f"{table} = 3\n{MINIMAL}")
    assert "tokens: received a value that is not shown" in only_problem(f'tokens = "sesame"\n{MINIMAL}')
    assert "backends[0]: received 3; expected a table" in "".join(problems(f"backends = [3]\n{MODEL}"))
    assert "models[0]: received 3; expected a table" in "".join(problems(f"models = [3]\n{BACKEND}"))


def test_one_bracket_instead_of_two_is_explained() -> None:
    found = problems(MINIMAL.replace("[[backends]]", "[backends]"))
    assert found == [
        (
            "line 1: backends: received a table of 2 keys; expected an array of tables; "
            "write [[backends]] with two brackets"
        )
    ]


def test_a_thousand_models_are_enough() -> None:
    assert "models: received an array of 1001 values; expected at most 1000" in only_problem(MODEL * 1001 + BACKEND)


def test_python_may_build_a_configuration_directly() -> None:
    text_config = load(MINIMAL)
    model = ModelConfig(name="chat", backend="triton", slots=1, kind="generate_stream")
    assert Config(backends=text_config.backends, models=(model,)) == text_config
