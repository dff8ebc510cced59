"""The state diagram of docs/evidence.md is the transition table."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

from governor.core.claims import TRANSITIONS, ClaimState

PAGE = Path(__file__).parents[2] / "docs" / "evidence.md"
_BLOCK = re.compile(r"(<!-- states: [^\n]*-->\n).*?(<!-- /states -->)", re.DOTALL)


def diagram() -> str:
    """The transition table as a Mermaid state diagram; moves between the same two states share an arrow."""
    moves: dict[tuple[ClaimState, ClaimState], list[str]] = defaultdict(list)
    for before, by_event in TRANSITIONS.items():
        for event, after in by_event.items():
            moves[before, after].append(event.value)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {ClaimState.RUNNING.value}: credit granted"]
    for (before, after), events in moves.items():
        target = "[*]" if after is ClaimState.ENDED else after.value
        lines.append(f"    {before.value} --> {target}: {', '.join(events)}")
    return "\n".join([*lines, "```", ""])


def test_the_state_diagram_is_the_transition_table() -> None:
    """The diagram cannot drift from `TRANSITIONS`; DOCS_REWRITE=1 rewrites it."""
    page = PAGE.read_text()
    written = _BLOCK.sub(lambda match: match[1] + diagram() + match[2], page)
    if os.environ.get("DOCS_REWRITE"):
        PAGE.write_text(written)
    assert page == written or os.environ.get("DOCS_REWRITE")
