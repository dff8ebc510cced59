"""The command `governor`: the server's `serve` and `check`, and the commands of its clients (governor/cli/).

It is there where only the client is installed too, so nothing here needs the server's dependencies until a command of
the server runs. docs/cli.md has the exit codes of the clients' commands.

Exit codes of the server's: 0 for a requested end or a clean check; 1 for a failure while serving or a check with
errors; 2 for a command line or a configuration that cannot work, or without the server's dependencies.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from governor.cli import add_commands, complete

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.config import Config
    from governor.errors import ConfigError, JsonValue

_OUR_OWN = {"api", "governor"}


def command() -> int:
    """What the installed command `governor` runs: `main`, for a process that is its own."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until a command listens for signals by itself, Ctrl-C ends it without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that a terminal cannot show loses no answer
    return main()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = _parser()
    complete(parser)
    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    return run(options)


def _serve_or_check(options: argparse.Namespace) -> int:
    try:
        from governor.config import load_config  # noqa: PLC0415  # see _serve
        from governor.errors import ConfigError  # noqa: PLC0415  # see _serve
    except ModuleNotFoundError as missing:
        return _refuse_bare(missing)
    load = partial(load_config, options.config, environ=os.environ, overrides=_overrides(options))
    try:
        config = load()
    except ConfigError as error:
        return _refuse_config(error)
    try:
        return _check(config) if options.command == "check" else _serve(config, load)
    except ModuleNotFoundError as missing:
        return _refuse_bare(missing)


def _overrides(options: argparse.Namespace) -> dict[str, JsonValue]:
    if options.command != "serve":
        return {}
    return {
        "server.host": options.host,
        "server.port": options.port,
        "limits.max_pending_prompts_per_session": options.max_pending_prompts_per_session,
        "limits.prompt_deadline_ms": options.prompt_deadline_ms,
    }


def _refuse_bare(missing: ModuleNotFoundError) -> int:
    if missing.name is None or missing.name.split(".")[0] in _OUR_OWN:
        raise missing
    print(
        f"governor: this is the client alone ({missing.name} is missing); the server needs"
        " `pip install 'triton-governor[server]'`",
        file=sys.stderr,
    )
    return 2


def _refuse_config(error: ConfigError) -> int:
    for problem in error.problems:
        print(problem, file=sys.stderr)
    count = len(error.problems)
    print(f"governor: {count} {'mistake' if count == 1 else 'mistakes'}; nothing was started", file=sys.stderr)
    return 2


def _serve(config: Config, load: Callable[[], Config]) -> int:
    # What serving needs is slow to import or not installed, and the other commands need none of it.
    import trio  # noqa: PLC0415

    from governor.errors import GovernorError  # noqa: PLC0415

    from .heap import keep_freed_memory, settle_heap  # noqa: PLC0415
    from .logs import configure_logging  # noqa: PLC0415
    from .main import serve  # noqa: PLC0415

    configure_logging()
    keep_freed_memory()
    settle_heap()
    try:
        trio.run(partial(serve, config, load=load))
    except GovernorError as error:
        print(f"governor: {error.message}", file=sys.stderr)
        return 1
    return 0


def _check(config: Config) -> int:
    import trio  # noqa: PLC0415  # see _serve

    from governor.check import check  # noqa: PLC0415

    report = trio.run(partial(check, config))
    for line in report.lines():
        print(line)
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="governor",
        description="An inference governor for NVIDIA Triton: slots are free when the work has provably ended.",
    )
    parser.add_argument("--version", action="version", version=f"governor {version('triton-governor')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_commands(commands)
    serve = commands.add_parser("serve", help="serve a configuration until SIGTERM or SIGINT")
    serve.add_argument("config", type=Path, metavar="CONFIG", help="the TOML file; see docs/configuration.md")
    serve.add_argument("--host", help="listen on this address (server.host)")
    serve.add_argument("--port", type=_whole, metavar="N", help="listen on this port, 0 for a free one (server.port)")
    serve.add_argument(
        "--max-pending-prompts-per-session",
        type=_whole,
        metavar="N",
        help="pending prompts that a session may have, the running one included; 0 for no limit",
    )
    serve.add_argument(
        "--prompt-deadline-ms",
        type=_whole,
        metavar="MS",
        help="longest time from a prompt's acceptance to its end for the caller; 0 for no limit",
    )
    check = commands.add_parser("check", help="check a configuration and the backends it names; starts nothing")
    check.add_argument("config", type=Path, metavar="CONFIG", help="the TOML file")
    for command in (serve, check):
        command.set_defaults(run=_serve_or_check)
    return parser


def _whole(text: str) -> int:
    """A non-negative integer in plain digits: no sign, no fraction, no underscore (S1)."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(command())
