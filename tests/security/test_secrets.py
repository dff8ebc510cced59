"""No token, and no prompt's text, is in a log, an error, a metric or a page (docs/security.md, "Secrets")."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest
import structlog
import trio

from api.logs import configure_logging
from governor.config import load_config, parse_config
from governor.errors import ConfigError
from tests.api.harness import listening, make_config, service
from tests.config.config_samples import MINIMAL
from tests.shell.world import Break, Plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trio.testing import MockClock

API, ADMIN, WRONG = "api-token-7f3a9c1e5b", "admin-token-2d8e4f6a0c", "wrong-token-91b7d3e5a2"
TEXT = "the patient is called Alice"
TOKENS = {"api": API, "admin": ADMIN}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that is logged, as it would be written."""
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure_logging(stream)
    structlog.configure(cache_logger_on_first_use=False)  # other tests capture what the same loggers tell
    root.setLevel(logging.DEBUG)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


async def test_neither_log_nor_answer_holds_a_token_or_a_prompt(log: io.StringIO, autojump_clock: MockClock) -> None:
    answers: list[bytes] = []
    async with service(tokens=TOKENS) as up:

        def keep(answer: object) -> None:
            answers.append(repr(answer).encode())

        right, admin = {"Authorization": f"Bearer {API}"}, {"Authorization": f"Bearer {ADMIN}"}
        wrong = {"Authorization": f"Bearer {WRONG}"}
        session = (await up.ask("POST", "/session", body={}, headers=right)).json["sessionId"]
        prompt = {"prompt": [{"type": "text", "text": TEXT}]}
        up.world.next_plans.extend([Plan(seconds=1, breaks=Break.AFTER_DELIVERY), Plan(status=500, body=b"{}")])
        async with listening(up, session, Authorization=f"Bearer {API}") as events:
            for _ in range(2):
                await up.ask("POST", f"/session/{session}/prompt", body=prompt, headers=right)
                await events.until("turn_error")
        for headers in (right, admin, wrong, {}):
            for path in ("/daemon/status?detail=full", "/capabilities", "/metrics", "/readyz", "/admin/identities",
                         "/admin/audit", "/openapi.json", "/no/such/route"):  # fmt: skip
                keep(await up.ask("GET", path, headers=headers))
            keep(await up.ask("POST", "/admin/restart", body={"identity": "b:m", "reason": "x"}, headers=headers))
            keep(await up.ask("POST", "/v2/models/nothing/infer", data=b"{", headers=headers))
        await trio.sleep(5)
        up.governor.drain()
    told = log.getvalue()
    assert "call_broken" in told
    assert "request_refused" in told
    for secret in (API, ADMIN, WRONG, TEXT, "Alice"):
        assert secret not in told
        assert not [answer for answer in answers if secret.encode() in answer]


async def test_a_fault_shows_its_client_nothing_and_the_log_no_variables(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with service() as up:
        session = await up.new_session()

        def broken(*_: object, **__: object) -> None:
            text = TEXT  # a local variable, as a traceback with locals would show it
            raise RuntimeError(f"a fault inside, {len(text)}")

        monkeypatch.setattr(up.governor.sessions[session], "admit", broken)
        answer = await up.prompt(session, TEXT)
    assert answer.status == 500
    assert "fault inside" not in answer.body.decode()
    assert "fault inside" in log.getvalue()
    assert "Alice" not in log.getvalue()


def test_a_configuration_hides_its_secrets_wherever_it_is_shown() -> None:
    config = make_config(tokens=TOKENS)
    for shown in (repr(config), str(config), json.dumps(config.masked()), repr(config.tokens)):
        assert API not in shown
        assert ADMIN not in shown


@pytest.mark.parametrize("token", ["short", "has a space in it, and is long", "ü" * 20, "x" * 5000])
def test_a_mistake_in_a_token_does_not_show_it(token: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(MINIMAL, environ={"GOVERNOR__TOKENS__API": token})
    assert token not in str(refused.value)
    path = tmp_path / "governor.toml"
    path.write_text(f'{MINIMAL}\n[tokens]\napi = "{token}"\n')
    with pytest.raises(ConfigError) as refused:
        load_config(path, environ={})
    assert token not in str(refused.value)


def test_a_url_with_a_password_is_refused() -> None:
    """The health check and the log tell backends by their URLs."""
    with pytest.raises(ConfigError) as refused:
        parse_config(MINIMAL, environ={"GOVERNOR__BACKENDS__0__URL": "http://user:hunter2secret@host:8000"})
    assert "hunter2secret" not in str(refused.value)
