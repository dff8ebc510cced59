"""docs/http-api.md names every route and code that there is, and no other. Its metrics: test_metrics."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import api
import governor
from api.openapi.events import EVENT_SCHEMAS
from tests.api.harness import service
from tests.api.routes import routes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "http-api.md").read_text()
PROTOCOL_PAGE = (DOCS / "protocol.md").read_text()
OPERATORS_PAGE = (DOCS / "admin.md").read_text()
PARTS = {
    "<session_id>": ":id",
    "<prompt_id>": ":promptId",
    "<anything:cwd>": ":cwd",
    "<model>": ":m",
    "<model_version>": ":v",
    "<memory:memory>": ":memory",
    "<region>": ":region",
    "<identity_id>": ":identity",
    "<claim_id>": ":claim",
    "<asset>": ":file",
}
NOT_AN_ANSWER = {
    # Bases that are never raised, and what the process ends with instead of answering it.
    "refused", "backend_error", "prompt_ended", "prompt_cancelled", "listen_failed",
    "application_failed", "hypercorn_version_unsupported",
    "governor_failed",
}  # fmt: skip


def section(title: str) -> str:
    """The text under a heading."""
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def sources() -> Iterator[ast.AST]:
    """Every module that can make an error answer."""
    for package in (api, governor):
        root = Path(package.__path__[0])
        for path in root.rglob("*.py"):
            if path.relative_to(root).parts[0] not in {"demo", "simulator", "triton", "client", "cli"}:
                yield ast.parse(path.read_text())


def codes_in_use() -> set[str]:
    """Codes of error classes, and those given where an error is raised."""
    found = set()
    for tree in sources():
        for node in ast.walk(tree):
            match node:
                case ast.keyword(arg="code", value=ast.Constant(value=str(code))):
                    found.add(code)
                case ast.Assign(targets=[ast.Name(id="code") | ast.Attribute(attr="code")],
                                value=ast.Constant(value=str(code))):  # fmt: skip
                    found.add(code)
                case ast.AnnAssign(target=ast.Name(id="code"), value=ast.Constant(value=str(code))):
                    found.add(code)
                case ast.Dict():
                    pairs = zip(node.keys, node.values, strict=True)
                    found |= {
                        value.value
                        for key, value in pairs
                        if isinstance(key, ast.Constant) and key.value == "code"
                        and isinstance(value, ast.Constant) and isinstance(value.value, str)
                    }  # fmt: skip
                case _:
                    pass
    return found


def table_of_routes() -> set[tuple[str, str]]:
    """Method and path of each line of the pages' tables."""
    return set(re.findall(r"\[`(GET|POST|PATCH|DELETE) (/[^`]*)`\]", PAGE + OPERATORS_PAGE))


async def test_every_route_is_documented_and_no_other(autojump_clock: MockClock) -> None:
    async with service() as up:
        there = {
            (method, re.sub(r"<[\w:]+>", lambda match: PARTS[match[0]], path)) for method, path in routes_of(up.app)
        }
    assert table_of_routes() == {route for route in there if "/versions/" not in route[1]}


def test_every_code_is_documented_and_no_other() -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", section("Error codes"), re.MULTILINE))
    used = codes_in_use()
    assert used > NOT_AN_ANSWER
    assert documented == used - NOT_AN_ANSWER


def anchors_of(page: str) -> set[str]:
    """What the headings of a page are linked by."""
    headings = re.findall(r"^##+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", ["http-api.md", "admin.md", "protocol.md", "acp.md"])
def test_every_link_has_its_heading(name: str) -> None:
    for target, anchor in re.findall(r"\]\(([\w.-]*\.md)?#([\w-]+)\)", (DOCS / name).read_text()):
        assert anchor in anchors_of((DOCS / (target or name)).read_text()), (target, anchor)


def test_every_event_is_documented_and_no_other() -> None:
    table = PROTOCOL_PAGE.split("| Type | Data", 1)[1].split("\n\n", 1)[0]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE))))
    notices = set(re.findall(r"`(\w+)`", PROTOCOL_PAGE.split("move no cursor:", 1)[1].split(".", 1)[0]))
    assert named | notices == {name.removeprefix("Event_") for name in EVENT_SCHEMAS if name.startswith("Event_")}


def test_the_rules_of_admission_are_all_told() -> None:
    assert re.findall(r"^\| (S\d) \|", PROTOCOL_PAGE, re.MULTILINE) == [f"S{number}" for number in range(1, 8)]
