"""Which Python Triton gets, and what is said where it can get none."""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import TYPE_CHECKING, NoReturn

import pytest
import trio

from governor.demo import install as module
from governor.demo.install import VENV_NAME, TritonSetupError, find_python, install, why_not_supported

if TYPE_CHECKING:
    from pathlib import Path


def script(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH and a pyenv with nothing but what the test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setattr(module, "SYSTEM_FOLDER", str(tmp_path / "usr"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "gone"))
    return tmp_path


def told(version: str, libdir: str) -> str:
    return f'echo \'{{"version": "{version}", "libdir": {libdir}, "executable": "/opt/python{version}"}}\''


def test_shim_that_fails_when_run_is_passed_over(only: Path) -> None:
    script(only / "bin", "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    script(only / "bin", "python3.11", told("3.11", '"/opt/lib"'))
    found = find_python()
    assert found is not None
    assert (found.version, str(found.executable), str(found.libdir)) == (
        "3.11",
        "/opt/python3.11",
        "/opt/lib",
    )


def test_pyenv_of_another_user_is_passed_over(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError("another user's")

    monkeypatch.setattr("pathlib.Path.glob", refuse)
    script(only / "bin", "python3.11", told("3.11", '"/opt/lib"'))
    found = find_python()
    assert found is not None
    assert found.version == "3.11"


def test_version_behind_a_failing_shim_is_found(only: Path) -> None:
    script(only / "bin", "python3.12", "exit 127")
    folder = only / "pyenv" / "versions" / "3.12.1" / "bin"
    folder.mkdir(parents=True)
    script(folder, "python", told("3.12", '"/opt/lib"'))
    found = find_python()
    assert found is not None
    assert found.version == "3.12"


@pytest.mark.parametrize(
    "answer", [told("3.13", '"/opt/lib"'), told("3.12", "null"), "echo nonsense", "exit 1", "true"]
)
def test_unfit_pythons_are_none(only: Path, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script(only / "bin", "python3", answer)
    assert find_python() is None
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert "needs Python 3.11 or 3.12" in (why_not_supported() or "")


@pytest.mark.parametrize(
    ("system", "machine", "libc", "reason"),
    [
        ("darwin", "arm64", ("", ""), "exists for Linux on x86-64 only"),
        ("linux", "aarch64", ("glibc", "2.40"), "exists for Linux on x86-64 only"),
        ("linux", "x86_64", ("glibc", "2.31"), "needs glibc 2.35 or newer; this system has glibc 2.31"),
        ("linux", "x86_64", ("", ""), "needs glibc 2.35 or newer; this system has another C library"),
    ],
)
def test_unfit_systems_are_told(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: tuple[str, str], reason: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    assert reason in (why_not_supported() or "")


async def test_failed_installation_says_what_failed_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = module.Python(executable=tmp_path / "python", version="3.12", libdir=tmp_path)
    script(tmp_path, "python", "echo 'No space left on device'; exit 1")
    monkeypatch.setattr(module, "why_not_supported", lambda: None)
    monkeypatch.setattr(module, "find_python", lambda: broken)
    said: list[str] = []
    for _ in range(2):
        with pytest.raises(TritonSetupError, match="No space left on device"):
            await install(tmp_path, said.append)
    assert len(said) == 2
    assert not (tmp_path / VENV_NAME / "governor-triton.json").exists()


async def test_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / VENV_NAME).touch()
    with pytest.raises(TritonSetupError, match=rf"cannot be installed into .*{VENV_NAME} \(.+TRITON=simulated"):
        await install(tmp_path)


async def test_one_installs_and_the_other_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    working = 0

    async def fake(venv: Path, _report: object) -> module.Installation:
        nonlocal working
        working += 1
        assert working == 1, "two install at once"
        await trio.sleep(0.05)
        working -= 1
        installation = module.Installation(venv, module.Python(venv, "3.12", venv))
        installation.site_packages.mkdir(parents=True, exist_ok=True)
        return installation

    monkeypatch.setattr(module, "_install", fake)
    monkeypatch.setattr(module, "_LOCK_POLL_S", 0.01)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(install, tmp_path)


async def test_a_link_to_an_installation_is_followed_and_never_empties_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several checkouts may share one installation; its marker names the folder that it is really in."""
    made = 0

    async def fake(venv: Path, _report: object) -> module.Installation:
        nonlocal made
        made += 1
        python = {"executable": sys.executable, "version": "3.12", "libdir": str(tmp_path)}
        installation = module.Installation(venv, module.Python(tmp_path, "3.12", tmp_path))
        installation.server.parent.mkdir(parents=True)
        installation.server.touch()
        requirements = [*module._WITHOUT_DEPENDENCIES, *module._WITH_DEPENDENCIES]
        (venv / module._MARKER).write_text(json.dumps({"requirements": requirements, "venv": str(venv), **python}))
        return installation

    monkeypatch.setattr(module, "_install", fake)
    real, linked = tmp_path / "real", tmp_path / "linked"
    first = await install(real)
    linked.mkdir()
    (linked / VENV_NAME).symlink_to(real / VENV_NAME)
    assert (await install(linked)).server == first.server
    assert made == 1


def test_environment_of_the_server_has_no_foreign_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "/foreign")
    monkeypatch.setenv("VIRTUAL_ENV", "/foreign")
    environment = module.Installation(tmp_path, module.Python(tmp_path, "3.12", tmp_path)).environment()
    assert "/foreign" not in environment.values()
    assert environment["PATH"].split(os.pathsep)[0] == str(tmp_path / "bin")
