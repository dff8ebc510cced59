"""Schemathesis against a governor on a socket: no request that it makes up gets a 500, or what the document has not.

It reads the document that the service serves, sends what the document allows and what it forbids, follows its links
from one route to the next, and holds every answer against it. Some values are real, so that it gets past 404.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import trio

from governor.demo.ports import free_ports
from tests.e2e.simulated import simulated_triton
from tests.e2e.stack import governor_config, running_governor

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.stack import Governor

TOKEN = "0123456789abcdef0123456789abcdef"
SEED = 4170
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "missing_required_header", "unsupported_method", "allow_header_conformance",
    "use_after_free", "ensure_resource_availability", "ignored_auth",
)  # fmt: skip
CONFIG = """
seed = {seed}
max-stream-events = 3
request-timeout = 5
warnings = false

[auth.openapi.bearer]
bearer = "{token}"

[checks]
enabled = false
{checks}

[dictionaries.sessions]
values = {sessions}
[dictionaries.models]
values = ["sentiment", "slow"]
[dictionaries.texts]
values = ["0.01 seconds", "0.3 seconds"]

[parameters]
"path.session_id" = {{ dictionary = "sessions", probability = 0.7 }}
"path.model" = {{ dictionary = "models", probability = 0.9 }}
"path.model_version" = {{ dictionary = "models", probability = 0.1 }}
"body.modelServiceId" = {{ dictionary = "models", probability = 0.7 }}
"body.modelId" = {{ dictionary = "models", probability = 0.7 }}
"body.prompt[*].text" = {{ dictionary = "texts", probability = 0.9 }}

# Triton answers some malformed bodies with a 500 of its own, which passes as it is. One of ours would be in the log.
[[operations]]
include-path-regex = "^/v2/"
checks.not_a_server_error.enabled = false

# The protocol answers a batch with 501.
[[operations]]
include-path = "/acp"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501, 503]
"""


OPERATORS_TOKEN = "operators-own-0123456789"
FOR_OPERATORS = f"""
[auth.openapi.admin]
bearer = "{OPERATORS_TOKEN}"

[dictionaries.identities]
values = ["triton:slow", "triton:sentiment"]

[parameters]
"path.identity_id" = {{ dictionary = "identities", probability = 0.8 }}
"body.identity" = {{ dictionary = "identities", probability = 0.8 }}
"""


async def fuzz(folder: Path, *options: str, seconds: float, for_operators: bool = False) -> None:
    """One run of Schemathesis against a governor of its own, which is whole afterwards."""
    (port,) = free_ports(1)
    with simulated_triton() as triton_url:
        limits = f'prompt_deadline_ms = 2000\nheartbeat_interval_ms = 200\n[tokens]\napi = "{TOKEN}"'
        config = governor_config(port=port, triton_url=triton_url, metrics_url=None, limits=limits)
        config = config.replace("prompt_deadline_ms = 60000\n", "")
        if for_operators:
            config = config.replace("[tokens]\n", f'[tokens]\nadmin = "{OPERATORS_TOKEN}"\n')
        async with running_governor(config, port, folder) as governor:
            governor.client.headers["Authorization"] = f"Bearer {TOKEN}"
            sessions = [await governor.session("sentiment") for _ in range(3)]
            settings = CONFIG.format(
                seed=SEED,
                token=TOKEN,
                sessions=sessions,
                checks="\n".join(f"{check}.enabled = true" for check in CHECKS),
            )
            if for_operators:
                settings = settings.replace("[parameters]\n", FOR_OPERATORS.lstrip())
            file = folder / "schemathesis.toml"
            file.write_text(settings)
            document = folder / "openapi.json"
            document.write_bytes((await governor.client.get("/openapi.json")).content)
            command = ["-m", "schemathesis.cli", "--config-file", str(file), "run", str(document), "-u", governor.url]
            with trio.move_on_after(seconds) as bound:
                done = await trio.run_process(
                    [sys.executable, *command, *options],
                    capture_stdout=True,
                    capture_stderr=True,
                    check=False,
                    cwd=folder,
                )
            assert not bound.cancelled_caught, f"Schemathesis had not ended after {seconds:g} s"
            assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
            await is_whole(governor)


async def is_whole(governor: Governor) -> None:
    """Whatever was asked of it, nothing failed inside of it, and everything comes to its end."""
    log = governor.log.read_text()
    assert "request_failed" not in log
    assert "Traceback" not in log
    for name in ("vig_event_subscribers", "vig_pending_prompts"):
        await governor.wait_metric(name, 0)
    for model, slots in (("slow", 1), ("sentiment", 2)):
        await governor.wait_metric("vig_free_slots", slots, backend="triton", model=model)


async def test_what_the_document_says_at_its_edges(tmp_path: Path) -> None:
    """Each constraint of each parameter and body at its bounds and just beyond."""
    tags = ("sessions", "prompts", "service")
    await fuzz(tmp_path, "--phases=coverage", *(f"--include-tag={tag}" for tag in tags), seconds=120)


@pytest.mark.slow
async def test_what_it_says_at_random_and_from_route_to_route(tmp_path: Path) -> None:
    await fuzz(tmp_path, "--phases=coverage,fuzzing,stateful", "--max-examples=20", seconds=900)


@pytest.mark.slow
async def test_what_operators_may_do(tmp_path: Path) -> None:
    """With their token: restarts, releases, drains and reloads of every shape, and the governor stays whole."""
    options = ("--phases=coverage,fuzzing", "--max-examples=10", "--include-tag=admin")
    await fuzz(tmp_path, *options, seconds=300, for_operators=True)
