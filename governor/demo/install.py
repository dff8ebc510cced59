"""Installs a real Triton server from PyPI: no docker, no root, no GPU."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from governor.errors import GovernorError
from governor.simulator import workload

Report = Callable[[str], object]
"""Where progress sentences go."""

VENV_NAME: Final = ".venv-triton"
PYTHONS: Final = ("3.12", "3.11")
"""The Python versions whose python-backend stub runs: numpy 2 breaks the stub, 3.13 has no older numpy."""

SYSTEM_FOLDER: Final = "/usr/bin"
"""Where the system's own Python is, in case the PATH hides it."""

_WITHOUT_DEPENDENCIES: Final = ("nvidia-pytriton==0.7.0", "vaderSentiment==3.3.2")
_WITH_DEPENDENCIES: Final = ("numpy<2",)
_MIN_GLIBC: Final = (2, 35)
_INSTALL_TIMEOUT_S: Final = 900
_LOCK_POLL_S: Final = 0.25
_MARKER: Final = "governor-triton.json"
_LOCK: Final = "install.lock"
_KEPT_ENVIRONMENT: Final = ("HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
_WORKLOAD: Final = Path(workload.__file__).parent

_PROBE = """\
import ensurepip, json, os, sys, sysconfig, venv
version = "%d.%d" % sys.version_info[:2]
library = "libpython%s.so.1.0" % version
multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
libdir = sysconfig.get_config_var("LIBDIR") or "/usr/lib"
folders = [libdir, libdir + "/" + multiarch, sys.base_prefix + "/lib", "/usr/lib/" + multiarch]
found = [folder for folder in folders if os.path.exists(folder + "/" + library)]
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({"version": version, "libdir": found[0] if found else None, "executable": base}))
"""


class TritonSetupError(GovernorError):
    """The real Triton cannot be installed or started here; the message says what to do."""

    code = "triton_setup_failed"


@dataclass(frozen=True)
class Python:
    """An interpreter that Triton's python backend can embed."""

    executable: Path
    version: str
    libdir: Path
    """The folder of its shared libpython."""


@dataclass(frozen=True)
class Installation:
    """A Triton server that is ready to be started."""

    venv: Path
    python: Python

    @property
    def site_packages(self) -> Path:
        """The folder its wheels were unpacked to."""
        return self.venv / "lib" / f"python{self.python.version}" / "site-packages"

    @property
    def server(self) -> Path:
        """The `tritonserver` program."""
        return self.site_packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"

    @property
    def backends(self) -> Path:
        """The backend directory with the python backend and its stub."""
        return self.venv / "backends"

    def environment(self) -> dict[str, str]:
        """The environment `tritonserver` needs, whole."""
        kept = {key: os.environ[key] for key in _KEPT_ENVIRONMENT if key in os.environ}
        return {
            **kept,
            # The embedded interpreter takes the python that comes first here for its own, and so the venv's
            # packages for its own too. It does not heed PYTHONPATH.
            "PATH": os.pathsep.join((str(self.venv / "bin"), os.environ.get("PATH", os.defpath))),
            "LD_LIBRARY_PATH": f"{self.site_packages / 'nvidia_pytriton.libs'}:{self.python.libdir}",
            # Eight model processes with a thread pool each would only fight over the cores.
            "OPENBLAS_NUM_THREADS": "1",
        }


def why_not_supported() -> str | None:
    """Why no real Triton can run on this machine; None where one can.

    Runs the candidate interpreters (well under a second each), so it blocks for a moment.
    """
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "AMD64"}:
        here = f"{platform.system()} on {platform.machine()}"
        return f"Triton's wheel exists for Linux on x86-64 only; this is {here}"
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < _MIN_GLIBC:
        has = f"{library} {version}" if library else "another C library"
        return f"Triton's wheel needs glibc 2.35 or newer; this system has {has}"
    if find_python() is None:
        return (
            "Triton's python backend needs Python 3.11 or 3.12 with its shared libpython and the venv module, "
            "and none was found; on Debian or Ubuntu: apt-get install python3 python3-venv libpython3-dev"
        )
    return None


def find_python() -> Python | None:
    """The newest interpreter on this machine that Triton can embed; this process's own where it fits."""
    best: dict[str, Python] = {}
    for candidate in _candidates():
        found = _probe(candidate)
        if found is not None:
            best.setdefault(found.version, found)
    return next((best[version] for version in PYTHONS if version in best), None)


def _candidates() -> Iterator[str]:
    names = [f"python{version}" for version in PYTHONS]
    system = [f"{SYSTEM_FOLDER}/{name}" for name in (*names, "python3")]
    seen: set[str] = set()
    for name in (sys.executable, *names, "python3", *_behind_shims(), *system):
        path = shutil.which(name)
        if path is not None and path not in seen:
            seen.add(path)
            yield path


def _behind_shims() -> list[str]:
    """A pyenv shim exists on the PATH even where running it fails, so the versions behind it are tried too."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    try:
        return [
            str(folder / "bin" / "python")
            for version in PYTHONS
            for folder in sorted(pyenv.glob(f"{version}.*"), reverse=True)
        ]
    except OSError:
        return []  # it is another user's


def _probe(executable: str) -> Python | None:
    command = [executable, "-I", "-c", _PROBE]
    try:
        ran = subprocess.run(command, capture_output=True, timeout=20, check=True, env=_clean_environment())
        told = json.loads(ran.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None  # a shim without a version behind it, a broken install, no ensurepip: not this one
    if told["version"] not in PYTHONS or told["libdir"] is None:
        return None
    return Python(Path(told["executable"]), told["version"], Path(told["libdir"]))


def _clean_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in {"PYTHONHOME", "PYTHONPATH"}}


async def install(folder: Path, report: Report = lambda _sentence: None) -> Installation:
    """The Triton installation in `folder`/.venv-triton, made first where it is absent or incomplete.

    Several processes may ask at once: one installs, the others wait. It takes 10 to 60 s and 300 MB.

    Raises:
        TritonSetupError: this machine cannot run it, or the installation failed; says what to do.
    """
    venv = _venv_in(folder)
    with trio.move_on_after(_INSTALL_TIMEOUT_S):
        async with _locked(venv / _LOCK):
            ready = _finished(venv)
            installation = ready if ready is not None else await _install(venv, report)
            _offer_workload(installation)
            return installation
    raise TritonSetupError(f"Installing Triton into {venv} took more than {_INSTALL_TIMEOUT_S} s; try again")


def _venv_in(folder: Path) -> Path:
    # Several checkouts may link to one installation; it is known by where it really is, and emptied if it is not.
    venv = (folder / VENV_NAME).resolve()
    try:
        venv.mkdir(parents=True, exist_ok=True)
        (venv / _LOCK).open("ab").close()
    except OSError as failed:
        raise TritonSetupError(
            f"Triton cannot be installed into {venv} ({failed.strerror}): make it a folder that you may write to,"
            " or do without a real one (TRITON=simulated)"
        ) from failed
    return venv


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    with path.open("ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await trio.sleep(_LOCK_POLL_S)
        yield  # closing the file releases the lock


def _finished(venv: Path) -> Installation | None:
    """The complete installation of exactly what this module asks for, or None."""
    try:
        told = json.loads((venv / _MARKER).read_text())
        if told["requirements"] != [*_WITHOUT_DEPENDENCIES, *_WITH_DEPENDENCIES] or told["venv"] != str(venv):
            return None
        python = Python(Path(told["executable"]), told["version"], Path(told["libdir"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # never finished, or by another version of this module: install it again
    installation = Installation(venv, python)
    return installation if python.libdir.is_dir() and installation.server.exists() else None


async def _install(venv: Path, report: Report) -> Installation:
    reason = await trio.to_thread.run_sync(why_not_supported)
    python = await trio.to_thread.run_sync(find_python)
    if reason is not None or python is None:
        raise TritonSetupError(reason or "no suitable Python was found")
    report(f"Installing the Triton server into {venv} with Python {python.version} (60 MB, once) ...")
    _empty(venv)
    log = venv / "install.log"
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    await _run([str(python.executable), "-m", "venv", str(venv)], log)
    # The server needs none of what the wheel's Python client asks for, and VADER only its own lexicon.
    await _run([*pip, "--no-deps", *_WITHOUT_DEPENDENCIES], log)
    await _run([*pip, *_WITH_DEPENDENCIES], log)
    installation = Installation(venv, python)
    _build_backend(installation)
    marker = {
        "requirements": [*_WITHOUT_DEPENDENCIES, *_WITH_DEPENDENCIES],
        "venv": str(venv),
        "executable": str(python.executable),
        "version": python.version,
        "libdir": str(python.libdir),
    }
    (venv / _MARKER).write_text(json.dumps(marker, indent=1) + "\n")
    return installation


def _empty(venv: Path) -> None:
    for entry in venv.iterdir():
        if entry.name == _LOCK:
            continue  # we hold it
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


async def _run(command: list[str], log: Path) -> None:
    with log.open("ab") as output:
        try:
            await trio.run_process(
                command, stdin=b"", stdout=output, stderr=subprocess.STDOUT, env=_clean_environment()
            )
        except (OSError, subprocess.CalledProcessError) as failed:
            how = f"exit code {failed.returncode}" if isinstance(failed, subprocess.CalledProcessError) else str(failed)
            told = "\n  ".join(["", *last_lines(log, 8)])
            raise TritonSetupError(
                f"Triton could not be installed. If the package index cannot be reached, mend the network or set"
                f" PIP_INDEX_URL and try again, or do without a real one (TRITON=simulated)."
                f" `{' '.join(command)}` failed ({how}); see {log}:{told}"
            ) from failed


def last_lines(log: Path, count: int) -> list[str]:
    """The last `count` lines of a log file; none where it does not exist."""
    try:
        return log.read_text(errors="replace").strip().splitlines()[-count:]
    except FileNotFoundError:
        return []


def _build_backend(installation: Installation) -> None:
    """Put the python backend and the stub of our Python side by side: the wheel keeps them apart."""
    server = installation.server.parent.parent
    target = installation.backends / "python"
    target.mkdir(parents=True, exist_ok=True)
    stub = server / "python_backend_stubs" / installation.python.version / "triton_python_backend_stub"
    for source in (*(server / "backends" / "python").iterdir(), stub):
        if source.is_file():
            shutil.copy2(source, target / source.name)


def _offer_workload(installation: Installation) -> None:
    """Let models import the modules of `governor.simulator.workload` as plain files.

    The first line keeps Python from writing `__pycache__` into the model repository: Triton takes the changed
    folder for a changed model, and the next load of it, meant to change nothing, resets its counters.
    """
    pointer = installation.site_packages / "governor-workload.pth"
    wanted = f"import sys; sys.dont_write_bytecode = True\n{_WORKLOAD}\n"
    if not pointer.exists() or pointer.read_text() != wanted:
        pointer.write_text(wanted)
