"""Draws results: one PNG per chart and one HTML page that holds everything, without a link to anywhere."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.lab import Cell, Table

mpl.rcParams.update({"axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False})
_COLOURS = {
    "governor": "#c2410c",
    "stock": "#64748b",
    "direct": "#111827",
    "haproxy": "#2563eb",
    "nginx": "#059669",
    "smg": "#7c3aed",
    "litellm": "#db2777",
    "ray": "#ca8a04",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #111827 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px }
th, td { border-bottom: 1px solid #e5e7eb; padding: .2rem .6rem; text-align: right } th { background: #f9fafb }
td:nth-child(1), td:nth-child(2) { text-align: left } tr.governor td { background: #fff7ed } img { max-width: 100% }
div { overflow-x: auto }
"""


def draw(tables: Sequence[Table], about: Mapping[str, object], folder: Path) -> list[Path]:
    """Writes the PNGs and the page; returns what was written, the page last."""
    written, parts = [], []
    for number, table in enumerate(tables, 1):
        parts.append(_section(table))
        for kind, figure in (("chart", _chart(table)), ("curve", _curves(table))):
            if figure is None:
                continue
            image = io.BytesIO()
            figure.savefig(image, dpi=120, bbox_inches="tight")
            file = folder / f"{number:02d}-{kind}.png"
            file.write_bytes(image.getvalue())
            written.append(file)
            encoded = base64.b64encode(image.getvalue()).decode()
            parts.append(f'<p><img alt="{html.escape(table.title)}" src="data:image/png;base64,{encoded}"></p>')
    facts = "".join(f"<li>{html.escape(name)}: {html.escape(str(value))}</li>" for name, value in about.items())
    page = folder / "index.html"
    page.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Governor: measurements</title><style>{_STYLE}</style>"
        f"<h1>Governor: measurements</h1><ul>{facts}</ul>{''.join(parts)}</html>"
    )
    return [*written, page]


def _section(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = []
    for row, shown in zip(table.rows, table.shown(), strict=True):
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in shown)
        rows.append(f"<tr{' class=governor' if 'governor' in row else ''}>{cells}</tr>")
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    return f"<h2>{html.escape(table.title)}</h2><div><table><tr>{head}</tr>{''.join(rows)}</table></div>{notes}"


def _chart(table: Table) -> Figure | None:
    """Lines over the first of `table.chart`, or bars where it has no numbers."""
    if table.chart is None:
        return None
    across, up = (table.columns.index(name) for name in table.chart)
    by = table.columns.index(table.series) if table.series is not None else None
    figure, axes = _axes(table.title, *table.chart)
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in table.rows:
        x, y = _number(row[across]), _number(row[up])
        if x is not None and y is not None and y > 0:
            lines.setdefault(str(row[by]) if by is not None else "governor", []).append((x, y))
    if not lines:
        bars = [(str(row[across]), value) for row in table.rows if (value := _number(row[up])) is not None]
        axes.bar([name for name, _ in bars], [y for _, y in bars], color=[_COLOURS.get(name) for name, _ in bars])
        axes.set_yscale("log")
        return figure
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name, color=_COLOURS.get(name))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(frameon=False)
    return figure


def _curves(table: Table) -> Figure | None:
    if not table.curves:
        return None
    figure, axes = _axes(f"{table.title}: latency at 1 connection", "percent of the requests", "ms")
    for name, points in table.curves.items():
        if points:
            axes.plot(*zip(*points, strict=True), label=name, color=_COLOURS.get(name))
    axes.set_yscale("log")
    axes.legend(frameon=False)
    return figure


def _axes(title: str, across: str, up: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    return figure, axes


def _number(cell: Cell) -> float | None:
    return float(cell) if isinstance(cell, int | float) and cell == cell else None  # noqa: PLR0124  # NaN
