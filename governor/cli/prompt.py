"""`governor prompt`: one prompt, its answer as it is written."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import anyio

from governor.cli.running import Exit, UsageError, clean, error_console, print_json, run
from governor.cli.stdin import read_all
from governor.client import (
    AgentMessageChunk,
    CreateSessionRequest,
    DaemonClient,
    DaemonConnectionError,
    DaemonError,
    DaemonSessionClient,
    PendingPromptAdded,
    PromptRequest,
)

if TYPE_CHECKING:
    import argparse

    from rich.status import Status

    from governor.client import PromptResult, Turn

_INPUT_BYTES_MAX: Final = 16 * 1024 * 1024
_LEAVE_S: Final = 2.0


def main(options: argparse.Namespace) -> int:
    """Runs the command."""
    return run(options, lambda: _prompt(options))


async def _prompt(options: argparse.Namespace) -> Exit:
    if options.session is not None and (options.model is not None or options.keep):
        raise UsageError("--session goes on with a session as it is; --model and --keep are for a new one")
    request = PromptRequest(prompt=await _text(options.text), deadline_ms=options.deadline_ms)
    async with DaemonClient(options.url, token=options.token) as client, AsyncExitStack() as leaving:
        session = await _session(client, options, leaving)
        async with session.stream(request, timeout_s=options.timeout, cancel_on_server=True) as turn:
            result = await _show(turn, silent=options.json)
    if options.json:
        print_json({
            "sessionId": session.session_id,
            "promptId": result.prompt_id,
            "stopReason": result.stop_reason,
            "text": result.text,
            "complete": result.complete,
        })  # fmt: skip
    elif result.stop_reason != "end_turn":
        error_console().print(f"governor: ended with {result.stop_reason}", markup=False, highlight=False)
    return Exit.DONE if result.stop_reason == "end_turn" else Exit.FAILED


async def _session(client: DaemonClient, options: argparse.Namespace, leaving: AsyncExitStack) -> DaemonSessionClient:
    if options.session is not None:
        session = await DaemonSessionClient.resume(client, options.session)
        if session.client_id is not None:
            leaving.push_async_callback(_leave, session, close=False)
        return session
    request = CreateSessionRequest(model_service_id=options.model, session_scope="thread")
    session = await DaemonSessionClient.create_or_attach(client, request)
    if options.keep:
        error_console().print(f"session: {session.session_id}", markup=False, highlight=False)
    else:
        leaving.push_async_callback(_leave, session, close=True)
    return session


async def _leave(session: DaemonSessionClient, *, close: bool) -> None:
    # Shielded, so that Ctrl-C leaves no session behind; bounded, because the server closes it by itself later on.
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _LEAVE_S):
        try:
            await (session.close() if close else session.detach())
        except DaemonConnectionError:
            return  # a server that is away has closed it, or will; the command tells what it cost, if it cost anything
        except DaemonError as error:
            told = f"governor: the session was not left: {error}"
            error_console().print(told, markup=False, highlight=False, soft_wrap=True)


async def _show(turn: Turn, *, silent: bool) -> PromptResult:
    """Writes the answer as it comes; until it does, says on a terminal what is waited for."""
    terminal = error_console()
    waiting = terminal.status("waiting for the answer") if terminal.is_terminal and not silent else None
    if waiting is not None:
        waiting.start()
    ended_line = True
    try:
        async for event in turn:
            if isinstance(event, PendingPromptAdded) and waiting is not None:
                waiting.update("waiting: other prompts of the session come first")
            if isinstance(event, AgentMessageChunk) and event.text and not silent:
                _stop(waiting)
                _write(event.text)
                ended_line = event.text.endswith("\n")
        return await turn.result()
    finally:
        _stop(waiting)
        if not ended_line:
            _write("\n")


def _stop(waiting: Status | None) -> None:
    if waiting is not None:
        waiting.stop()


def _write(text: str) -> None:
    # Into a pipe or a file as it is; on a terminal nothing that a model says may act on it.
    sys.stdout.write(clean(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


async def _text(given: str | None) -> str:
    if given is not None and given != "-":
        return given
    if sys.stdin.isatty() and given is None:
        raise UsageError("no prompt: give it as an argument, or on standard input (- reads it from the terminal)")
    data = await read_all(_INPUT_BYTES_MAX)
    if not data:
        raise UsageError("standard input was empty: give the prompt as an argument, or pipe it in")
    if len(data) > _INPUT_BYTES_MAX:
        raise UsageError(f"standard input has more than {_INPUT_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is no UTF-8: {error}") from None
