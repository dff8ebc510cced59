"""`governor watch`: slots, claims and queues as they change.

With an admin token it shows the operator's live state and what happens; without one, what the metrics say.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import anyio
from rich.console import Group
from rich.live import Live
from rich.text import Text

from governor.cli import board, tables
from governor.cli.running import Exit, console, print_json, run
from governor.client import (
    AdminClient,
    AdminState,
    DaemonClient,
    DaemonConnectionError,
    DaemonError,
    DaemonStreamError,
)
from governor.client.admin import ADMIN_TOKEN_VARIABLE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from rich.console import RenderableType

    from governor.client import AdminEvents, ClaimState
    from governor.errors import JsonValue

_EVENTS_MAX: Final = 8
_CLAIMS_MAX: Final = 8
_CALM: Final = frozenset({"running"})


class Picture:
    """What is shown. Pure but for the clock in its title.

    Args:
        url: of the server, for the title.
    """

    def __init__(self, url: str) -> None:
        self.trouble: str | None = None
        self._url = url
        self._rows: list[board.Row] = []
        self._claims: list[tuple[str, ClaimState]] = []
        self._more_claims = 0
        self._summary = ""
        self._events: deque[Mapping[str, JsonValue]] = deque(maxlen=_EVENTS_MAX)

    def show_state(self, state: AdminState) -> None:
        """The operator's state has changed."""
        self.trouble = None
        self._rows = [board.row_of(identity) for identity in state.identities]
        odd = [(item.id, claim) for item in state.identities for claim in item.claims if claim.state not in _CALM]
        self._claims = odd[:_CLAIMS_MAX]
        self._more_claims = len(odd) - len(self._claims)
        self._summary = f"{state.live_sessions} sessions, {state.pending_prompts} prompts pending"
        if state.draining:
            self._summary += ", stopping" if state.stopping else ", draining: nothing new is accepted"

    def show_metrics(self, metrics: str) -> None:
        """The metrics were read."""
        self.trouble = None
        self._rows = board.rows_of(metrics)
        sessions, pending = (board.value_of(metrics, f"vig_{name}") for name in ("sessions", "pending_prompts"))
        self._summary = f"{sessions} sessions, {pending} prompts pending"

    def show_events(self, events: AdminEvents) -> None:
        """Something happened. What is told again, because its count has grown, takes the place of what was told."""
        for event in events.events:
            if self._events and self._events[-1].get("id") == event.get("id"):
                self._events.pop()
            self._events.append(event)

    def as_json(self) -> dict[str, JsonValue]:
        """The same for programs."""
        rows: list[JsonValue] = [row.as_json() for row in self._rows]
        return {"atMs": int(time.time() * 1000), "identities": rows, "trouble": self.trouble}

    def __rich__(self) -> RenderableType:
        title = Text.assemble((self._url, "bold"), f"  {time.strftime('%H:%M:%S')}  {self._summary}")
        if self.trouble is not None:
            title.append(f"  {self.trouble}", "bold red")
        parts: list[RenderableType] = [title, Text(), tables.identities(self._rows)]
        if self._claims:
            parts += [Text(), tables.claims(self._claims)]
        if self._more_claims:
            parts.append(Text(f"and {self._more_claims} more", "dim"))
        if self._events:
            parts += [Text(), *map(tables.happened, self._events)]
        return Group(*parts)


def main(options: argparse.Namespace) -> int:
    """Runs the command."""
    return run(options, lambda: _watch(options))


async def _watch(options: argparse.Namespace) -> Exit:
    picture = Picture(options.url.rstrip("/"))
    token = options.admin_token or os.environ.get(ADMIN_TOKEN_VARIABLE)
    look = _look_as_operator if token else _look_at_metrics
    out = console()
    if options.once or options.json or not out.is_terminal:
        await look(picture, options, lambda: _print(picture, options))
        return Exit.DONE
    failure: DaemonError | None = None
    with Live(picture, console=out, auto_refresh=False, screen=True) as live:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_tick, live)
            try:
                await look(picture, options, live.refresh)
            except DaemonError as error:  # raised below, without a group around it
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return Exit.DONE


async def _tick(live: Live) -> None:
    """Keeps the clock going, so that one sees that it is alive."""
    while True:
        await anyio.sleep(1)
        live.refresh()


async def _look_as_operator(picture: Picture, options: argparse.Namespace, shown: Callable[[], None]) -> None:
    async with AdminClient(options.url, token=options.admin_token) as admin:
        picture.show_state(await admin.state())
        shown()
        while not options.once:
            try:
                async with admin.live() as live:
                    async for told in live:
                        if isinstance(told, AdminState):
                            picture.show_state(told)
                        else:
                            picture.show_events(told)
                        if not options.json or isinstance(told, AdminState):
                            shown()
            except (DaemonConnectionError, DaemonStreamError) as error:
                await _be_patient(picture, options, shown, error)


async def _look_at_metrics(picture: Picture, options: argparse.Namespace, shown: Callable[[], None]) -> None:
    async with DaemonClient(options.url, token=options.token) as client:
        picture.show_metrics(await client.metrics())
        shown()
        while not options.once:
            await anyio.sleep(options.interval)
            try:
                picture.show_metrics(await client.metrics())
                shown()
            except DaemonConnectionError as error:
                await _be_patient(picture, options, shown, error)


async def _be_patient(
    picture: Picture, options: argparse.Namespace, shown: Callable[[], None], error: DaemonError
) -> None:
    """Who watches wants to see the server come back; only a server that was never there ends the command."""
    picture.trouble = str(error)
    shown()
    await anyio.sleep(options.interval)


def _print(picture: Picture, options: argparse.Namespace) -> None:
    if options.json:
        print_json(picture.as_json())
    else:
        console().print(picture)
