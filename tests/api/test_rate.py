"""Rate limits: protocol 1.6. Off by default; one bucket for each caller and each kind of request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from api.rate import CALLERS_MAX, RateLimiter, RateLimitError, Tier, caller_name, tier_of
from tests.api.harness import service

if TYPE_CHECKING:
    from trio.testing import MockClock


def limiter(limit: int | None = 60) -> RateLimiter:
    return RateLimiter({"prompt": limit, "mutation": limit, "read": None})


def take(bucket: RateLimiter, count: int, at_s: float, caller: str = "me", tier: Tier = "prompt") -> int:
    """How many of so many requests pass."""
    passed = 0
    for _ in range(count):
        try:
            bucket.take(caller, tier, at_s)
        except RateLimitError:
            continue
        passed += 1
    return passed


def test_a_minute_s_worth_may_come_at_once_and_then_as_fast_as_the_bucket_fills() -> None:
    bucket = limiter(60)
    assert take(bucket, 100, 0.0) == 60
    assert take(bucket, 100, 0.5) == 0
    assert take(bucket, 100, 1.0) == 1
    assert take(bucket, 100, 11.0) == 10
    assert take(bucket, 100, 1000.0) == 60
    assert bucket.rejected["prompt"] == 40 + 100 + 99 + 90 + 40


def test_callers_and_kinds_do_not_share_a_bucket() -> None:
    bucket = limiter(2)
    assert take(bucket, 5, 0.0) == 2
    assert take(bucket, 5, 0.0, "you") == 2
    assert take(bucket, 5, 0.0, tier="mutation") == 2
    assert take(bucket, 500, 0.0, tier="read") == 500


def test_a_refusal_says_how_long_to_wait_and_that_is_true() -> None:
    bucket = limiter(10)
    take(bucket, 10, 0.0)
    with pytest.raises(RateLimitError) as refused:
        bucket.take("me", "prompt", 0.0)
    assert refused.value.details == {"tier": "prompt", "retryAfterMs": 6000}
    assert refused.value.retry_after_s == 6
    assert take(bucket, 1, 5.99) == 0
    assert take(bucket, 1, 6.0) == 1


def test_a_bounded_number_of_callers_is_remembered() -> None:
    bucket = limiter(1)
    for number in range(CALLERS_MAX + 10):
        bucket.take(f"caller {number}", "prompt", 0.0)
    assert len(bucket._full_at) == CALLERS_MAX


@given(st.lists(st.floats(0, 30), max_size=200), st.integers(1, 20))
def test_no_minute_has_more_than_twice_its_limit(pauses: list[float], limit: int) -> None:
    """A full bucket and what flows in meanwhile."""
    bucket, now_s, passed = limiter(limit), 0.0, []
    for pause_s in pauses:
        now_s += pause_s
        if take(bucket, 1, now_s):
            passed.append(now_s)
    for start in passed:
        assert sum(start <= moment <= start + 60 for moment in passed) <= 2 * limit + 1


@pytest.mark.parametrize(
    ("method", "path", "tier"),
    [
        ("POST", "/session/x/prompt", "prompt"),
        ("GET", "/session/x/prompt", "read"),
        ("POST", "//session/x/prompt", "prompt"),
        ("POST", "/session", "mutation"),
        ("DELETE", "/session/x", "mutation"),
        ("PATCH", "/session/x/metadata", "mutation"),
        ("GET", "/session/x/status", "read"),
        ("HEAD", "/capabilities", "read"),
        ("POST", "/session/x/heartbeat", None),
        ("GET", "/session/x/events", None),
        ("GET", "/health", None),
        ("GET", "/metrics", None),
        ("GET", "/v2/health/ready", None),
        ("OPTIONS", "/session", None),
    ],
)
def test_the_kind_of_a_request(method: str, path: str, tier: str | None) -> None:
    assert tier_of(method, path) == tier


def test_a_caller_is_its_address_where_anybody_may_come_and_its_client_id_on_loopback() -> None:
    assert caller_name(loopback=False, address="10.0.0.1", client_id="made up") == "10.0.0.1"
    assert caller_name(loopback=True, address="127.0.0.1", client_id="c") == "c"
    assert caller_name(loopback=True, address="127.0.0.1", client_id=None) == "anonymous"


async def test_a_prompt_too_many_is_a_429_that_says_when_to_come_back(autojump_clock: MockClock) -> None:
    async with service(limits={"prompts_per_minute": 2, "max_pending_prompts_per_session": 0}) as up:
        session = await up.new_session()
        for _ in range(2):
            assert (await up.prompt(session, "0")).status == 202
        answer = await up.prompt(session, "0")
        assert (answer.status, answer.code) == (429, "rate_limit_exceeded")
        assert answer.json == {
            "error": "Rate limit exceeded", "code": "rate_limit_exceeded", "tier": "prompt",
            "retryAfterMs": answer.json["retryAfterMs"],
        }  # fmt: skip
        assert 29_000 <= answer.json["retryAfterMs"] <= 30_000
        assert (answer.headers["retry-after"], answer.headers["x-ratelimit-limit"]) == ("30", "2")
        assert (answer.headers["x-ratelimit-remaining"], answer.headers["x-ratelimit-reset"].isdigit()) == ("0", True)
        assert up.governor.statistics().totals.prompts_admitted == 2
        assert (await up.ask("POST", f"/session/{session}/cancel")).status == 204
        other = {"X-Qwen-Client-Id": up.governor.sessions[session].clients.register()}
        body = {"prompt": [{"type": "text", "text": "0"}]}
        assert (await up.ask("POST", f"/session/{session}/prompt", body=body, headers=other)).status == 202
        await trio.sleep(30)
        assert (await up.prompt(session, "0")).status == 202
        told = (await up.ask("GET", "/daemon/status")).json
        assert told["runtime"]["rateLimit"] == {
            "enabled": True, "rejectedSinceStart": {"prompt": 1, "mutation": 0, "read": 0}
        }  # fmt: skip
        assert "rate_limit" in told["capabilities"]["features"]
