"""`governor admin`: what an operator sees and may do (E11)."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from governor.cli import board, tables
from governor.cli.running import Exit, UsageError, clean, console, error_console, print_json, run
from governor.cli.stdin import read_line
from governor.client import AdminClient
from governor.client.admin import ALL

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from governor.client import ClaimState, IdentityState, RestartReport
    from governor.errors import JsonValue


def identities(options: argparse.Namespace) -> int:
    """Runs `identities`."""
    return run(options, lambda: _identities(options))


def restart(options: argparse.Namespace) -> int:
    """Runs `restart`."""
    return run(options, lambda: _restart(options))


def release(options: argparse.Namespace) -> int:
    """Runs `release`."""
    return run(options, lambda: _release(options))


def audit(options: argparse.Namespace) -> int:
    """Runs `audit`."""
    return run(options, lambda: _audit(options))


async def _identities(options: argparse.Namespace) -> Exit:
    async with AdminClient(options.url, token=options.admin_token) as admin:
        found = await _all_identities(admin)
    if options.json:
        print_json([dict(identity.raw) for identity in found])
        return Exit.DONE
    out = console()
    out.print(tables.identities(map(board.row_of, found)))
    claims = [(identity.id, claim) for identity in found for claim in identity.claims]
    if claims:
        out.print()
        out.print(tables.claims(claims))
    more = sum(identity.claims_total - len(identity.claims) for identity in found)
    if more > 0:
        out.print(Text(f"and {more} more claims", "dim"))
    return Exit.DONE


async def _restart(options: argparse.Namespace) -> Exit:
    if options.all == (options.identity is not None):
        raise UsageError("name one IDENTITY, or --all")
    if options.all and options.expected_epoch is not None:
        raise UsageError("--expected-epoch belongs to one identity; with --all the epochs that are seen are expected")
    async with AdminClient(options.url, token=options.admin_token) as admin:
        seen = await _all_identities(admin) if options.all else [await admin.identity(options.identity)]
        broken = [(identity.id, claim) for identity in seen for claim in identity.claims if claim.releasable]
        await _confirm(options, broken, "forget these claims; if their work goes on, two calls run on one slot")
        # Whatever was seen is what was agreed to: in another epoch nothing is done.
        epochs = {identity.id: identity.epoch for identity in seen}
        if options.expected_epoch is not None:
            epochs = {options.identity: options.expected_epoch}
        report = await admin.restart(
            ALL if options.all else options.identity,
            options.reason,
            operator=options.operator,
            drain_ms=options.drain_ms,
            expected_epochs=epochs,
        )
    if options.json:
        print_json(dict(report.raw))
    else:
        _show_restart(report)
    return Exit.FAILED if report.refused else Exit.DONE


async def _release(options: argparse.Namespace) -> Exit:
    async with AdminClient(options.url, token=options.admin_token) as admin:
        seen = await admin.identity(options.identity)
        claims = [(seen.id, claim) for claim in seen.claims if claim.id == options.claim]
        await _confirm(options, claims, "forget this claim; if its work goes on, two calls run on one slot")
        expected = options.expected_epoch if options.expected_epoch is not None else seen.epoch
        report = await admin.release(
            options.identity, options.claim, options.reason, operator=options.operator, expected_epoch=expected
        )
    if options.json:
        print_json(dict(report.raw))
    else:
        told = f"{report.identity}: claim {report.released.id} released without proof; {report.free_slots} slots free"
        console().print(Text(clean(told)))
    return Exit.DONE


async def _audit(options: argparse.Namespace) -> Exit:
    async with AdminClient(options.url, token=options.admin_token) as admin:
        page = await admin.audit(size=options.size)
    if options.json:
        print_json([dict(entry) for entry in page.entries])
        return Exit.DONE
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("when", "act", "target", "result", "who", "reason"):
        table.add_column(name, overflow="fold")
    for entry in page.entries:
        at_ms = entry.get("atMs")
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000)) if isinstance(at_ms, int) else ""
        told = (when, _act(entry), entry.get("target"), _result(entry), _who(entry), entry.get("reason"))
        table.add_row(*(Text(clean(str(item or ""))) for item in told))
    console().print(table)
    return Exit.DONE


def _act(entry: Mapping[str, JsonValue]) -> str:
    asked = entry.get("asked")
    tried = isinstance(asked, dict) and asked.get("dryRun") is True
    return f"{entry.get('act')}{' (dry run)' if tried else ''}"


def _result(entry: Mapping[str, JsonValue]) -> str:
    return ": ".join(str(told) for told in (entry.get("result"), entry.get("code")) if told)


def _who(entry: Mapping[str, JsonValue]) -> str:
    """Who says they did it and from where; a signal has neither."""
    address = entry.get("address")
    return f"{entry.get('operator') or 'unnamed'} ({address})" if address else str(entry.get("by") or "")


async def _all_identities(admin: AdminClient) -> list[IdentityState]:
    state = await admin.state()
    found = list(state.identities)
    while state.next_after is not None and state.identities:
        state = await admin.state(after=state.next_after)
        found += state.identities
    return found


async def _confirm(options: argparse.Namespace, claims: list[tuple[str, ClaimState]], what: str) -> None:
    if options.yes:
        return
    if not sys.stdin.isatty() or options.json:
        raise UsageError("this frees slots without proof; say --yes where nobody can be asked")
    out = error_console()
    out.print(tables.claims(claims) if claims else Text("no broken claims are known"))
    out.print(f"This will {what}. Go on? [y/N] ", end="", markup=False, highlight=False)
    answer = await read_line()
    if answer.strip().lower() not in {"y", "yes"}:
        raise UsageError("nothing was done")


def _show_restart(report: RestartReport) -> None:
    out = console()
    for result in report.results:
        if result.ok:
            told = (
                f"{result.identity}: epoch {result.epoch} has begun; {len(result.forgotten)} claims forgotten without"
                f" proof, {result.proven} proven ended, {result.open} go on"
            )
            out.print(Text(clean(told)))
        else:
            out.print(Text(clean(f"{result.identity}: refused: {result.error} ({result.code})"), style="red"))
