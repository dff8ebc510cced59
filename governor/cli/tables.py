"""Rows as tables for a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from governor.cli.running import clean, speaks_utf8

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from governor.cli.board import Row
    from governor.client import ClaimState
    from governor.errors import JsonValue

HEADINGS = ("run", "left", "recon", "nobase", "quar", "wait", "pend")
"""Claims by state, in their order; calls that wait; pending prompts. docs/cli.md explains them."""
_BAR_MAX = 10
_ALARMING = {"reconciling": "yellow", "awaiting_baseline": "yellow", "quarantined": "bold red", "timed_out": "cyan"}


def identities(rows: Iterable[Row]) -> Group:
    """One line for each identity: slots, what holds them, who waits; below, a line for each thing out of the ordinary.

    These are sentences: in a column of their own, on a terminal of 80 columns, they would stand a word a line.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("identity", overflow="fold", min_width=8)  # long names give way, never a number
    table.add_column("slots", no_wrap=True)
    for name in HEADINGS:
        table.add_column(name, justify="right", no_wrap=True)
    remarks = []
    for row in rows:
        prompts = "-" if row.pending is None else str(row.pending)
        table.add_row(
            Text(clean(row.identity)),
            slots(row),
            *(_number(state, count) for state, count in row.states.items()),
            _number("waiting", row.waiting),
            Text(prompts),
        )
        remarks += [_remark(row.identity, note, "yellow") for note in row.notes]
    return Group(table, *remarks)


def slots(row: Row) -> Text:
    """Slots that are taken, of those that there are, as a bar and in numbers."""
    taken = max(0, row.slots - row.free)
    filled = min(_BAR_MAX, -(-taken * _BAR_MAX // row.slots)) if row.slots > _BAR_MAX else taken
    empty = min(row.slots, _BAR_MAX) - filled
    full, hollow = ("\u25a0", "\u25a1") if speaks_utf8() else ("#", ".")
    style = "red" if row.states.get("quarantined") else "green" if row.free else "yellow"
    return Text.assemble((full * filled, style), (hollow * max(0, empty), "dim"), f" {taken}/{row.slots}")


def claims(items: Iterable[tuple[str, ClaimState]]) -> Group:
    """One line for each claim; below, why it is what it is."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("identity", "claim", "state", "age", "epoch", "serves"):
        table.add_column(name, overflow="fold", justify="right" if name in {"claim", "age", "epoch"} else "left")
    reasons = []
    for identity, claim in items:
        table.add_row(
            Text(clean(identity)),
            str(claim.id),
            Text(claim.state, style=_ALARMING.get(claim.state, "")),
            duration(claim.age_ms),
            str(claim.epoch if claim.epoch is not None else "-"),
            Text(clean(claim.serves)),
        )
        if why := claim.quarantined or claim.broke:
            reasons.append(_remark(f"{identity} claim {claim.id}", why, _ALARMING.get(claim.state, "")))
    return Group(table, *reasons)


def _remark(about: str, sentence: str, style: str) -> Text:
    return Text.assemble((f"{clean(about)}: ", "bold"), (clean(sentence), style))


def happened(event: Mapping[str, JsonValue]) -> Text:
    """One line for what happened."""
    at_ms, kind, count = event.get("atMs"), event.get("kind"), event.get("count")
    clock = time.strftime("%H:%M:%S", time.localtime(at_ms / 1000)) if isinstance(at_ms, int | float) else ""
    told = {"id", "atMs", "lastAtMs", "kind", "identity", "count"}
    rest = " ".join(f"{name}={value}" for name, value in event.items() if name not in told)
    times = f" \u00d7{count}" if isinstance(count, int) and count > 1 else ""
    return Text.assemble(
        (f"{clock} ", "dim"), (clean(str(kind)), "bold"), times, clean(f" {event.get('identity') or ''} {rest}")
    )


def duration(milliseconds: int) -> str:
    """A time in the unit that fits it."""
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def _number(state: str, count: int) -> Text:
    return Text(str(count), style=_ALARMING.get(state, "") if count else "dim")
