"""What a route of qwen serve means for a coding agent only is a clean 404: JSON with a code, and nothing happens.

`reference_routes.txt` has every route of qwen-code 0.24.3, as its server registers them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from api.openapi import OPERATIONS
from tests.api.harness import service

if TYPE_CHECKING:
    from trio.testing import MockClock

REFERENCE = [
    (method, path)
    for method, path in map(str.split, (Path(__file__).parent / "reference_routes.txt").read_text().splitlines())
]
OFFERED = {
    "GET /capabilities",
    "GET /daemon/status",
    "GET /health",
    "POST /session",
    "DELETE /session/*",
    "POST /session/*/branch",
    "POST /session/*/cancel",
    "POST /session/*/detach",
    "GET /session/*/events",
    "POST /session/*/generate",
    "POST /session/*/heartbeat",
    "POST /session/*/load",
    "PATCH /session/*/metadata",
    "POST /session/*/model",
    "GET /session/*/pending-prompts",
    "DELETE /session/*/pending-prompts/*",
    "POST /session/*/prompt",
    "POST /session/*/resume",
    "GET /session/*/status",
    "GET /session/*/turns/current",
    "GET /session/*/turns/*",
    "GET /workspace/*/sessions",
}


def shape(method: str, path: str) -> str:
    return f"{method} " + re.sub(r"\{\w+\}|:\w+", "*", path)


def test_every_route_for_sessions_and_prompts_is_offered() -> None:
    ours = {shape(operation.method, operation.path) for operation in OPERATIONS}
    theirs = {shape(method, path) for method, path in REFERENCE} | {"POST /session/*/load", "POST /session/*/resume"}
    assert len(theirs) > 250
    assert ours & theirs == OFFERED


async def test_no_other_route_is_there(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        for method, path in [*REFERENCE, ("GET", "/"), ("GET", "/index.html"), ("POST", "/session/:id/fork/x")]:
            if shape(method, path) in OFFERED:
                continue
            body = {"prompt": [{"type": "text", "text": "0"}]} if method == "POST" else None
            there = re.sub(r":\w+", "x", path.replace("/session/:id", f"/session/{session}"))
            answer = await up.ask(method, there, body=body)
            # Where ours has the path with another method, that is said.
            assert (answer.status, answer.code) in {(404, "not_found"), (405, "method_not_allowed")}, (method, path)
        assert up.governor.sessions[session].log.last_id == 0
        assert not up.world.wires


async def test_no_feature_of_them_is_advertised(autojump_clock: MockClock) -> None:
    """Clients ask for features before they use a route that an older daemon may not have."""
    foreign = {"permission", "file", "workspace_", "mcp", "session_recap", "session_btw", "session_shell", "attachment",
               "session_rewind", "session_fork", "session_goal", "transcript", "archive", "approval",
               "session_info"}  # fmt: skip
    async with service() as up:
        features = (await up.ask("GET", "/capabilities")).json["features"]
        assert len(features) > 20
        assert not [name for name in features if any(part in name for part in foreign)]
