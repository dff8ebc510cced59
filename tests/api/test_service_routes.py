"""Health, readiness, capabilities, metrics: protocol 2.1, 2.2; A3, A8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from governor.config import ModelConfig
from tests.api.harness import AsgiExchange, Service, listening, service
from tests.shell.world import Break, Fault, Plan

if TYPE_CHECKING:
    from trio.testing import MockClock

SECOND = ModelConfig(name="other", triton_model="m2", backend="b", slots=2, kind="generate_stream")


async def scrape(up: Service) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by name and label values."""
    answer = await up.ask("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


async def test_health_is_the_protocols(autojump_clock: MockClock) -> None:
    async with service() as up:
        for path in ("/health", "/healthz"):
            answer = await up.ask("GET", path)
            assert (answer.status, answer.json) == (200, {"status": "ok"})
            assert (await up.ask("HEAD", path)).status == 200


async def test_capabilities_name_models_limits_and_what_works(autojump_clock: MockClock) -> None:
    async with service(more_models=(SECOND,)) as up:
        shown = (await up.ask("GET", "/capabilities")).json
        assert shown["v"] == 1
        assert shown["protocolVersions"] == {"current": "v1", "supported": ["v1"]}
        assert shown["transports"] == ["rest"]
        assert shown["workspaceCwd"] == "/"
        assert shown["limits"]["maxPendingPromptsPerSession"] == 5
        assert shown["limits"]["maxTotalSessions"] == 800
        assert [model["id"] for model in shown["modelServices"]] == ["chat", "other"]
        assert "session_events" in shown["features"]
        assert not {"rate_limit", "require_auth", "prompt_absolute_deadline"} & set(shown["features"])


async def test_capabilities_follow_the_configuration(autojump_clock: MockClock) -> None:
    """A3: null where there is no limit."""
    token = "0123456789abcdef"
    limits = {"max_pending_prompts_per_session": 0, "prompt_deadline_ms": 5000}
    async with service(limits=limits, tokens={"api": token}) as up:
        answer = await up.ask("GET", "/capabilities", headers={"Authorization": f"Bearer {token}"})
        assert answer.json["limits"]["maxPendingPromptsPerSession"] is None
        assert answer.json["limits"]["promptDeadlineMs"] == 5000
        assert {"require_auth", "prompt_absolute_deadline"} <= set(answer.json["features"])


async def test_readiness_follows_the_backend_and_says_why(autojump_clock: MockClock) -> None:
    async with service() as up:
        answer = await up.ask("GET", "/readyz")
        assert answer.status == 200
        assert answer.json == {
            "ready": True, "draining": False, "models": {"chat": {"usable": True, "reason": None}}, "problems": [],
            "identities": [],
        }  # fmt: skip
        up.world.kill()
        await trio.sleep(2)
        answer = await up.ask("GET", "/readyz")
        assert answer.status == 503
        assert "refuses connections" in answer.json["models"]["chat"]["reason"]
        assert (await up.ask("GET", "/healthz")).status == 200, "a backend's fault is none of the process"
        up.world.start()
        await trio.sleep(2)
        assert (await up.ask("GET", "/readyz")).status == 200


async def test_readiness_has_one_line_for_each_identity_with_a_problem(autojump_clock: MockClock) -> None:
    """A8: what cannot work and why, in words; the process itself stays well."""
    async with service(more_models=(SECOND,)) as up:
        up.health.models_not_ready.add("m2")
        await trio.sleep(2)
        assert (await up.ask("GET", "/readyz")).json["problems"] == ["b/m2: not ready"]
        up.world.kill()
        await trio.sleep(2)
        shown = (await up.ask("GET", "/readyz")).json
        assert shown["problems"] == [f"b/{model}: http://127.0.0.1:8000 refuses connections" for model in ("m", "m2")]
        assert (await up.ask("GET", "/healthz")).status == 200


async def test_one_usable_model_is_enough(autojump_clock: MockClock) -> None:
    async with service(more_models=(SECOND,)) as up:
        up.health.models_not_ready.add("m2")
        await trio.sleep(2)
        answer = await up.ask("GET", "/readyz")
        assert answer.status == 200
        assert answer.json["models"]["other"] == {"usable": False, "reason": "not ready"}


async def test_a_draining_governor_is_not_ready(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.governor.drain()
        answer = await up.ask("GET", "/readyz")
        assert answer.status == 503
        assert answer.json["draining"] is True


async def test_readiness_names_held_slots_and_failing_readings(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(seconds=60, body=b"{}", breaks=Break.AFTER_DELIVERY))
        await up.ask("POST", "/v2/models/chat/infer", data=b"{}")
        up.world.fault = Fault.UNLOADED
        await trio.sleep(1)
        (identity,) = (await up.ask("GET", "/readyz")).json["identities"]
        assert identity["backend"] == "b"
        assert identity["model"] == "m"
        assert identity["reconciling"] == 1
        assert identity["freeSlots"] == 0
        assert "not available" in identity["lastReadingError"]


async def test_a_model_whose_slots_are_all_quarantined_can_achieve_nothing(autojump_clock: MockClock) -> None:
    async with service() as up:
        for breaks in (Break.NEVER, Break.AFTER_DELIVERY):
            up.world.next_plans.append(Plan(seconds=60, body=b"{}", breaks=breaks))
            await up.ask("POST", "/v2/models/chat/infer", data=b"{}")
            await trio.sleep(3)
        up.world.reload()
        await trio.sleep(1)
        answer = await up.ask("GET", "/readyz")
        assert answer.status == 503
        assert "nothing can prove ended" in answer.json["models"]["chat"]["reason"]
        assert answer.json["identities"][0]["quarantined"] == 1
        assert (await scrape(up))["vig_quarantined_slots", ("b", "m")] == 1


async def test_metrics_are_the_governors_own_numbers(autojump_clock: MockClock) -> None:
    async with service(more_models=(SECOND,)) as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        async with listening(up, session) as events:
            await up.prompt(session, "0")
            await events.until("turn_complete")
            up.world.next_plans.append(Plan(seconds=60, body=b"{}"))
            nursery.start_soon(AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}").run)
            await trio.sleep(1)
            await up.prompt(session, "0")
            await trio.sleep(1)
            seen = await scrape(up)
        here = ("b", "m")
        expected = {
            ("vig_sessions", ()): 1,
            ("vig_event_subscribers", ()): 1,
            ("vig_pending_prompts", ()): 1,
            ("vig_active_prompts", ()): 1,
            ("vig_prompts_admitted_total", ()): 2,
            ("vig_prompts_refused_total", ()): 0,
            ("vig_draining", ()): 0,
            ("vig_slots", here): 1,
            ("vig_slots", ("b", "m2")): 2,
            ("vig_free_slots", here): 0,
            ("vig_claims", (*here, "running")): 1,
            ("vig_claims", (*here, "quarantined")): 0,
            ("vig_quarantined_slots", here): 0,
            ("vig_waiting_calls", here): 1,
            ("vig_calls_total", here): 2,
            ("vig_calls_answered_total", here): 1,
            ("vig_readings_total", here): 1,
            ("vig_readings_failed_total", here): 0,
            ("vig_execution_reconciled_total", (*here, "quiet")): 0,
            ("vig_execution_reconciled_total", (*here, "process_ended")): 0,
            ("vig_reconcile_baseline_missing", here): 0,
            ("vig_released_unproven_total", here): 0,
            ("vig_restarts_total", here): 0,
            ("vig_reloads_total", here): 0,
            ("vig_contested", here): 0,
            ("vig_backend_up", ("b",)): 1,
            ("vig_model_usable", ("chat",)): 1,
        }
        assert {key: seen.get(key) for key in expected} == expected
        nursery.cancel_scope.cancel()


async def test_a_reconciled_call_is_counted_by_its_proof(autojump_clock: MockClock) -> None:
    async with service() as up:
        for seconds in (1, 60):
            up.world.next_plans.append(Plan(seconds=seconds, body=b"{}", breaks=Break.AFTER_DELIVERY))
            await up.ask("POST", "/v2/models/chat/infer", data=b"{}")
            await trio.sleep(3)
        up.world.restart()
        await trio.sleep(3)
        seen = await scrape(up)
        assert seen["vig_execution_reconciled_total", ("b", "m", "quiet")] == 1
        assert seen["vig_execution_reconciled_total", ("b", "m", "process_ended")] == 1
        assert seen["vig_calls_broken_total", ("b", "m")] == 2
        assert seen["vig_restarts_total", ("b", "m")] == 1
        assert seen["vig_free_slots", ("b", "m")] == 1


@pytest.mark.parametrize("path", ["/health", "/readyz", "/capabilities", "/metrics"])
async def test_a_body_that_nobody_wants_does_no_harm(path: str, autojump_clock: MockClock) -> None:
    async with service() as up:
        assert (await up.ask("GET", path, data=b"x" * 10_000)).status == 200
