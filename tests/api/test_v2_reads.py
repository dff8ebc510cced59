"""`/v2` beside inference: Triton's answers under public names, bounded, and without a credit (A6)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import trio

from governor.config import BackendConfig, Config, ModelConfig
from governor.reads import AT_ONCE, WAITING_MAX
from tests.api.harness import AsgiExchange, Service, make_config, service
from tests.shell.world import Plan

if TYPE_CHECKING:
    from trio.testing import MockClock

JSON = "application/json"
INDEX = "POST /v2/repository/index"


def same_name() -> dict[str, str]:
    """The model's public name is Triton's."""
    return {"name": "m"}


async def test_an_answer_about_a_model_of_one_name_passes_byte_for_byte(autojump_clock: MockClock) -> None:
    odd = b'{ "name" : "m", "versions":["1"] }\n'
    async with service(model=same_name()) as up:
        for path in ("/v2/models/m", "/v2/models/m/config", "/v2/models/m/stats", "/v2/models/m/versions/3"):
            up.world.replies[f"GET {path}"] = (200, JSON, odd)
            answer = await up.ask("GET", path)
            assert (answer.status, answer.body, answer.headers["content-type"]) == (200, odd, JSON)
        up.world.replies["GET /v2/models/m/ready"] = (200, None, b"")
        ready = await up.ask("GET", "/v2/models/m/ready")
        assert (ready.status, ready.body) == (200, b"")
        assert "content-type" not in ready.headers
        assert up.free == 1
        assert not up.world.wires, "none of them is an inference"


@pytest.mark.parametrize("tail", ["", "/config"])
async def test_an_answer_names_the_model_as_its_caller_did(tail: str, autojump_clock: MockClock) -> None:
    told = {"name": "m", "versions": ["1"], "ensemble": [{"name": "m"}], "text": "ä"}
    async with service() as up:
        up.world.replies[f"GET /v2/models/m{tail}"] = (200, JSON, json.dumps(told).encode())
        assert (await up.ask("GET", f"/v2/models/chat{tail}")).json == {**told, "name": "chat"}
        assert (await up.ask("GET", f"/v2/models/m{tail}")).json == told


async def test_statistics_name_the_model_as_its_caller_did(autojump_clock: MockClock) -> None:
    told = {"model_stats": [{"name": "m", "version": "1", "inference_count": 7}, {"name": "m", "version": "2"}]}
    async with service() as up:
        up.world.replies["GET /v2/models/m/stats"] = (200, JSON, json.dumps(told).encode())
        answer = await up.ask("GET", "/v2/models/chat/stats")
        assert [entry["name"] for entry in answer.json["model_stats"]] == ["chat", "chat"]
        assert answer.json["model_stats"][0]["inference_count"] == 7


async def test_the_configured_version_is_asked_about(autojump_clock: MockClock) -> None:
    async with service(model={"triton_version": "7"}) as up:
        await up.ask("GET", "/v2/models/chat/config")
        await up.ask("GET", "/v2/models/chat/versions/2/ready")
        assert [wire.path for wire in up.world.questions] == [
            "/v2/models/m/versions/7/config",
            "/v2/models/m/versions/2/ready",
        ]


async def test_an_error_of_triton_passes_as_it_is(autojump_clock: MockClock) -> None:
    error = b'{"error":"Request for unknown model: \'m\' version 9 is not found"}'
    async with service() as up:
        up.world.replies["GET /v2/models/m/versions/9"] = (404, JSON, error)
        answer = await up.ask("GET", "/v2/models/chat/versions/9")
        assert (answer.status, answer.body) == (404, error)


@pytest.mark.parametrize("tail", ["", "/config", "/ready", "/stats", "/infer"])
async def test_an_unknown_model_is_told_in_tritons_words(tail: str, autojump_clock: MockClock) -> None:
    async with service() as up:
        answer = await up.ask("POST" if tail == "/infer" else "GET", f"/v2/models/nothing{tail}")
        assert (answer.status, answer.code) == (404, "unknown_model")
        assert answer.json["error"].startswith("Request for unknown model: 'nothing' is not found")
        assert answer.json["models"] == ["chat"]


@pytest.mark.parametrize("version", ["x", "1.0", "..", "\u0661"])
async def test_a_version_has_only_digits(version: str, autojump_clock: MockClock) -> None:
    async with service() as up:
        assert (await up.ask("GET", f"/v2/models/chat/versions/{version}")).code == "not_found"
        assert (await up.ask("POST", f"/v2/models/chat/versions/{version}/infer", data=b"{}")).code == "not_found"
        assert not up.world.questions
        assert not up.world.wires


async def test_the_server_is_tritons_own_without_what_is_closed(autojump_clock: MockClock) -> None:
    told = {"name": "t", "version": "2.51.0", "extensions": ["sequence", "trace", "logging", "statistics"]}
    async with service() as up:
        up.world.replies["GET /v2"] = (200, JSON, json.dumps(told).encode())
        assert (await up.ask("GET", "/v2")).json == {**told, "extensions": ["sequence", "statistics"]}
    async with service(tokens={"admin": "operators-secret"}) as up:
        up.world.replies["GET /v2"] = (200, JSON, json.dumps(told).encode())
        assert (await up.ask("GET", "/v2")).json == told


def two_backends() -> Config:
    """Two servers; one model of the first has two names."""
    shown = make_config()
    second = BackendConfig(name="c", url="http://127.0.0.1:9000")
    alias = shown.models[0].model_copy(update={"name": "alias"})
    other = ModelConfig(name="other", backend="c", slots=1, kind="infer")
    return Config(backends=(*shown.backends, second), models=(*shown.models, alias, other))


async def test_several_servers_look_like_one(autojump_clock: MockClock) -> None:
    """Only what all of them have is offered; of what each tells, only models that are configured here are shown."""
    stats = [{"name": "m", "n": 1}, {"name": "other", "n": 2}, {"name": "private", "n": 3}]
    async with service(two_backends()) as up:
        up.world.replies["GET /v2"] = (
            200,
            JSON,
            b'{"name":"t","version":"2","extensions":["parameters","statistics"]}',
        )
        server = (await up.ask("GET", "/v2")).json
        assert (server["name"], server["extensions"]) == ("triton-governor", ["parameters", "statistics"])
        up.world.replies["GET /v2/models/stats"] = (200, JSON, json.dumps({"model_stats": stats}).encode())
        found = (await up.ask("GET", "/v2/models/stats")).json["model_stats"]
        assert [(entry["name"], entry["n"]) for entry in found] == [("chat", 1), ("alias", 1), ("other", 2)]
        index = [{"name": "m", "state": "READY"}, {"name": "other"}, {"name": "private"}]
        up.world.replies[INDEX] = (200, JSON, json.dumps(index).encode())
        listed = json.loads((await up.ask("POST", "/v2/repository/index", data=b'{"ready": true}')).body)
        assert listed == [
            {"name": "chat", "state": "READY"},
            {"name": "alias", "state": "READY"},
            {"name": "other"},
        ]
        assert up.world.questions[-1].body == b'{"ready": true}', "what is asked for passes unchanged"


async def test_what_is_no_answer_of_triton_is_a_502(autojump_clock: MockClock) -> None:
    async with service() as up:
        for path, question in (
            ("/v2", "GET /v2"),
            ("/v2/models/stats", "GET /v2/models/stats"),
            ("/v2/models/chat", "GET /v2/models/m"),
            ("/v2/models/chat/stats", "GET /v2/models/m/stats"),
        ):
            up.world.replies[question] = (200, JSON, b"<html>")
            answer = await up.ask("GET", path)
            assert (answer.status, answer.code) == (502, "backend_protocol_error"), path


async def test_a_server_that_is_down_is_a_503(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.kill()
        for path in ("/v2", "/v2/models/chat", "/v2/models/chat/ready", "/v2/models/stats"):
            answer = await up.ask("GET", path)
            assert (answer.status, answer.code) == (503, "backend_unavailable"), path
            assert answer.headers["retry-after"] == "5"


async def test_health_is_the_governors_own(autojump_clock: MockClock) -> None:
    async with service() as up:
        assert (await up.ask("GET", "/v2/health/live")).status == 200
        assert (await up.ask("GET", "/v2/health/ready")).status == 200
        up.world.kill()
        await trio.sleep(2)
        assert (await up.ask("GET", "/v2/health/live")).status == 200
        ready = await up.ask("GET", "/v2/health/ready")
        assert (ready.status, ready.code) == (503, "not_ready")


async def ask_many(up: Service, nursery: trio.Nursery, count: int) -> list[AsgiExchange]:
    exchanges = [AsgiExchange(up.app, "GET", "/v2/models/chat") for _ in range(count)]
    for exchange in exchanges:
        nursery.start_soon(exchange.run)
        await trio.sleep(0.01)
    return exchanges


async def test_questions_are_bounded_and_never_hold_up_a_call(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        up.world.questions_wait = trio.Event()
        exchanges = await ask_many(up, nursery, AT_ONCE + WAITING_MAX)
        assert len(up.world.questions) == AT_ONCE
        refused = await up.ask("GET", "/v2/models/chat")
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "read_queue_full", "1")
        up.world.next_plans.append(Plan(body=b"{}"))
        assert (await up.ask("POST", "/v2/models/chat/generate", data=b"{}")).status == 200
        up.world.questions_wait.set()
        for exchange in exchanges:
            assert (await exchange.whole()).status == 404


async def test_a_question_without_an_answer_ends_in_time_and_gives_its_place_back(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.questions_wait = trio.Event()
        for _ in range(2 * AT_ONCE):
            began = trio.current_time()
            late = await up.ask("GET", "/v2/models/chat")
            assert (late.status, late.code) == (504, "backend_timeout")
            assert trio.current_time() - began == pytest.approx(5, abs=0.1)
        up.world.questions_wait.set()
        assert (await up.ask("GET", "/v2/models/chat")).status == 404


async def test_unused_connections_are_closed(autojump_clock: MockClock) -> None:
    """An idle open connection would delay Triton's own shutdown."""
    async with service() as up:
        await up.ask("GET", "/v2/models/chat")
        assert up.world.open_connections == 1
        await trio.sleep(3)
        assert up.world.open_connections == 0
