"""What operators do on the page, what it tells them before, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.ui.browser.stage import WHY, config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ui.browser.stage import Stage, Visitor


@pytest.fixture(autouse=True)
def cleared(stage: Stage) -> Iterator[None]:
    yield
    stage.clear()


def newest_act(stage: Stage) -> dict[str, object]:
    """What the audit log has of the last one."""
    newest: dict[str, object] = stage.admin("audit?size=1")["entries"][0]
    return newest


def test_a_forced_restart_says_what_it_forgets_and_tells_what_it_forgot(visitor: Visitor, stage: Stage) -> None:
    """E11: from the live state, with the epoch that was shown, for a reason."""
    stage.break_one("slow")
    before = stage.wait_states("slow", reconciling=1)
    visitor.sign_in()
    visitor.agrees(stage)
    visitor.card("slow").get_by_role("button", name="Force restart…").click()
    dialog = visitor.page.get_by_role("dialog", name="Force a restart")
    claim = before["claims"][0]
    expect(dialog).to_contain_text("Will be forgotten: 1 claim.")
    expect(dialog).to_contain_text(f"claim {claim['id']}, reconciling for")
    expect(dialog.get_by_label("Reason")).to_be_focused()
    confirm = dialog.get_by_role("button", name="Forget 1 claim and restart")
    confirm.click()
    assert stage.identity("slow")["claims"], "without a reason nothing is done"
    dialog.get_by_label("Reason").fill("   ")
    confirm.click()
    assert stage.identity("slow")["claims"]
    dialog.get_by_label("Reason").fill(WHY)
    dialog.get_by_label("Who you are").fill("ada")
    confirm.click()
    done = visitor.page.get_by_role("dialog", name="Done")
    expect(done).to_contain_text(f"Epoch {before['epoch']} → {before['epoch'] + 1}.")
    expect(done).to_contain_text("Forgotten without proof: 1 claim.")
    expect(done.get_by_role("heading", name="Done")).to_be_focused()
    done.get_by_role("button", name="Close").click()
    expect(visitor.card("slow").get_by_role("button", name="Force restart…")).to_be_focused()
    act = newest_act(stage)
    assert (act["act"], act["reason"], act["operator"]) == ("restart", WHY, "ada")
    assert act["asked"] == {"drainMs": 0, "expectedEpochs": {"triton/slow": before["epoch"]}}
    visitor.agrees(stage)
    visitor.page.locator("#audit summary").click()
    expect(visitor.page.locator("#audit-entries li").first).to_contain_text(f"ada, admin token from 127.0.0.1: {WHY}")


def test_a_plan_that_is_out_of_date_says_so_and_is_refused(visitor: Visitor, stage: Stage) -> None:
    """The epoch that was shown guards the act; nothing is forgotten that the operator did not see."""
    stage.break_one("slow")
    before = stage.wait_states("slow", reconciling=1)
    visitor.sign_in()
    visitor.card("slow").get_by_role("button", name=f"Release claim {before['claims'][0]['id']}…").click()
    dialog = visitor.page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill(WHY)
    stage.admin("restart", {"identity": "triton:slow", "reason": "somebody else"})
    expect(dialog).to_contain_text(f"is {before['epoch'] + 1} now; this act is for epoch {before['epoch']}")
    dialog.get_by_role("button", name=f"Forget claim {before['claims'][0]['id']}").click()
    expect(dialog).to_contain_text("(epoch_changed)")
    dialog.get_by_role("button", name="Look again").click()
    expect(dialog).to_contain_text("It is not broken any more.")
    visitor.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_one_claim_is_released_and_the_others_stay(visitor: Visitor, stage: Stage) -> None:
    for _ in range(2):
        stage.break_one("slow")
    first, second = stage.wait_states("slow", reconciling=2)["claims"]
    visitor.sign_in()
    visitor.card("slow").get_by_role("button", name=f"Release claim {first['id']}…").click()
    dialog = visitor.page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"claim {first['id']}, reconciling")
    expect(dialog).not_to_contain_text(f"claim {second['id']}")
    dialog.get_by_label("Reason").fill(WHY)
    visitor.page.keyboard.press("Enter")
    expect(dialog).to_contain_text(f"Forgotten without proof: claim {first['id']}")
    expect(visitor.card("slow").locator(".broken .claims > li")).to_have_count(1)
    visitor.page.keyboard.press("Escape")
    expect(visitor.page.locator("#main")).to_be_focused()  # the button that it began at is gone
    assert [claim["id"] for claim in stage.wait_states("slow", reconciling=1)["claims"]] == [second["id"]]
    visitor.agrees(stage)


def test_a_restart_that_waits_can_be_given_up(visitor: Visitor, stage: Stage) -> None:
    """While it waits no slot is handed out; given up, nothing is forgotten."""
    stage.call("slow", "600 seconds")
    stage.wait_states("slow", running=1)
    stage.break_calls()
    stage.call("slow", "600 seconds")
    before = stage.wait_states("slow", running=1, reconciling=1)
    visitor.sign_in()
    visitor.card("slow").get_by_role("button", name="Force restart…").click()
    dialog = visitor.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Stays: 1 running")
    dialog.get_by_label("Reason").fill(WHY)
    dialog.get_by_label("Seconds to wait first").fill("60")
    visitor.page.keyboard.press("Enter")
    expect(visitor.card("slow").locator(".badges")).to_contain_text("hands out no slots")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_contain_text("Given up.")
    stage.wait_for("slow", lambda told: told["handsOutCredits"])
    assert stage.wait_states("slow", running=1, reconciling=1)["epoch"] == before["epoch"]
    assert newest_act(stage)["result"] == "interrupted"


def test_draining_and_its_end(visitor: Visitor, stage: Stage) -> None:
    visitor.sign_in()
    for button, confirm, draining in (
        ("Drain…", "Accept nothing new", True),
        ("Undrain…", "Accept new work", False),
    ):
        visitor.page.get_by_role("button", name=button, exact=True).click()
        dialog = visitor.page.get_by_role("dialog")
        expect(dialog).to_contain_text("Nothing is forgotten.")
        dialog.get_by_label("Reason").fill(WHY)
        dialog.get_by_role("button", name=confirm).click()
        expect(dialog).to_contain_text("Going on: 0 sessions")
        visitor.page.keyboard.press("Escape")
        assert visitor.agrees(stage)["draining"] is draining
        expect(visitor.page.locator("#mode")).to_be_visible(visible=draining)


def test_a_reload_shows_its_changes_before_and_after(visitor: Visitor, stage: Stage) -> None:
    """And a configuration that cannot work with every mistake; nothing has changed then."""
    file = stage.folder / "governor.toml"
    right = file.read_text()
    reload = visitor.page.get_by_role("button", name="Reload configuration…")
    dialog = visitor.page.get_by_role("dialog")
    try:
        visitor.sign_in()
        reload.click()
        expect(dialog).to_contain_text("Nothing would change")
        visitor.page.keyboard.press("Escape")
        file.write_text(right.replace("slots = 3", "slots = 5"))
        reload.click()
        expect(dialog).to_contain_text("models.slow.slots: 3 → 5")
        assert stage.identity("slow")["credits"]["slots"] == 3
        dialog.get_by_label("Reason").fill(WHY)
        dialog.get_by_role("button", name="Put it in force").click()
        expect(dialog).to_contain_text("In force now:")
        visitor.page.keyboard.press("Escape")
        assert visitor.agrees(stage)["identities"][1]["credits"]["slots"] == 5
        expect(visitor.page.locator("#events li").first).to_contain_text("models.slow.slots")
        file.write_text(right.replace("slots = 3", "slots = -3"))
        reload.click()
        expect(dialog).to_contain_text("(config_invalid)")
        expect(dialog.locator("#dialog-error li").first).to_contain_text("-3")
        visitor.page.keyboard.press("Escape")
    finally:
        file.write_text(right)
        stage.admin("reload", {})


def test_all_are_restarted_each_with_its_epoch(visitor: Visitor, stage: Stage) -> None:
    stage.break_one("slow")
    stage.wait_states("slow", reconciling=1)
    before = {each["id"]: each["epoch"] for each in stage.admin()["identities"]}
    visitor.sign_in()
    visitor.page.get_by_role("button", name="Restart all…").click()
    dialog = visitor.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Will be forgotten: 1 claim.")
    expect(dialog).to_contain_text("triton:slow: 1 broken claim")
    dialog.get_by_label("Reason").fill(WHY)
    dialog.get_by_role("button", name="Forget 1 claim and restart all").click()
    expect(dialog.locator("[data-restarted]")).to_have_count(3)
    act = newest_act(stage)
    asked = act["asked"]
    assert isinstance(asked, dict)
    assert asked["expectedEpochs"] == {name.replace(":", "/"): epoch for name, epoch in before.items()}
    visitor.page.keyboard.press("Escape")
    visitor.agrees(stage)


def test_the_configuration_of_these_tests_has_what_they_change() -> None:
    assert config(1, "http://x").count("slots = 3") == 1
