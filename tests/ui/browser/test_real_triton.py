"""The page against a real Triton: what it shows is what the admin API tells, whatever happens to the backend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from playwright.sync_api import expect

from governor.demo.install import install, why_not_supported
from tests.e2e.conftest import make_triton
from tests.ui.browser.stage import WHY, staged, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.ui.browser.backstage import Backstage

pytestmark = pytest.mark.real_triton
ROOT = Path(__file__).parents[3]
SETTLED_MS = 3_000


def test_calls_break_triton_dies_and_comes_back_and_reloads(
    browser: Browser, backstage: Backstage, tmp_path: Path
) -> None:
    reason = why_not_supported()
    if reason is not None:
        pytest.skip(reason)
    triton = make_triton(backstage.run(install, ROOT), tmp_path)
    backstage.run(triton.start)
    try:
        proxy = backstage.proxy(int(triton.url.rpartition(":")[2]))
        with (
            staged(backstage, proxy, tmp_path, triton.url) as stage,
            visiting(browser, stage.url, tmp_path) as visitor,
        ):
            visitor.sign_in()
            events, card = visitor.page.locator("#events li"), visitor.card("slow")
            visitor.agrees(stage)

            stage.call("slow", "600 seconds")
            stage.wait_states("slow", running=1)
            visitor.agrees(stage)
            stage.call("slow", "600 seconds", give_up_s=0.5)
            stage.wait_states("slow", running=1, timed_out=1)
            first = visitor.agrees(stage)["identities"][1]
            assert (first["epoch"], first["credits"]["free"]) == (1, 1)

            stage.break_calls(2)
            stage.wait_states("slow", reconciling=2)
            assert visitor.agrees(stage)["identities"][1]["polling"]
            expect(events.first).to_contain_text("triton:slow: the connection of a call broke")

            backstage.run(triton.kill)
            stage.wait_for("slow", lambda told: not told["usable"] and told["readingError"])
            dead = visitor.agrees(stage)["identities"][1]
            assert dead["states"]["reconciling"] == 2
            expect(card.locator(".badges")).to_contain_text("not usable")
            expect(visitor.page.locator("#problems")).to_have_attribute("data-count", "3")

            backstage.run(triton.start)
            stage.wait_states("slow")
            stage.wait_for("slow", lambda told: told["usable"])
            back = visitor.agrees(stage)["identities"][1]
            assert back["epoch"] == 2
            assert back["boot"] != first["boot"]
            assert back["totals"]["provenProcessEnded"] == 2
            expect(events.filter(has_text="proven ended: their process has ended")).to_have_count(1)
            expect(card.locator(".epochs li").first).to_contain_text("Epoch 2 now · restart at")

            stage.call("slow", "0.1 seconds")
            stage.wait_for("slow", lambda told: told["totals"]["answered"] == 1)
            stage.break_one("slow")
            # Readings have to show that the call is in the load that is about to go (E7), not only sent to it.
            stage.wait_for("slow", lambda told: told["claims"][0]["deliveredAgeMs"] > SETTLED_MS)
            assert visitor.agrees(stage)["identities"][1]["states"]["reconciling"] == 1
            reload_model(triton.url, "slow")
            stage.wait_states("slow", quarantined=1)
            stuck = visitor.agrees(stage)["identities"][1]
            assert (stuck["epoch"], stuck["boot"]) == (3, back["boot"])
            expect(card.locator(".broken")).to_contain_text("Unprovable: the model was reloaded")
            expect(card.locator(".epochs li").first).to_contain_text("Epoch 3 now · reload at")

            card.get_by_role("button", name="Force restart…").click()
            dialog = visitor.page.get_by_role("dialog")
            expect(dialog).to_contain_text(f"claim {stuck['claims'][0]['id']}, quarantined for")
            dialog.get_by_label("Reason").fill(WHY)
            visitor.page.keyboard.press("Enter")
            expect(dialog).to_contain_text("Epoch 3 → 4.")
            visitor.page.keyboard.press("Escape")
            done = visitor.agrees(stage)["identities"][1]
            assert (done["credits"]["free"], done["totals"]["releasedUnproven"]) == (3, 1)
            expect(visitor.page.locator("#problems")).to_have_attribute("data-count", "0")
    finally:
        triton.end_now()


def reload_model(url: str, model: str) -> None:
    """Unloads and loads it; what executes goes on."""
    for act in ("unload", "load"):
        answer = httpx.post(f"{url}/v2/repository/models/{model}/{act}", json={}, timeout=30)
        assert answer.status_code == 200, answer.text
