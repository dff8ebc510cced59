"""One owner per identity: D8, E10."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from api.ownership import IdentityOwnedError, OwnershipError, owned_identities
from governor.config import ModelConfig
from tests.api.harness import make_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLD = """
import sys
from api.ownership import owned_identities
from tests.api.harness import make_config
with owned_identities(make_config()):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Locks of tests are nobody else's."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@contextmanager
def other_process() -> Iterator[subprocess.Popen[str]]:
    """Another governor with the same configuration."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_owner_is_refused_with_the_process_that_holds_it_and_the_reason() -> None:
    with other_process() as other:
        with pytest.raises(IdentityOwnedError) as caught, owned_identities(make_config()):
            pass
        message = caught.value.message
        assert f"process {other.pid}" in message
        assert '"m" on http://127.0.0.1:8000' in message
        assert "Two governors would" in message


def test_a_killed_owner_holds_nothing() -> None:
    with other_process() as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        with owned_identities(make_config()):
            pass


def test_an_owner_gives_back_what_it_held() -> None:
    for _ in range(3):
        with owned_identities(make_config()), pytest.raises(IdentityOwnedError), owned_identities(make_config()):
            pass


@pytest.mark.parametrize("url", ["http://localhost:8000", "http://[::1]:8000", "http://127.0.0.1:8000/"])
def test_other_spellings_of_a_server_are_the_same_server(url: str) -> None:
    with (
        owned_identities(make_config()),
        pytest.raises(IdentityOwnedError),
        owned_identities(make_config(backend={"url": url})),
    ):
        pass


def test_other_models_and_other_servers_are_free() -> None:
    with (
        owned_identities(make_config()),
        owned_identities(make_config(model={"triton_model": "m2"})),
        owned_identities(make_config(backend={"url": "http://127.0.0.1:8001"})),
    ):
        pass


def test_who_gets_not_all_locks_keeps_none() -> None:
    """The refused one had taken a lock before; it is free again."""
    second = ModelConfig(name="second", triton_model="z", backend="b", slots=1, kind="generate")
    only_second = make_config(model={"name": "second", "triton_model": "z"})
    with owned_identities(only_second):
        with pytest.raises(IdentityOwnedError), owned_identities(make_config(more_models=(second,))):
            pass
        with owned_identities(make_config()):
            pass


def test_a_folder_that_is_not_ours_is_no_place_for_locks(runtime_dir: Path) -> None:
    (runtime_dir / "governor").symlink_to(runtime_dir)
    with pytest.raises(OwnershipError, match="XDG_RUNTIME_DIR"), owned_identities(make_config()):
        pass


def test_a_folder_of_another_user_is_no_place_for_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    with owned_identities(make_config()):
        pass
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 2)
    with pytest.raises(OwnershipError, match="not a folder of this user"), owned_identities(make_config()):
        pass


def test_an_error_while_owning_is_not_taken_for_one_of_the_locks() -> None:
    with pytest.raises(ConnectionError), owned_identities(make_config()):
        raise ConnectionError


def test_without_a_runtime_folder_the_temporary_one_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with owned_identities(make_config()):
        folder = tmp_path / f"governor-{os.getuid()}"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [path.read_text() for path in folder.iterdir()] == [f"{os.getpid()}\n"]


def test_further_identities_are_taken_all_or_none_and_given_back_one_by_one() -> None:
    """A reload adds some and takes some away, while the others stay held."""
    here, second, foreign = ("http://127.0.0.1:8000", "n"), ("http://127.0.0.1:8000", "o"), "http://127.0.0.1:8000"
    with other_process(), owned_identities(make_config(model={"triton_model": "own"})) as owned:
        with pytest.raises(IdentityOwnedError):
            owned.take([here, (foreign, "m"), second])
        with owned_identities(make_config(model={"triton_model": "n"})):
            pass  # it was not kept
        owned.take([here, second])
        owned.take([here])
        with pytest.raises(IdentityOwnedError), owned_identities(make_config(model={"triton_model": "n"})):
            pass
        owned.give_back(*here)
        with owned_identities(make_config(model={"triton_model": "n"})):
            pass
        with pytest.raises(IdentityOwnedError), owned_identities(make_config(model={"triton_model": "o"})):
            pass
    with owned_identities(make_config(model={"triton_model": "o"})):
        pass
