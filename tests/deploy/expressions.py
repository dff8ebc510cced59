"""PromQL held against what the governor really exports."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from prometheus_client.parser import text_string_to_metric_families

from tests.api.harness import service

if TYPE_CHECKING:
    from collections.abc import Iterable

FROM_PROMETHEUS: Final = {"instance", "job"}
"""Labels that the scrape adds."""


async def exported() -> dict[str, set[str]]:
    """Every sample's name with its labels, from a real scrape."""
    async with service() as up:
        text = (await up.ask("GET", "/metrics")).body.decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def wrong_with(expressions: Iterable[str], metrics: dict[str, set[str]]) -> list[str]:
    """Names and labels that no scrape has."""
    wrong = []
    for expression in expressions:
        used: set[str] = set()
        for name, matchers in re.findall(r"\b(vig_\w+)(?:\{([^}]*)\})?", expression):
            if name not in metrics:
                wrong.append(f"{name} in {expression}")
                continue
            used |= metrics[name]
            asked = set(re.findall(r"(\w+)\s*=~?", matchers))
            wrong += [f"{name}{{{label}}} in {expression}" for label in asked - metrics[name] - FROM_PROMETHEUS]
        for labels in re.findall(r"\bby\s*\(([^)]*)\)", expression):
            grouped = {label.strip() for label in labels.split(",")}
            wrong += [f"by ({label}) in {expression}" for label in grouped - used - FROM_PROMETHEUS]
    return wrong
