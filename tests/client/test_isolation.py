"""C1: the client needs nothing of what the server needs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires
from typing import TYPE_CHECKING

import pytest

from tests.client.fake import chunk, complete, fake_server, tell

if TYPE_CHECKING:
    from pathlib import Path

SERVERS = ("quart", "quart_trio", "hypercorn", "tritonclient", "trio_util", "trio", "pydantic", "prometheus_client",
           "structlog", "numpy", "gevent", "werkzeug", "flask")  # fmt: skip
WITHOUT = f"""
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {SERVERS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refusing())
"""
USE = """
from governor.client import DaemonClient, SyncDaemonClient, SyncDaemonSessionClient
import asyncio

with SyncDaemonClient(sys.argv[1]) as client:
    session = SyncDaemonSessionClient.create_or_attach(client)
    print(session.prompt("hello").stop_reason)
    with session.stream("hello") as turn:
        print([event.type for event in turn])

async def main():
    async with DaemonClient(sys.argv[1]) as client:
        print((await client.prompt(session.session_id, "hello")).stop_reason)

asyncio.run(main())
"""
USED = "end_turn\n['turn_complete']\nend_turn\n"
SERVE = "from api.cli import main\nsys.exit(main(sys.argv[1:]))"
BARE = "governor: this is the client alone ({} is missing); the server needs `pip install 'triton-governor[server]'`\n"


def run(python: str | Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own, and not in the project's folder."""
    command = [str(python), "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/")


def test_the_client_works_without_the_servers_dependencies() -> None:
    with fake_server() as server:
        done = run(sys.executable, WITHOUT + USE, server.url)
    assert (done.stdout, done.stderr, done.returncode) == (USED, "", 0)


def test_the_command_says_in_one_sentence_what_the_server_needs(tmp_path: Path) -> None:
    config = tmp_path / "governor.toml"
    config.write_text("")
    for command in ("serve", "check"):
        done = run(sys.executable, WITHOUT + SERVE, command, str(config))
        assert (done.stdout, done.stderr, done.returncode) == ("", BARE.format("pydantic"), 2)
    done = run(sys.executable, WITHOUT + SERVE, "--version")
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_clients_commands_work_without_the_servers_dependencies() -> None:
    more = (("GET /readyz", lambda _, wire: wire.json(200, {"ready": True})),
            ("GET /capabilities", lambda _, wire: wire.json(200, {})),
            ("GET /metrics", lambda _, wire: wire.json(200, None)))  # fmt: skip
    with fake_server(more=more, events=tell(chunk(1, "p1", "hello"), complete(2, "p1"))) as server:
        done = run(sys.executable, WITHOUT + SERVE, "prompt", "hi", "--url", server.url)
        assert (done.stdout, done.stderr, done.returncode) == ("hello\n", "", 0)
        done = run(sys.executable, WITHOUT + SERVE, "status", "--json", "--url", server.url)
        assert (done.stderr, done.returncode) == ("", 0)


def test_what_is_declared_is_no_more_than_the_client_needs() -> None:
    declared = [line for line in requires("triton-governor") or [] if "extra ==" not in line]
    names = {re.split(r"[^\w-]", line)[0] for line in declared}
    assert names == {"anyio", "argcomplete", "httpx", "rich"}


@pytest.mark.slow
def test_a_bare_installation_is_the_client(bare_python: Path, tmp_path: Path) -> None:
    for name in ("quart", "hypercorn", "tritonclient", "pydantic", "trio"):
        assert run(bare_python, f"import {name}").returncode == 1
    with fake_server() as server:
        done = run(bare_python, "import sys\n" + USE, server.url)
    assert (done.stdout, done.stderr, done.returncode) == (USED, "", 0)
    (tmp_path / "governor.toml").write_text("")
    command = [str(bare_python.parent / "governor"), "serve", str(tmp_path / "governor.toml")]
    served = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (served.stderr, served.returncode) == (BARE.format("pydantic"), 2)
