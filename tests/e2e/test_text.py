"""Real text through the governor: scores, streams, full queues, bad input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from governor.demo.ports import free_ports
from tests.e2e.stack import Governor, governor_config, running_governor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from governor.demo.triton import RealTriton
    from governor.errors import JsonValue

pytestmark = pytest.mark.real_triton


@pytest.fixture
async def governor(triton: RealTriton, tmp_path: Path) -> AsyncIterator[Governor]:
    [port] = free_ports(1)
    config = governor_config(port=port, triton_url=triton.url, metrics_url=triton.metrics_url)
    async with running_governor(config, port, tmp_path) as running:
        yield running


async def test_a_sentence_gets_its_score(governor: Governor) -> None:
    """A6: the answer is the model's own."""
    for sentence, label in [("I love this wonderful day", "positive"), ("This is a horrible failure", "negative")]:
        answer = await governor.generate("sentiment", sentence)
        assert answer is not None
        assert json.loads(answer.json()["text_output"])["label"] == label


async def test_a_story_streams_token_by_token(governor: Governor) -> None:
    """A1, A5: many chunks, in order, ids without gaps, then one terminal event; a replay is the same."""
    session = await governor.session("storyteller")
    prompt_id = (await governor.prompt(session, "Alice opened the door")).json()["promptId"]
    await governor.terminal(session, prompt_id)
    events = []
    async for event in governor.events(session):
        if event.type == "replay_complete":
            break
        events.append(event)
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events[:-1]] == ["session_update"] * (len(events) - 1)
    assert events[-1].type == "turn_complete"
    assert len(events) > 10


async def test_sixth_prompt_is_refused_and_another_session_is_not(governor: Governor) -> None:
    """S1, A2: five pending; the sixth gets 503, Retry-After and the exact body."""
    session = await governor.session("slow")
    for _ in range(5):
        assert (await governor.prompt(session, "0.3 seconds")).status_code == 202
    refused = await governor.prompt(session, "0.3 seconds")
    assert refused.status_code == 503
    assert refused.headers["Retry-After"] == "5"
    assert refused.json() == {
        "code": "prompt_queue_full",
        "error": f'Prompt queue full for session "{session}" (5/5 pending)',
        "sessionId": session,
        "limit": 5,
        "pendingCount": 5,
    }
    other = await governor.session("slow")
    assert (await governor.prompt(other, "0.1 seconds")).status_code == 202


async def test_a_text_of_one_mebibyte_is_taken_and_one_byte_more_is_refused(governor: Governor) -> None:
    """A9: the limit on a prompt's text."""
    session = await governor.session("sentiment")
    limit = 1024 * 1024
    prompt_id = (await governor.prompt(session, "x" * limit)).json()["promptId"]
    assert (await governor.terminal(session, prompt_id)).type == "turn_complete"
    refused = await governor.prompt(session, "x" * (limit + 1))
    assert (refused.status_code, refused.json()["code"]) == (413, "prompt_too_large")


TEXT: JsonValue = [{"type": "text", "text": "hello"}]
BAD_PROMPTS: list[tuple[bytes, int]] = [
    (b"{not json", 400),
    (b"", 400),
    (b"[]", 400),
    (b'"text"', 400),
    (b'{"prompt": []}', 400),
    (b'{"prompt": "hello"}', 400),
    (b'{"prompt": ["hello"]}', 400),
    (b'{"prompt": [{"type": "text"}]}', 400),
    (b'{"prompt": [{"type": "text", "text": 7}]}', 400),
    (b'{"prompt": [{"type": "image", "data": "AA==", "mimeType": "image/png"}]}', 400),
    (b'{"prompt": [{"type": "text", "text": "a\\u0000b"}]}', 400),
    (b'{"prompt": [{"type": "text", "text": "\\ud800"}]}', 400),
    (json.dumps({"prompt": TEXT, "deadlineMs": 0}).encode(), 400),
    (json.dumps({"prompt": TEXT, "deadlineMs": True}).encode(), 400),
    (json.dumps({"prompt": TEXT, "deadlineMs": 1.5}).encode(), 400),
    (b'{"prompt": [{"type": "text", "text": "' + b"x" * 11_000_000 + b'"}]}', 413),
    (b"\xff\xfe", 400),
    (b"[" * 100_000, 400),
]


async def test_bad_prompts_get_a_4xx_with_a_code(governor: Governor) -> None:
    """A9: bad input is refused with a stable code, and nothing is pending afterwards."""
    session = await governor.session("sentiment")
    for body, status in BAD_PROMPTS:
        answer = await governor.client.post(
            f"/session/{session}/prompt", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == status, body[:80]
        assert isinstance(answer.json()["code"], str), body[:80]
        assert isinstance(answer.json()["error"], str), body[:80]
    assert await governor.metric("vig_pending_prompts") == 0


async def test_unknown_names_get_404_with_a_code(governor: Governor) -> None:
    """A9: unknown model, session and route."""
    unknown = await governor.client.post("/v2/models/nope/generate", json={"text_input": "x"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_model")
    session = await governor.prompt("no-such-session", "hello")
    assert (session.status_code, session.json()["code"]) == (404, "session_not_found")
    model = await governor.client.post("/session", json={"modelServiceId": "nope"})
    assert (model.status_code, model.json()["code"]) == (404, "unknown_model")
    assert (await governor.client.get("/nowhere")).json()["code"] == "not_found"


async def test_errors_of_the_model_reach_the_caller(governor: Governor) -> None:
    """A6: what Triton answers is passed on, and the slot is free again."""
    answer = await governor.client.post("/v2/models/slow/generate", json={"wrong": "x"})
    assert answer.status_code == 400
    assert "error" in answer.json()
    await governor.wait_metric("vig_free_slots", 1, model="slow")
