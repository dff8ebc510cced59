"""`governor status`: whether the server can be used, and how it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from governor.cli import board, tables
from governor.cli.running import Exit, clean, console, print_json, run
from governor.client import DaemonClient

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from governor.errors import JsonValue


def main(options: argparse.Namespace) -> int:
    """Runs the command."""
    return run(options, lambda: _status(options))


async def _status(options: argparse.Namespace) -> Exit:
    async with DaemonClient(options.url, token=options.token) as client:
        ready = await client.ready()
        capabilities = await client.capabilities()
        metrics = await client.metrics()
    rows = board.rows_of(metrics)
    is_ready = ready.get("ready") is True
    counts = {
        name: board.value_of(metrics, f"vig_{name}") for name in ("sessions", "pending_prompts", "active_prompts")
    }
    told: dict[str, JsonValue] = {
        "url": client.base_url,
        "ready": is_ready,
        "draining": ready.get("draining") is True,
        "version": capabilities.governor_version,
        "models": ready.get("models"),
        "sessions": counts["sessions"],
        "pendingPrompts": counts["pending_prompts"],
        "activePrompts": counts["active_prompts"],
        "identities": [row.as_json() for row in rows],
    }
    if options.json:
        print_json(told)
    else:
        _show(told, rows)
    return Exit.DONE if is_ready else Exit.NOT_READY


def _show(told: Mapping[str, JsonValue], rows: list[board.Row]) -> None:
    out = console()
    state = "draining: nothing new is accepted" if told["draining"] else "ready" if told["ready"] else "not ready"
    style = "green" if state == "ready" else "red"
    out.print(Text.assemble(f"{told['url']}  governor {told['version']}  ", (state, style)))
    out.print(
        Text(f"{told['sessions']} sessions, {told['pendingPrompts']} prompts pending, {told['activePrompts']} running")
    )
    models = told["models"]
    if isinstance(models, dict):
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("model", overflow="fold")
        table.add_column("usable", overflow="fold")
        for name, model in models.items():
            usable = isinstance(model, dict) and model.get("usable") is True
            reason = "yes" if usable else str(model.get("reason") if isinstance(model, dict) else "no")
            table.add_row(Text(clean(name)), Text(clean(reason), style="green" if usable else "red"))
        out.print(table)
    out.print(tables.identities(rows))
