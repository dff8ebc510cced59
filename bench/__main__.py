"""Runs scenarios and writes what they showed: `python -m bench [scenario...]`, all quick ones without a name."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bench import scenarios
from bench.lab import Lab, Table, machine
from bench.targets import STARTS, available

if TYPE_CHECKING:
    from collections.abc import Callable

SCENARIOS: dict[str, Callable[[Lab], list[Table]]] = {
    "overhead": scenarios.overhead,
    "rate": scenarios.rate,
    "saturation": scenarios.saturation,
    "overload": scenarios.overload,
    "slots": scenarios.slots,
    "sessions": scenarios.sessions,
    "payload": scenarios.payload,
    "streaming": scenarios.streaming,
    "refusals": scenarios.refusals,
}
QUICK = ("overhead", "saturation", "overload", "refusals")


def main() -> None:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("scenario", nargs="*", help=f"any of {', '.join(SCENARIOS)}; default: {', '.join(QUICK)}")
    parser.add_argument("--all", action="store_true", help="every scenario")
    parser.add_argument("--full", action="store_true", help="more and longer rounds")
    parser.add_argument("--rounds", type=int, help="runs of each measurement, instead of 3 (with --full 5)")
    parser.add_argument("--seconds", type=float, help="length of one run, instead of 1.2 (with --full 3)")
    parser.add_argument("--first", action="store_true", help="run before other work of this machine (needs root)")
    parser.add_argument("--targets", nargs="+", choices=list(STARTS), help="instead of all that are installed")
    parser.add_argument("--out", type=Path, default=Path(".bench/results"), help="folder for JSON and plots")
    options = parser.parse_args()
    unknown = set(options.scenario) - set(SCENARIOS)
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    try:
        targets = available(options.targets)
    except RuntimeError as error:
        sys.exit(str(error))
    before = machine()
    print(f"{before['cpu']}, {before['cpus']} CPUs, load {before['load']}, a loop takes {before['spin']}")
    tables: list[Table] = []
    with ExitStack() as stack:
        lab = Lab(stack, targets, quick=not options.full, first=options.first)
        lab.rounds, lab.seconds = options.rounds or lab.rounds, options.seconds or lab.seconds
        for name in options.scenario or (SCENARIOS if options.all else QUICK):
            for table in SCENARIOS[name](lab):
                print(f"\n{table.text()}", flush=True)
                tables.append(table)
    options.out.mkdir(parents=True, exist_ok=True)
    document: dict[str, object] = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "before": before}
    document["first"] = options.first
    document["after"] = machine()
    file = options.out / "results.json"
    file.write_text(json.dumps({**document, "tables": [asdict(table) for table in tables]}, indent=1))
    written = [file, *_draw(tables, document, options.out)]
    print(f"\nWritten: {', '.join(str(each) for each in written)}")


def _draw(tables: list[Table], about: dict[str, object], folder: Path) -> list[Path]:
    try:
        from bench.plots import draw  # noqa: PLC0415  # only this needs matplotlib
    except ImportError:
        print("No plots: matplotlib is not installed (pip install --group bench)")
        return []
    return draw(tables, about, folder)


if __name__ == "__main__":
    main()
