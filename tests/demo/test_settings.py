"""What `make run` accepts, and what it refuses up front."""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path

import pytest

from governor.config import load_config
from governor.demo.settings import DemoError, Settings


def test_ports_and_folder_come_from_the_environment() -> None:
    settings = Settings.from_environment({"PORT": "4171", "TRITON_PORT": "8100", "RUN_DIR": "here"})
    assert (settings.governor_url, settings.triton_url) == ("http://127.0.0.1:4171", "http://127.0.0.1:8100")
    assert settings.metrics_url == "http://127.0.0.1:8102/metrics"
    assert str(settings.worklog) == "here/work.jsonl"
    assert Settings.from_environment({}) == Settings()
    assert Settings.from_environment({"PORT": "", "TRITON": ""}) == Settings()


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"PORT": "x"}, "PORT=x is no port: give a number from 1 to 65535"),
        ({"PORT": "0"}, "PORT=0 is no port: give a number from 1 to 65535"),
        ({"TRITON_PORT": "65534"}, "TRITON_PORT=65534 is no port: give a number from 1 to 65533"),
        (
            {"PORT": "8002"},
            "PORT=8002 lies where Triton takes 8000 to 8002: choose another PORT or TRITON_PORT",
        ),
        ({"TRITON": "fake"}, 'TRITON=fake is unknown: give "real" or "simulated"'),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(DemoError) as refused:
        Settings.from_environment(environment)
    assert refused.value.message == sentence


def free_base() -> int:
    for port in range(31000, 32000, 10):
        with (
            socket.socket() as one,
            socket.socket() as two,
            socket.socket() as three,
            socket.socket() as four,
        ):
            try:
                for offset, each in enumerate((one, two, three, four)):
                    each.bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return port
    raise RuntimeError("no four free ports in a row")


def test_port_that_is_taken_is_named(tmp_path: Path) -> None:
    base = free_base()
    settings = Settings(port=base + 3, triton_port=base, run_dir=tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base + 1))
        taken.listen()
        with pytest.raises(
            DemoError, match=f"Port {base + 1} is taken: stop who has it, or set TRITON_PORT to another number"
        ):
            settings.claim()
    settings.claim().close()


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    base = free_base()
    settings = Settings(port=base + 3, triton_port=base, run_dir=tmp_path)
    with settings.claim(), pytest.raises(DemoError, match=r"Another run uses .*: stop it, or set RUN_DIR"):
        settings.claim()
    (tmp_path / "work.jsonl").write_text("old\n")
    with settings.claim():
        assert not settings.worklog.exists(), "a run begins with an empty work log"


@pytest.mark.parametrize("taken", [".", "lock", "triton.log"])
def test_folder_that_cannot_be_written_to_is_named(tmp_path: Path, taken: str) -> None:
    base, run_dir = free_base(), tmp_path / "run"
    if taken == ".":
        run_dir.touch()
    else:
        (run_dir / taken).mkdir(parents=True)
    with pytest.raises(DemoError, match=r"RUN_DIR=.*/run cannot be used \(.+\): set it to a folder that you may write"):
        Settings(port=base + 3, triton_port=base, run_dir=run_dir).claim()


def test_configuration_it_writes_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "governor.toml"
    file.write_text(Settings(port=4171).governor_config())
    config = load_config(file, environ={})
    assert config.server.port == 4171
    assert {model["name"]: model["slots"] for model in tomllib.loads(file.read_text())["models"]} == {
        "sentiment": 2,
        "storyteller": 1,
        "slow": 1,
    }


def test_each_run_has_a_page_with_a_token_of_its_own(tmp_path: Path) -> None:
    """The hints say it, the configuration has it, and no other run does."""
    settings, other = Settings(), Settings()
    file = tmp_path / "governor.toml"
    file.write_text(settings.governor_config())
    token = load_config(file, environ={}).tokens.admin
    assert token == settings.admin_token != other.admin_token
    assert f"http://127.0.0.1:4170/ui   (the token: {token})" in settings.hints(Path("/bin here"))
    assert f"GOVERNOR_ADMIN_TOKEN={token}\n" in settings.hints(Path("bin"))
    assert token not in repr(settings)


def test_hints_make_the_command_known_to_another_terminal() -> None:
    hints = Settings(port=4171).hints(Path("/a folder/bin"))
    assert "export PATH='/a folder/bin':$PATH GOVERNOR_URL=http://127.0.0.1:4171 GOVERNOR_ADMIN_TOKEN=" in hints
    assert "\ngovernor watch\n" in hints


def test_examples_of_the_documentation_name_the_backend_of_the_demonstration() -> None:
    """`governor admin ... triton:storyteller` of docs/cli.md and docs/admin.md is to work against `make run`."""
    backends = {model["backend"] for model in tomllib.loads(Settings().governor_config())["models"]}
    assert backends == {"triton"}


def test_hints_name_every_url_and_the_work_log() -> None:
    hints = Settings(port=4171, triton_port=8100).hints(Path(".venv/bin"))
    for needed in (
        "http://127.0.0.1:4171/v2/models/sentiment/generate",
        "/events",
        "max-time",
        ".run/work.jsonl",
    ):
        assert needed in hints
