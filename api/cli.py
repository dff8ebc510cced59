"""The command `governor`: `serve`, `check`, `--version`.

Exit codes: 0 for a requested end or a clean check; 1 for a failure while serving or a check with errors; 2 for a
command line or a configuration that cannot work.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from governor.config import load_config
from governor.errors import ConfigError, GovernorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.config import Config
    from governor.errors import JsonValue


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        config = _load(options)
    except ConfigError as error:
        return _refuse_config(error)
    if options.command == "check":
        return _check(config)
    return _serve(config)


def _load(options: argparse.Namespace) -> Config:
    overrides: dict[str, JsonValue] = {}
    if options.command == "serve":
        overrides = {
            "server.host": options.host,
            "server.port": options.port,
            "limits.max_pending_prompts_per_session": options.max_pending_prompts_per_session,
            "limits.prompt_deadline_ms": options.prompt_deadline_ms,
        }
    return load_config(options.config, environ=os.environ, overrides=overrides)


def _refuse_config(error: ConfigError) -> int:
    for problem in error.problems:
        print(problem, file=sys.stderr)
    count = len(error.problems)
    print(f"governor: {count} {'mistake' if count == 1 else 'mistakes'}; nothing was started", file=sys.stderr)
    return 2


def _serve(config: Config) -> int:
    # What serving needs is slow to import, and `--version` or a mistake in the configuration need none of it.
    from .logs import configure_logging  # noqa: PLC0415
    from .main import serve  # noqa: PLC0415

    configure_logging()
    try:
        trio.run(serve, config)
    except GovernorError as error:
        print(f"governor: {error.message}", file=sys.stderr)
        return 1
    return 0


def _check(config: Config) -> int:
    from governor.check import check  # noqa: PLC0415  # see _serve

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
    return parser


def _whole(text: str) -> int:
    """A non-negative integer in plain digits: no sign, no fraction, no underscore (S1)."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
