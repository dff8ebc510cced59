"""What the client's commands take. Nothing here imports what the commands need."""

from __future__ import annotations

import argparse
import math
import os
from importlib import import_module
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from governor.cli import completion

if TYPE_CHECKING:
    from collections.abc import Callable

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  # it has no public name

DEFAULT_URL: Final = "http://127.0.0.1:4170"
URL_VARIABLE: Final = "GOVERNOR_URL"
SHELLS: Final = ("bash", "zsh", "fish")
_ENVIRONMENT: Final = (
    "environment: GOVERNOR_URL, GOVERNOR_TOKEN and GOVERNOR_ADMIN_TOKEN stand for the flags; NO_COLOR switches"
    " colours off. Exit codes: docs/cli.md"
)


def add_commands(commands: Commands) -> None:
    """Adds the client's commands to those of the command line."""
    _add_prompt(commands)
    _add_status(commands)
    _add_watch(commands)
    _add_admin(commands)
    completing = commands.add_parser("completion", help="print what a shell needs to complete this command")
    completing.add_argument("shell", choices=SHELLS, help="eval the output in its start-up file")
    completing.set_defaults(run=completion.print_code)


def _add_prompt(commands: Commands) -> None:
    command = _command(commands, "prompt", "send a prompt and print its answer as it is written", "prompt")
    command.add_argument("text", nargs="?", metavar="TEXT", help="the prompt; standard input without it or with -")
    model = command.add_argument("--model", metavar="NAME", help="which model; the server's first one without it")
    session = command.add_argument("--session", metavar="ID", help="go on with this session; a new one without it")
    command.add_argument("--keep", action="store_true", help="leave the new session open and say its id (stderr)")
    command.add_argument(
        "--deadline-ms", type=_positive, metavar="MS", help="the server ends the prompt after this time"
    )
    command.add_argument("--timeout", type=_seconds, metavar="S", help="cancel it and exit with 124 after this time")
    completion.offer(model, completion.models)
    completion.offer(session, completion.sessions)


def _add_status(commands: Commands) -> None:
    _command(commands, "status", "say whether the server can be used, and how it stands", "status")


def _add_watch(commands: Commands) -> None:
    command = _command(commands, "watch", "show slots, claims and queues as they change", "watch")
    command.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="look so often (1)")
    command.add_argument("--once", action="store_true", help="show the state once and exit")
    _admin_token(command)


def _add_admin(commands: Commands) -> None:
    admin = commands.add_parser("admin", help="what an operator sees and may do; needs the admin token")
    acts = admin.add_subparsers(dest="act", required=True, metavar="ACT")
    identities = _command(acts, "identities", "list identities and their claims", "admin:identities")
    restart = _command(
        acts, "restart", "forget all broken claims: their slots are free, without proof", "admin:restart"
    )
    which = restart.add_argument(
        "identity", nargs="?", type=_identity, metavar="IDENTITY", help="BACKEND:MODEL; see `identities`"
    )
    restart.add_argument("--all", action="store_true", help="every identity")
    restart.add_argument(
        "--drain-ms", type=_whole, default=0, metavar="MS", help="first wait for the running calls (0)"
    )
    release = _command(acts, "release", "forget one broken claim: its slot is free, without proof", "admin:release")
    whose = release.add_argument("identity", type=_identity, metavar="IDENTITY", help="BACKEND:MODEL; see `identities`")
    release.add_argument("claim", type=_whole, metavar="CLAIM", help="the claim's number; see `identities`")
    for act in (restart, release):
        act.add_argument("--reason", required=True, help="why; the audit log keeps it")
        act.add_argument("--operator", metavar="NAME", help="who you are; the audit log keeps it")
        act.add_argument("--expected-epoch", type=_whole, metavar="N", help="do nothing in another epoch than this")
        act.add_argument("--yes", action="store_true", help="do not ask first")
    audit = _command(acts, "audit", "list who did what, and why", "admin:audit")
    audit.add_argument("--size", type=_positive, default=20, metavar="N", help="the newest so many (20)")
    for command in (identities, restart, release, audit):
        _admin_token(command)
    for argument in (which, whose):
        completion.offer(argument, completion.identities)


def _command(commands: Commands, name: str, help_text: str, run: str) -> argparse.ArgumentParser:
    """A command that is `main` of governor.cli.<run>, or another function of it after a colon."""
    command = commands.add_parser(name, help=help_text, description=help_text, epilog=_ENVIRONMENT)
    command.add_argument(
        "--url", default=os.environ.get(URL_VARIABLE) or DEFAULT_URL, help=f"the server ({DEFAULT_URL})"
    )
    command.add_argument("--token", help="the API token; better in GOVERNOR_TOKEN, where `ps` does not show it")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_lazy(run))
    return command


def _admin_token(command: argparse.ArgumentParser) -> None:
    command.add_argument("--admin-token", metavar="TOKEN", help="the admin token; better in GOVERNOR_ADMIN_TOKEN")


def _lazy(where: str) -> Callable[[argparse.Namespace], int]:
    module, _, function = where.partition(":")

    def run(options: argparse.Namespace) -> int:
        found: Callable[[argparse.Namespace], int] = getattr(
            import_module(f"governor.cli.{module}"), function or "main"
        )
        return found(options)

    return run


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 0")
    return int(text)


def _positive(text: str) -> int:
    if not (number := _whole(text)):
        raise argparse.ArgumentTypeError("0 is too few")
    return number


def _identity(text: str) -> str:
    """The id of an identity, also of one as the log and the audit log write it: `backend/model`."""
    backend, slash, model = text.partition("/")
    if not slash or ":" in backend:
        return text
    escaped = quote(model, safe="").replace("~", "%7E").replace("%", "~")
    return f"{backend}:{escaped}"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 7 * 24 * 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds between 0 and a week")
    return seconds
