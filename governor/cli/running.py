"""How a command runs: signals cancel it, errors become one sentence and an exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

import anyio
from rich.console import Console

from governor.cli.advice import advice
from governor.client import (
    DaemonConnectionError,
    DaemonError,
    DaemonHttpError,
    DaemonPendingPromptLimitError,
    DaemonTurnError,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from governor.errors import JsonValue

_TRY_LATER = frozenset({429, 503})


class Exit(IntEnum):
    """What a command exits with; 128 and the signal's number if a signal ended it."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_REACHED = 3
    TRY_LATER = 4
    NOT_READY = 5
    TIMED_OUT = 124
    PIPE_CLOSED = 128 + signal.SIGPIPE


class UsageError(Exception):
    """The command line cannot be carried out; the message says what to change."""


def run(options: argparse.Namespace, command: Callable[[], Awaitable[Exit]]) -> int:
    """Runs a command to its exit code."""
    try:
        return anyio.run(_with_signals, command)
    except BrokenPipeError:
        # Whoever read our output has left; what is still buffered must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.PIPE_CLOSED
    except (UsageError, ValueError) as error:
        _say(options, Exit.USAGE, str(error), {})
        return Exit.USAGE
    except TimeoutError:
        _say(options, Exit.TIMED_OUT, f"not done within {options.timeout:g} s; cancelled", {"code": "timeout"})
        return Exit.TIMED_OUT
    except DaemonError as error:
        code, fields = _verdict(error)
        _say(options, code, _sentence(error), fields, advice(error, options))
        return code


async def _with_signals(command: Callable[[], Awaitable[Exit]]) -> int:
    outcome: list[int] = []
    failures: list[Exception] = []

    async def obey(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                outcome.append(128 + number)
                scope.cancel()
                return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(obey, tasks.cancel_scope)
        try:
            outcome.append(await command())
        except Exception as error:  # noqa: BLE001  # raised again below, without a group around it
            failures.append(error)
        tasks.cancel_scope.cancel()
    if failures and not outcome:
        raise failures[0]
    return outcome[0]


def _verdict(error: DaemonError) -> tuple[Exit, dict[str, JsonValue]]:
    if isinstance(error, DaemonPendingPromptLimitError):
        return Exit.TRY_LATER, {"code": "prompt_queue_full", "limit": error.limit, "pendingCount": error.pending_count}
    if isinstance(error, DaemonTurnError):
        return Exit.FAILED, {"code": error.code, "promptId": error.prompt_id, "text": error.text}
    if isinstance(error, DaemonHttpError):
        later = error.status in _TRY_LATER
        return (Exit.TRY_LATER if later else Exit.FAILED), {"code": error.code, "status": error.status}
    if isinstance(error, DaemonConnectionError):
        return Exit.NOT_REACHED, {"code": "not_reached"}
    return Exit.FAILED, {"code": None}


def _sentence(error: DaemonError) -> str:
    # A model's own words, such as "text_input is empty", would else pass for those of this command.
    return f"the prompt failed ({error.code}): {error}" if isinstance(error, DaemonTurnError) else str(error)


def _say(options: argparse.Namespace, code: Exit, sentence: str, fields: dict[str, JsonValue], to_do: str = "") -> None:
    if options.json:
        print_json({"error": sentence, **({"advice": to_do} if to_do else {}), **fields, "exit": int(code)})
    else:
        told = f"{sentence}. To do: {to_do}" if to_do else sentence
        error_console().print(f"governor: {told}", markup=False, highlight=False, soft_wrap=True)


def print_json(value: JsonValue) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=not speaks_utf8()) + "\n")
    sys.stdout.flush()


def speaks_utf8() -> bool:
    """Whether standard output takes every character."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        # rich would end the process, out of the middle of a task. `run` knows what to do about it.
        raise BrokenPipeError


def console() -> Console:
    """What goes to standard output; colours only for a terminal, and not with NO_COLOR."""
    return _Console()


def error_console() -> Console:
    """What goes to standard error."""
    return _Console(stderr=True)


def clean(text: str) -> str:
    """A text from the network, as a terminal may see it: nothing in it moves the cursor or changes colours."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
