"""The over-admission kit: does a gateway that promises N at once keep that promise when callers leave?

    python -m bench.admission backend --port 9000            # in another terminal: the backend that tells the truth
    python -m bench.admission gateway http://127.0.0.1:8080/v2/models/noop/infer --backend-port 9000 --limit 1
    python -m bench.admission peers                          # all that are installed, each with limit 1

Point any HTTP gateway at the backend, limit it to `--limit` requests at once, and give its URL. Three cases:

    drop     a caller leaves in the middle of its call, another comes
    flood    six callers come and leave at once, then one stays
    timeout  the gateway's own timeout (set it to 1 s; the work takes longer) ends a call, another comes

The number shown is the most executions that the backend really ran at once. More than the limit is over-admission:
two prompts share a GPU that was promised to one. The backend computes on when its client leaves, as Triton does.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench import backend
from bench.http1 import Answer, request
from bench.lab import Lab, Table
from bench.processes import get
from bench.targets import INFER, TENSOR, available

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORK_MS = 2_500
TIMEOUT_MS = 1_000
_FLOOD = 6
_WARM_UPS = 3
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Gateway:
    """The gateway under test.

    Attributes:
        wire: a request that it passes on to the backend.
        backend_port: the truth-telling backend behind it.
        limit: how many requests it was told to have at the backend at once.
    """

    host: str
    port: int
    wire: bytes
    backend_port: int
    limit: int = 1

    def call(self) -> socket.socket:
        """A caller who has asked, and waits."""
        sock = socket.create_connection((self.host, self.port))
        sock.sendall(self.wire)
        return sock


@dataclass(frozen=True)
class Outcome:
    """What one case showed: the peak at the backend, executions in all, and the statuses that callers saw."""

    case: str
    peak: int
    executions: int
    statuses: tuple[str, ...]


def drop(gateway: Gateway) -> list[str]:
    """A caller leaves in the middle of its call, another comes."""
    leaver = gateway.call()
    time.sleep(0.5)
    leaver.close()
    time.sleep(0.1)
    return [_status(gateway.call())]


def flood(gateway: Gateway) -> list[str]:
    """Callers come and leave at once, then one stays."""
    for _ in range(_FLOOD):
        leaver = gateway.call()
        time.sleep(0.15)
        leaver.close()
    return [_status(gateway.call())]


def timeout(gateway: Gateway) -> list[str]:
    """The gateway ends a call that takes too long, another comes."""
    return [_status(gateway.call()), _status(gateway.call())]


CASES: dict[str, Callable[[Gateway], list[str]]] = {"drop": drop, "flood": flood, "timeout": timeout}


def examine(gateway: Gateway, case: str) -> Outcome:
    """Runs one case and asks the backend what really ran."""
    _tell(gateway, delay_ms=0)
    for _ in range(_WARM_UPS):  # some gateways take seconds for their first calls, which would pass for a timeout
        _status(gateway.call())
    _wait_quiet(gateway)
    _tell(gateway, delay_ms=WORK_MS)
    statuses = CASES[case](gateway)
    _wait_quiet(gateway)
    truth = json.loads(get(gateway.backend_port, "/truth")[1])
    return Outcome(case, truth["peak"], truth["began"], tuple(statuses))


def peers_table(lab: Lab) -> Table:
    """Every installed target, each told to let one request through at a time."""
    table = Table(
        "Most executions at once where one was allowed, by the backend's record",
        ["gateway", *CASES, "answers to who stayed (drop, flood, timeout)", "verdict"],
        notes=["1 is honest; more is over-admission. The stock path has no limit and shows what none means."],
    )
    for name in lab.targets:
        outcomes = []
        for case in CASES:
            # Only the last case is about the gateway's own timeout; elsewhere it must not strike.
            timeout_ms = TIMEOUT_MS if case == "timeout" else None
            with lab.start(name, slots=1, waiting=8, timeout_ms=timeout_ms) as running:
                gateway = Gateway("127.0.0.1", running.port, running.wire(), lab.backend_port)
                outcomes.append(examine(gateway, case))
        table.rows.append(
            [
                name,
                *(each.peak for each in outcomes),
                " / ".join(",".join(each.statuses) for each in outcomes),
                "honest" if all(each.peak <= 1 for each in outcomes) else "over-admits",
            ]
        )
    return table


def _status(sock: socket.socket) -> str:
    """Waits for the answer; `cut` when the connection ends without one, `none` when patience does."""
    answer = Answer()
    sock.settimeout(_PATIENCE_S)
    with sock:
        try:
            while not answer.complete:
                data = sock.recv(65536)
                if not data:
                    return str(answer.status) if answer.status else "cut"
                answer.feed(data)
        except TimeoutError:
            return "none"
        except OSError:
            return "cut"
    return str(answer.status)


def _wait_quiet(gateway: Gateway) -> None:
    """Until the backend has run nothing for a while, so that calls still on their way are seen."""
    quiet_since_s = time.monotonic()
    while time.monotonic() - quiet_since_s < 0.7:
        if json.loads(get(gateway.backend_port, "/truth")[1])["running"]:
            quiet_since_s = time.monotonic()
        time.sleep(0.05)


def _tell(gateway: Gateway, **behaviour: float) -> None:
    get(gateway.backend_port, "/truth", json.dumps(behaviour).encode())


def _examine_url(url: str, *, backend_port: int, limit: int, body: str, headers: Sequence[str]) -> bool:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        sys.exit(f"{url} must look like http://127.0.0.1:8080/path")
    port = parts.port or 80
    fields = tuple((name.strip(), value.strip()) for name, _, value in (each.partition(":") for each in headers))
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    wire = request("POST", f"{parts.hostname}:{port}", path, body.encode(), fields)
    gateway = Gateway(parts.hostname, port, wire, backend_port, limit)
    honest = True
    for case in CASES:
        seen = examine(gateway, case)
        honest &= seen.peak <= limit
        print(
            f"{case:8} peak {seen.peak} of {limit} allowed, {seen.executions} executions, "
            f"callers who stayed got {', '.join(seen.statuses)}"
        )
    return honest


def main() -> None:
    """Runs the kit; exits with 1 where a gateway over-admits."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.admission", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    truthful = commands.add_parser("backend", help="the backend that tells the truth")
    truthful.add_argument("--port", type=int, default=9000)
    one = commands.add_parser("gateway", help="examine the gateway at a URL")
    one.add_argument("url")
    one.add_argument("--backend-port", type=int, default=9000)
    one.add_argument("--limit", type=int, default=1)
    one.add_argument("--body", default=TENSOR)
    one.add_argument("--header", action="append", default=[], help="'Name: value'")
    every = commands.add_parser("peers", help="examine all targets that are installed")
    every.add_argument("--targets", nargs="+")
    options = parser.parse_args()
    if options.command == "backend":
        print(f"The backend listens on http://127.0.0.1:{options.port}: {INFER}, /v1/chat/completions, /generate")
        backend.Backend(options.port, backend.Behaviour()).run()
    elif options.command == "gateway":
        sys.exit(
            not _examine_url(
                options.url,
                backend_port=options.backend_port,
                limit=options.limit,
                body=options.body,
                headers=options.header,
            )
        )
    else:
        with ExitStack() as stack:
            print(peers_table(Lab(stack, available(options.targets), quick=True)).text())


if __name__ == "__main__":
    main()
