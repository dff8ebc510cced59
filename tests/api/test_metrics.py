"""The metrics: each is documented, each says what happened, and nobody can make new ones (A8)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from prometheus_client.parser import text_string_to_metric_families

from governor.config import ModelConfig
from governor.histogram import BOUNDS_S, Histogram
from tests.api.harness import AsgiExchange, Events, Service, listening, service
from tests.deploy.promtool import run_promtool
from tests.shell.world import Break, Plan

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from trio.testing import MockClock

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()
SECOND = ModelConfig(name="other", triton_model="m2", backend="b", slots=2, kind="generate_stream")
HERE = {"backend": "b", "model": "m"}


def documented() -> dict[str, set[str]]:
    """Each metric of the page with its labels."""
    section = PAGE.split("\n## Metrics\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `(vig_\w+)` \|([^|]*)\| (.*) \|$", section, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels, _ in rows}


def families_of(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


async def scrape(up: Service) -> list[Metric]:
    return families_of((await up.ask("GET", "/metrics")).body.decode())


async def value(up: Service, name: str, /, **labels: str) -> float:
    """The one sample of this name and these labels."""
    found = [
        sample.value
        for family in await scrape(up)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(found) == 1, f"{len(found)} samples of {name}{labels}"
    return found[0]


def names_and_labels(families: list[Metric]) -> dict[str, set[str]]:
    """As the page tells them: a histogram by its own name and without `le`."""
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            name = family.name if family.type == "histogram" else sample.name
            found.setdefault(name, set()).update(set(sample.labels) - {"le"})
    return found


def series(families: list[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples}


async def test_every_metric_is_documented_with_its_labels_and_no_other(autojump_clock: MockClock) -> None:
    async with service() as up:
        families = await scrape(up)
    assert names_and_labels(families) == documented()
    for family in families:
        assert family.name.startswith("vig_")
        assert family.documentation.endswith(".") or family.name.startswith("vig_process_"), family.name


async def test_prometheus_own_checker_accepts_the_scrape(autojump_clock: MockClock) -> None:
    """`check metrics` also reads the names against Prometheus' conventions."""
    async with service(more_models=(SECOND,)) as up:
        await up.ask("POST", "/v2/models/chat/infer", data=b"{}")
        text = (await up.ask("GET", "/metrics")).body
    told = run_promtool("check", "metrics", stdin=text)
    assert [line for line in told.splitlines() if line.strip()] == []


async def test_no_caller_makes_a_series(autojump_clock: MockClock) -> None:
    """Label values come from the configuration and the code alone."""
    async with service(
        more_models=(SECOND,), tokens={"api": "t" * 16, "metrics_public": True}, limits={"max_body_bytes": 2_000_000}
    ) as up:
        before = series(await scrape(up))
        known = {"Authorization": f"Bearer {'t' * 16}"}
        odd = "x" * 300
        for headers in ({}, known, {"Authorization": odd}, {"Origin": odd, **known}, {"X-Request-Id": odd, **known}):
            for path in (
                f"/v2/models/{odd}/infer",
                "/v2/models/m/infer",
                f"/session/{odd}/prompt",
                f"/{odd}",
                "/session",
            ):
                await up.ask("POST", path, body={"modelServiceId": odd, "prompt": [{"type": "text", "text": odd}]},
                             headers=headers)  # fmt: skip
        await up.ask("POST", "/session", data=b"x" * 2_000_001, headers=known)
        after = await scrape(up)
    assert series(after) == before
    config = {"b", "m", "m2", "chat", "other"}
    codes = set(re.findall(r"`([a-z_]+)`", PAGE.split("\n## Error codes\n", 1)[1]))
    for family in after:
        for sample in family.samples:
            for label, text in sample.labels.items():
                allowed = {
                    "backend": config, "model": config, "name": config, "reason": codes,
                    "state": {"running", "timed_out", "reconciling", "awaiting_baseline", "quarantined"},
                    "proof": {"quiet", "process_ended"},
                    "outcome": {"completed", "cancelled", "error"},
                }.get(label)  # fmt: skip
                assert label in {"le", "version"} or (allowed is not None and text in allowed), (
                    sample.name,
                    label,
                    text,
                )


def test_a_histogram_counts_each_duration_below_its_bounds() -> None:
    histogram = Histogram()
    for duration_s in (0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1] + 1):
        histogram.observe(duration_s)
    cumulative = histogram.cumulative()
    assert len(cumulative) == len(BOUNDS_S) + 1
    assert cumulative[0] == 2, "a bound belongs to its bucket, as in Prometheus"
    assert cumulative[1] == cumulative[-2] == 3
    assert cumulative[-1] == histogram.count == 4
    assert histogram.sum_s == sum((0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1] + 1))
    assert list(BOUNDS_S) == sorted(BOUNDS_S)


async def test_waits_and_services_are_measured_and_queues_show_their_depth_and_age(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        up.world.next_plans.extend([Plan(seconds=4, body=b"{}"), Plan(seconds=2, body=b"{}")])
        nursery.start_soon(AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}").run)
        await trio.sleep(1)
        nursery.start_soon(AsgiExchange(up.app, "POST", "/v2/models/chat/infer", data=b"{}").run)
        await trio.sleep(2)
        assert await value(up, "vig_waiting_calls", **HERE) == 1
        assert abs(await value(up, "vig_oldest_waiting_call_seconds", **HERE) - 2) < 0.1
        assert abs(await value(up, "vig_oldest_claim_seconds", **HERE, state="running") - 3) < 0.1
        assert await value(up, "vig_oldest_claim_seconds", **HERE, state="quarantined") == 0
        assert await value(up, "vig_requests_in_flight") == 2
        await trio.sleep(5)
        assert await value(up, "vig_oldest_waiting_call_seconds", **HERE) == 0
        assert await value(up, "vig_credit_wait_seconds_count", **HERE) == 2
        assert abs(await value(up, "vig_credit_wait_seconds_sum", **HERE) - 3) < 0.1
        assert await value(up, "vig_credit_wait_seconds_bucket", **HERE, le="2.5") == 1
        assert await value(up, "vig_service_seconds_count", **HERE) == 2
        assert abs(await value(up, "vig_service_seconds_sum", **HERE) - 6) < 0.1
        nursery.cancel_scope.cancel()


async def test_the_lag_of_a_proof_is_from_the_break_to_the_proof(autojump_clock: MockClock) -> None:
    async with service() as up:
        plan = Plan(seconds=3, body=b"{}", breaks=Break.AFTER_DELIVERY, breaks_after_s=1)
        up.world.next_plans.append(plan)
        await up.ask("POST", "/v2/models/chat/infer", data=b"{}")
        await trio.sleep(10)
        assert await value(up, "vig_proof_lag_seconds_count", **HERE, proof="quiet") == 1
        assert await value(up, "vig_proof_lag_seconds_count", **HERE, proof="process_ended") == 0
        # It ends two seconds after the break; the next reading sees it.
        assert 2 <= await value(up, "vig_proof_lag_seconds_sum", **HERE, proof="quiet") < 2.6
        assert await value(up, "vig_service_seconds_count", **HERE) == 0, "it was never answered"


async def test_refusals_are_counted_by_reason(autojump_clock: MockClock) -> None:
    limits = {"max_waiting_per_identity": 1, "max_credit_wait_ms": 500, "max_sessions": 1}
    async with service(
        limits={**limits, "max_pending_prompts_per_session": 1}, tokens={"api": "t" * 16}
    ) as up, trio.open_nursery() as nursery:  # fmt: skip
        known = {"Authorization": f"Bearer {'t' * 16}"}

        async def ask(path: str, data: bytes = b"{}", **headers: str) -> int:
            json = {"Content-Type": "application/json"}
            return (await up.ask("POST", path, data=data, headers={**known, **json, **headers})).status

        async def refused(reason: str) -> float:
            text = (await up.ask("GET", "/metrics", headers=known)).body.decode()
            [found] = [
                sample.value
                for family in families_of(text)
                for sample in family.samples
                if sample.name == "vig_refusals_total" and sample.labels == {"reason": reason}
            ]
            return found

        assert (await up.ask("POST", "/v2/models/chat/infer")).status == 401
        assert await refused("unauthorized") == 1
        assert await ask("/session", Origin="https://evil.example") == 403
        assert await refused("origin_not_allowed") == 1
        assert await ask("/session", data=b"x" * 10_485_761) == 413
        assert await refused("body_too_large") == 1
        answer = await up.ask("POST", "/session", body={"sessionScope": "thread"}, headers=known)
        assert await ask("/session", data=b'{"sessionScope": "thread"}') == 503
        assert await refused("session_limit_exceeded") == 1
        up.world.next_plans.append(Plan(seconds=60, body=b"{}"))
        prompt = b'{"prompt": [{"type": "text", "text": "60"}]}'
        assert await ask(f"/session/{answer.json['sessionId']}/prompt", prompt) == 202
        assert await ask(f"/session/{answer.json['sessionId']}/prompt", prompt) == 503
        assert await refused("prompt_queue_full") == 1
        await trio.sleep(0.1)
        nursery.start_soon(ask, "/v2/models/chat/infer")
        await trio.sleep(0.1)
        assert await ask("/v2/models/chat/infer") == 503
        assert await refused("credit_queue_full") == 1
        await trio.sleep(1)
        assert await refused("credit_wait_timeout") == 1
        assert await ask("/v2/models/nothing/infer") == 404
        up.governor.drain()
        assert await ask("/session") == 503
        assert await refused("daemon_draining") == 1
        nursery.cancel_scope.cancel()


async def test_an_unexpected_caller_error_is_no_refusal(autojump_clock: MockClock) -> None:
    async with service() as up:
        before = await scrape(up)
        assert (await up.ask("POST", "/v2/models/nothing/infer", data=b"{}")).status == 404
        after = await scrape(up)
    total = [
        sum(sample.value for family in told for sample in family.samples if sample.name == "vig_refusals_total")
        for told in (before, after)
    ]
    assert total[0] == total[1]


async def test_prompts_are_counted_by_outcome_with_their_time(autojump_clock: MockClock) -> None:
    async with service(limits={"prompt_deadline_ms": 5_000}) as up:
        session = await up.new_session()
        async with listening(up, session) as events:
            await up.prompt(session, "2")
            await events.until("turn_complete")
            await up.prompt(session, "60")
            await events.until("turn_error")
            await up.prompt(session, "60")
            await up.ask("POST", f"/session/{session}/cancel")
            await events.until("turn_complete")
        for outcome, seconds in (("completed", 2), ("error", 5), ("cancelled", 0)):
            assert await value(up, "vig_prompt_seconds_count", outcome=outcome) == 1
            assert abs(await value(up, "vig_prompt_seconds_sum", outcome=outcome) - seconds) < 0.2
        assert await value(up, "vig_prompts_admitted_total") == 3
        assert await value(up, "vig_sessions_opened_total") == 1


async def test_an_evicted_subscriber_is_counted_once(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        session = await up.new_session()
        exchange = AsgiExchange(up.app, "GET", f"/session/{session}/events", query=b"maxQueued=16")
        nursery.start_soon(exchange.run)
        assert await Events(exchange).next() == "retry: 3000"
        assert await value(up, "vig_event_subscribers") == 1
        exchange.blocked = trio.Event()
        for _ in range(40):
            up.governor.session(session).announce("test", {})
            await trio.sleep(0.01)
        assert await value(up, "vig_subscriber_evictions_total") == 1
        assert await value(up, "vig_event_subscribers") == 0
        exchange.blocked.set()
        await exchange.ended.wait()
        assert await value(up, "vig_subscriber_evictions_total") == 1


async def test_contests_and_epochs_are_counted(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(seconds=5, body=b"{}", breaks=Break.AFTER_DELIVERY))
        await up.ask("POST", "/v2/models/chat/infer", data=b"{}")
        epoch = await value(up, "vig_epoch", **HERE)
        assert epoch >= 1
        up.world.load.success += 7  # somebody else
        await trio.sleep(2)
        assert await value(up, "vig_contested", **HERE) == 1
        assert await value(up, "vig_contests_total", **HERE) == 1
        up.world.restart()
        await trio.sleep(5)
        assert await value(up, "vig_epoch", **HERE) > epoch
        assert await value(up, "vig_restarts_total", **HERE) == 1
