"""A Triton for `governor check`, a configuration with it, and what a report says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import trio

from governor.check import CheckReport, check
from governor.config import parse_config

if TYPE_CHECKING:
    from governor.config import Config

TEXT_IN = {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1], "optional": False}
TEXT_OUT = {"name": "text_output", "data_type": "TYPE_STRING", "dims": [1]}
NUMBER = {"name": "N", "data_type": "TYPE_INT32", "dims": [1], "optional": False}


def model_config(**changes: Any) -> dict[str, Any]:
    """A model's configuration in the shape that Triton 2.51 reports."""
    return {
        "name": "chat",
        "platform": "",
        "backend": "python",
        "max_batch_size": 0,
        "input": [TEXT_IN],
        "output": [TEXT_OUT],
        "instance_group": [{"name": "chat_0", "kind": "KIND_CPU", "count": 2, "gpus": []}],
        **changes,
    }


@dataclass
class FakeTriton:
    """Answers as Triton does; `answers` overrides single paths with (status, body)."""

    model: dict[str, Any] = field(default_factory=model_config)
    name: str = "triton"
    extensions: list[str] = field(default_factory=lambda: ["statistics", "trace"])
    trace_level: list[str] = field(default_factory=lambda: ["OFF"])
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    busy: int = 0
    busiest: int = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, request.url.path))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await trio.lowlevel.checkpoint()
        self.busy -= 1
        status, body = self.answers.get(request.url.path) or self.answer(request.url.path)
        return httpx.Response(status, stream=httpx.ByteStream(body))

    def answer(self, path: str) -> tuple[int, bytes]:
        name = self.model["name"]
        known: dict[str, object] = {
            "/v2": {"name": self.name, "version": "2.51.0", "extensions": self.extensions},
            "/v2/repository/index": [{"name": name, "version": "1", "state": "READY"}, {"name": "other"}],
            "/v2/trace/setting": {"trace_level": self.trace_level, "log_frequency": "0"},
            f"/v2/models/{name}/ready": {},
            f"/v2/models/{name}/config": self.model,
            f"/v2/models/{name}/stats": {"model_stats": [{"name": name, "version": "1"}]},
        }
        if path == "/metrics":
            return (
                200,
                f'# HELP nv_inference_request_success x\nnv_inference_request_success{{model="{name}"}} 0\n'.encode(),
            )
        if path in known:
            return 200, json.dumps(known[path]).encode()
        return 404, b'{"error":"Request for unknown model is not found"}'

    async def check(self, config: Config) -> CheckReport:
        return await check(config, transport=httpx.MockTransport(self))


def config(model: str = "", backend: str = 'metrics_url = "http://triton:8002"', name: str = "chat") -> Config:
    kind = "" if "kind" in model else 'kind = "generate"\n'
    slots = "" if "slots" in model else "slots = 1\n"
    return parse_config(
        f'[[backends]]\nname = "triton"\nurl = "http://triton:8000"\n{backend}\n'
        f'[[models]]\nname = "{name}"\nbackend = "triton"\n{kind}{slots}{model}\n'
    )


def bad(report: CheckReport) -> list[str]:
    return [finding.line() for finding in report.findings if finding.level != "ok"]


def only_bad(report: CheckReport) -> str:
    found = bad(report)
    assert len(found) == 1, found
    assert ". To do: " in found[0] or "? To do: " in found[0], "a finding that is not ok says what to do"
    return found[0]
