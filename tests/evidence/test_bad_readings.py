"""E9: statistics that make no sense. Refused with a reason and counted; the claim stays; proof comes when they heal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from governor.core.claims import ClaimState
from tests.evidence import falsehoods
from tests.evidence.bench import governed
from tests.evidence.lab import Model

if TYPE_CHECKING:
    from tests.evidence.falsehoods import Falsehood
    from tests.evidence.lab import Lab

pytestmark = pytest.mark.real_triton

MODELS = [Model("work", instances=4)]

BAD_STATISTICS: dict[str, tuple[Falsehood, str]] = {
    "not JSON": (falsehoods.body(lambda _right: b"<html>Bad Gateway</html>"), "not_json"),
    "empty": (falsehoods.body(lambda _right: b""), "not_json"),
    "JSON and more": (falsehoods.body(lambda _right: b'{"model_stats": []} {}'), "not_json"),
    "no object": (falsehoods.body(lambda _right: b"[]"), "malformed"),
    "no models": (falsehoods.body(lambda _right: b'{"model_stats": []}'), "model_missing"),
    "another model": (falsehoods.body(falsehoods.other_model), "model_missing"),
    "negative": (falsehoods.success_count("-1"), "negative"),
    "huge": (falsehoods.success_count(str(2**64)), "huge"),
    "a float": (falsehoods.success_count("2.0"), "not_an_integer"),
    "a text": (falsehoods.success_count('"2"'), "not_an_integer"),
    "null": (falsehoods.success_count("null"), "not_an_integer"),
    "not a number": (falsehoods.success_count("NaN"), "not_json"),
    "status 500": (falsehoods.body(lambda _right: b'{"error":"no"}', status="500 Oh"), "http_status"),
    "10 MB": (falsehoods.body(lambda right: b" " * 10_000_000 + right), "bytes"),
    "cut off": (falsehoods.cut_off, "broke"),
    "closed": (falsehoods.closed, "the peer closed the connection"),
    "silent": (falsehoods.silent, "within"),
    "endless": (falsehoods.endless, "within"),
}


@pytest.mark.parametrize("name", BAD_STATISTICS)
async def test_bad_statistics_end_nothing_and_good_ones_do(lab: Lab, name: str) -> None:
    """E9: two readings are refused after the work has ended; then the statistics heal and the claim ends by them."""
    falsehood, reason = BAD_STATISTICS[name]
    async with governed(lab, poll_s=0.05, poll_timeout_ms=200) as bench:
        assert bench.proxy is not None
        assert await bench.call() == 200
        sent = await bench.executing(bench.submit(100))
        bench.proxy.falsehood = falsehood
        await bench.break_off(sent)
        await lab.wait_ended([sent.id])
        await bench.refusals(2)
        assert reason in str(bench.statistics.last_reading_error)
        assert bench.logged("reading_failed") == 1, "said once, however often it fails"
        assert bench.states == {ClaimState.RECONCILING: 1}
        bench.proxy.falsehood = None
        await bench.freed(sent)
        assert bench.proof(sent) == "quiet"
        assert bench.statistics.last_reading_error is None


async def test_without_any_reading_the_claim_awaits_a_baseline(lab: Lab) -> None:
    """E4: the statistics were never good. The call goes out all the same; broken, it awaits a baseline, becomes
    provable by the first good reading, and ends after its work."""
    async with governed(lab) as bench:
        assert bench.proxy is not None
        bench.proxy.falsehood = falsehoods.body(lambda _right: b"{}")
        sent = await bench.broken(2_500)
        assert bench.states == {ClaimState.AWAITING_BASELINE: 1}
        await bench.refusals(2)
        assert bench.statistics.ledger_totals.baseline_missing == 1
        bench.proxy.falsehood = None
        await bench.becomes(sent, ClaimState.RECONCILING)
        await bench.freed_by_the_end(sent)
