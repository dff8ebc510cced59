"""What `make run` can be told, and what it hands on: the governor's configuration and the sentences to try."""

from __future__ import annotations

import errno
import fcntl
import secrets
import shlex
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from governor.errors import GovernorError

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST: Final = "127.0.0.1"
MODELS: Final = ("sentiment", "storyteller", "slow")


class DemoError(GovernorError):
    """The demonstration cannot run as it was asked to; the message says what to change."""

    code = "demo_failed"


@dataclass(frozen=True)
class Settings:
    """Ports and folders of one demonstration."""

    port: int = 4170
    """Where the governor listens."""
    triton_port: int = 8000
    """Triton's HTTP port; gRPC and metrics take the next two."""
    run_dir: Path = Path(".run")
    """Where logs, the work log and the governor's configuration lie."""
    install_dir: Path = Path()
    """Where the folder with Triton's own Python environment lies."""
    simulated: bool = False
    """Whether the simulated Triton is wanted even where the real one can run."""
    admin_token: str = field(default_factory=lambda: secrets.token_urlsafe(18), compare=False, repr=False)
    """The operators' token, new for each demonstration."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read PORT, TRITON_PORT, RUN_DIR and TRITON.

        Raises:
            DemoError: a port is no port, both ranges overlap, or TRITON is neither "real" nor "simulated".
        """
        port = _port(environment, "PORT", 4170, highest=65535)
        triton_port = _port(environment, "TRITON_PORT", 8000, highest=65533)
        if triton_port <= port <= triton_port + 2:
            taken = f"Triton takes {triton_port} to {triton_port + 2}"
            raise DemoError(f"PORT={port} lies where {taken}: choose another PORT or TRITON_PORT")
        wanted = environment.get("TRITON") or "real"
        if wanted not in {"real", "simulated"}:
            raise DemoError(f'TRITON={wanted} is unknown: give "real" or "simulated"')
        run_dir = Path(environment.get("RUN_DIR") or ".run")
        return cls(port, triton_port, run_dir, simulated=wanted == "simulated")

    @property
    def governor_url(self) -> str:
        """Where clients find the governor."""
        return f"http://{HOST}:{self.port}"

    @property
    def triton_url(self) -> str:
        """Where the governor finds Triton."""
        return f"http://{HOST}:{self.triton_port}"

    @property
    def metrics_url(self) -> str:
        """Where the governor finds Triton's metrics."""
        return f"http://{HOST}:{self.triton_port + 2}/metrics"

    @property
    def worklog(self) -> Path:
        """What the models really executed."""
        return self.run_dir / "work.jsonl"

    def claim(self) -> IO[bytes]:
        """Make the run folder and take it for this process, as long as the returned file is open.

        Raises:
            DemoError: another demonstration uses it, it cannot be written to, or a port is taken.
        """
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            lock = (self.run_dir / "lock").open("ab")
            try:
                self._prepare(lock)
            except BaseException:
                lock.close()
                raise
        except OSError as failed:
            raise DemoError(
                f"RUN_DIR={self.run_dir} cannot be used ({failed.strerror}): set it to a folder that you may write to"
            ) from failed
        return lock

    def _prepare(self, lock: IO[bytes]) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"Another run uses {self.run_dir}: stop it, or set RUN_DIR, PORT and TRITON_PORT") from None
        _must_be_free("PORT", self.port, self.port)
        _must_be_free("TRITON_PORT", self.triton_port, self.triton_port + 2)
        for name in ("work.jsonl", "triton.log", "governor.log", "governor.toml"):
            (self.run_dir / name).unlink(missing_ok=True)

    def governor_config(self) -> str:
        """The governor's configuration file."""
        return f"""\
# Written by `make run` at every start.

[server]
host = "{HOST}"
port = {self.port}

[limits]
prompt_deadline_ms = 600_000

[tokens]
admin = "{self.admin_token}"

[[backends]]
name = "triton"
url = "{self.triton_url}"
metrics_url = "{self.metrics_url}"

[[models]]
name = "sentiment"
backend = "triton"
slots = 2
kind = "generate"

[[models]]
name = "storyteller"
backend = "triton"
slots = 1
kind = "generate_stream"

# Four instances in Triton and one slot here: a call too many would really execute, and show in work.jsonl.
[[models]]
name = "slow"
backend = "triton"
slots = 1
kind = "generate"
"""

    def hints(self, commands: Path) -> str:
        """What to try, as commands for a shell; `commands` is the folder that has the command `governor`."""
        url = self.governor_url
        json_type = "-H 'content-type: application/json'"
        return f"""\
The governor  {url}   (readiness: {url}/readyz, metrics: {url}/metrics)
Its page      {url}/ui   (the token: {self.admin_token})
Triton        {self.triton_url}   (behind it; talk to the governor instead)
Logs          {self.run_dir}/governor.log, {self.run_dir}/triton.log
Work log      {self.worklog}   (when each execution really started and ended)

Try, in another terminal. This line lets it find the command `governor`, this server, and the operators' token:

export PATH={shlex.quote(str(commands))}:$PATH GOVERNOR_URL={url} GOVERNOR_ADMIN_TOKEN={self.admin_token}

1. Score a sentence:

curl -s {url}/v2/models/sentiment/generate {json_type} -d '{{"text_input": "What a wonderful day!"}}'; echo

2. Prompt a session and watch its events, token by token:

S=$(curl -s {url}/session {json_type} -d '{{"modelServiceId": "storyteller"}}' \\
    | sed 's/.*"sessionId": *"\\([^"]*\\)".*/\\1/'); \\
curl -s {url}/session/$S/prompt {json_type} -d '{{"prompt": [{{"type": "text", "text": "Alice was"}}]}}'; echo; \\
curl -sN --max-time 4 -H 'Last-Event-ID: 0' {url}/session/$S/events

3. Leave a 5 s call after half a second and call again: the slot comes free when the work has really ended:

curl -s -m 0.5 {url}/v2/models/slow/generate {json_type} -d '{{"text_input": "5"}}'; \\
time curl -s {url}/v2/models/slow/generate {json_type} -d '{{"text_input": "1"}}'; cat {self.worklog}

4. See the slots while you do that, live (Ctrl-C leaves it):

governor watch

Ctrl-C stops everything.
"""


def _port(environment: Mapping[str, str], name: str, default: int, *, highest: int) -> int:
    told = environment.get(name) or str(default)
    if not (told.isascii() and told.isdigit() and 1 <= int(told) <= highest):
        raise DemoError(f"{name}={told} is no port: give a number from 1 to {highest}")
    return int(told)


def _must_be_free(name: str, first: int, last: int) -> None:
    for port in range(first, last + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as failed:
                why = "is taken" if failed.errno == errno.EADDRINUSE else f"cannot be used ({failed.strerror})"
                raise DemoError(f"Port {port} {why}: stop who has it, or set {name} to another number") from None
