"""The dashboard: every expression is one, and asks for what is exported."""

from __future__ import annotations

import json
from itertools import combinations
from typing import TYPE_CHECKING, Any

import yaml

from tests.deploy.expressions import exported, wrong_with
from tests.deploy.promtool import ROOT, run_promtool

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "governor.json").read_text())
VARIABLES = {"$backend": ".*", "$model": ".*", "$__rate_interval": "1m"}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    found += [note["expr"] for note in DASHBOARD["annotations"]["list"] if "expr" in note]
    return found


async def test_every_expression_asks_for_what_is_exported(autojump_clock: MockClock) -> None:
    metrics = await exported()
    assert wrong_with(expressions(), metrics) == []
    queries = [variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable]
    assert wrong_with([query.removeprefix("label_values") for query in queries], metrics) == []


def test_prometheus_can_parse_every_expression(tmp_path: Path) -> None:
    rules = []
    for number, expression in enumerate(expressions()):
        plain = expression
        for variable, value in VARIABLES.items():
            plain = plain.replace(variable, value)
        rules.append({"record": f"panel:expression:{number}", "expr": plain})
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run_promtool("check", "rules", path)


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for one, other in combinations((panel["gridPos"] for panel in DASHBOARD["panels"]), 2):
        apart = (
            one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        )  # fmt: skip
        assert apart, (one, other)
        assert one["x"] + one["w"] <= 24


def test_every_panel_takes_its_data_from_the_chosen_prometheus() -> None:
    for panel in PANELS:
        assert panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}", panel["title"]


async def test_what_an_operator_must_see_is_on_it(autojump_clock: MockClock) -> None:
    """Every metric is shown, or is a part of one that is (histogram sums, virtual memory and the like)."""
    shown = " ".join(expressions())
    alerts = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    hidden = {name for name in await exported() if name not in shown + alerts and not name.endswith(("_sum", "_count"))}
    assert hidden == {
        "vig_build_info", "vig_sessions_opened_total", "vig_process_virtual_memory_bytes",
    }  # fmt: skip
