"""The alert rules: Prometheus takes them, they fire when they should, and they ask for what is exported."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from tests.deploy.expressions import exported, wrong_with
from tests.deploy.promtool import ROOT, run_promtool

if TYPE_CHECKING:
    from trio.testing import MockClock

FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "alerts.yml"
TESTS = FOLDER / "alerts_test.yml"


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def anchors(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_prometheus_takes_the_rules() -> None:
    assert f"{len(alerts())} rules found" in run_promtool("check", "rules", RULES)


def test_each_alert_fires_when_it_should_and_is_quiet_otherwise() -> None:
    assert "SUCCESS" in run_promtool("test", "rules", TESTS)
    tests = yaml.safe_load(TESTS.read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test.get("alert_rule_test", []) if case["exp_alerts"]}
    assert fired == {alert["alert"] for alert in alerts()}, "each alert has a case in which it fires"


async def test_the_rules_ask_for_what_is_exported(autojump_clock: MockClock) -> None:
    expressions = [alert["expr"] for alert in alerts()]
    assert wrong_with(expressions, await exported()) == []


async def test_a_renamed_metric_or_label_would_be_found(autojump_clock: MockClock) -> None:
    metrics = await exported()
    assert wrong_with(["sum by (nobody) (vig_slots)"], metrics) == ["by (nobody) in sum by (nobody) (vig_slots)"]
    assert len(wrong_with(["vig_nothing", 'vig_slots{state="x"}'], metrics)) == 2


def test_each_alert_leads_to_a_page_that_says_what_to_do() -> None:
    for alert in alerts():
        page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert anchor in anchors(page), alert["alert"]
        assert alert["labels"]["severity"] in {"page", "ticket"}
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
