"""`make run`: a real Triton with the demo models, and the governor in front of it, until Ctrl-C.

Takes PORT (4170), TRITON_PORT (8000, and the next two), RUN_DIR (.run) and TRITON (real or simulated) from the
environment. Exit codes: 0 after a requested stop, 1 when something could not be started or ended by itself.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
import trio

from governor.demo.install import install, last_lines, why_not_supported
from governor.demo.process import ChildProcess
from governor.demo.settings import HOST, MODELS, DemoError, Settings
from governor.demo.triton import RealTriton
from governor.errors import GovernorError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_READY_S: Final = 60.0
_POLL_S: Final = 0.1
_GOVERNOR_GRACE_S: Final = 15.0
"""Longer than the governor gives the work it accepted (`server.graceful_timeout_ms`)."""


def main() -> int:
    """Run the demonstration; returns the exit code."""
    try:
        settings = Settings.from_environment(os.environ)
        with settings.claim():
            return trio.run(demonstrate, settings)
    except GovernorError as error:
        say(error.message)
        return 1


def say(sentence: str) -> None:
    """Tell the person at the terminal; one who has left (`| tee` ends by the same Ctrl-C) stops nothing."""
    try:
        print(sentence, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def demonstrate(settings: Settings) -> int:
    """Start everything, wait for a signal or for the end of a child, stop everything.

    Returns:
        0 after SIGINT or SIGTERM, 1 when a child ended by itself.

    Raises:
        GovernorError: something could not be started; nothing is left running.
    """
    failure: GovernorError | None = None
    died = ""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, signals, nursery.cancel_scope)
            try:
                died = await _run(settings)
            except GovernorError as error:
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if died:
        say(died)
        return 1
    say("Stopped.")
    return 0


async def _stop_on_signal(signals: AsyncIterator[int], running: trio.CancelScope) -> None:
    async for number in signals:
        say(f"\n{signal.Signals(number).name}: stopping everything ...")
        running.cancel()
        return


async def _run(settings: Settings) -> str:
    """Run until a child ends by itself; returns the sentence that says which one and why."""
    async with _triton(settings) as triton, _governor(settings) as governor:
        children = {"Triton": (triton, "triton.log"), "The governor": (governor, "governor.log")}
        ready = False
        with trio.move_on_after(_READY_S) as starting:
            async with httpx.AsyncClient(base_url=settings.governor_url, timeout=5) as client:
                while True:
                    for name, (child, log) in children.items():
                        if child.returncode is not None:
                            return _epitaph(name, child.returncode, settings.run_dir / log)
                    if not ready and (ready := await _is_ready(client)):
                        starting.deadline = math.inf
                        say("\n" + settings.hints(Path(sys.executable).parent))
                    await trio.sleep(_POLL_S)
    log_file = settings.run_dir / "governor.log"
    raise DemoError(f"The governor was not ready within {_READY_S:.0f} s:{_end_of(log_file)}")


@asynccontextmanager
async def _triton(settings: Settings) -> AsyncIterator[ChildProcess]:
    """The real Triton, or the simulated one where the real one cannot run."""
    reason = "TRITON=simulated" if settings.simulated else await trio.to_thread.run_sync(why_not_supported)
    if reason is not None:
        say(f"No real Triton here: {reason}.\nA simulated one takes its place; its scores are rough ones.")
        async with _simulated_triton(settings) as process:
            yield process
        return
    installation = await install(settings.install_dir, say)
    await trio.lowlevel.checkpoint_if_cancelled()
    say(f"Starting Triton with {', '.join(MODELS)} ...")
    real = RealTriton(
        installation,
        run_dir=settings.run_dir,
        models=MODELS,
        http_port=settings.triton_port,
        env={"GOVERNOR_WORKLOG": str(settings.worklog.absolute())},
    )
    async with real:
        yield real.process


@asynccontextmanager
async def _simulated_triton(settings: Settings) -> AsyncIterator[ChildProcess]:
    command = [
        *(sys.executable, "-m", "governor.simulator", "--host", HOST, "--port", str(settings.triton_port)),
        *(
            "--models",
            ",".join(MODELS),
            "--work-log",
            str(settings.worklog),
            "--id",
            f"simulated-{time.time_ns()}",
        ),
    ]
    process = ChildProcess(command, log=settings.run_dir / "triton.log", env=os.environ)
    try:
        yield process
    finally:
        process.end_now()


@asynccontextmanager
async def _governor(settings: Settings) -> AsyncIterator[ChildProcess]:
    """The governor. It is asked to stop before Triton is, so that it can finish what it accepted."""
    config = settings.run_dir / "governor.toml"
    config.touch(mode=0o600)
    config.chmod(0o600)  # it has the operators' token
    config.write_text(settings.governor_config())
    say("Starting the governor ...")
    process = ChildProcess(
        [sys.executable, "-m", "api.cli", "serve", str(config)],
        log=settings.run_dir / "governor.log",
        env=os.environ,
        death_signal=signal.SIGTERM,
    )
    try:
        yield process
    finally:
        # Shielded so that the signal that ends all of this does not cut the governor's own ending short; stop()
        # takes no longer than the grace.
        with trio.CancelScope(shield=True):
            await process.stop(_GOVERNOR_GRACE_S)


async def _is_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False  # it does not listen yet


def _epitaph(name: str, code: int, log: Path) -> str:
    return f"{name} ended by itself with exit code {code}:{_end_of(log)}"


def _end_of(log: Path) -> str:
    lines = last_lines(log, 8)
    return "\n  ".join(["", f"(the end of {log})", *lines]) if lines else f" {log} is empty"
