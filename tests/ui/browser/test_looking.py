"""For everybody: on a phone, in the dark, by keyboard alone, with a screen reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.ui.browser.stage import ADMIN, visiting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tests.ui.browser.stage import Stage, Visitor

LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True},
}
PHONE_PX = 360
TOUCH_PX = 24


@pytest.fixture(scope="module")
def busy(stage: Stage) -> Iterator[Stage]:
    """A governor that has something to show: every state that there is, and a queue."""
    stage.break_one("slow")
    stage.wait_states("slow", reconciling=1)
    stage.call("slow", "600 seconds")
    stage.wait_states("slow", running=1, reconciling=1)
    stage.call("slow", "600 seconds", give_up_s=0.3)
    stage.wait_states("slow", running=1, timed_out=1, reconciling=1)
    stage.call("slow", "1 second")
    stage.wait_for("slow", lambda told: told["queue"]["waiting"] == 1)
    yield stage
    stage.clear()


def violations(page: Page) -> list[str]:
    """What axe-core has against the page as it is."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['html'][:200]} {node['failureSummary']}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing(look: str, browser: Browser, busy: Stage, tmp_path: Path) -> None:
    """Contrast, names, roles, order of headings; signed out, live, in a dialog."""
    with visiting(browser, busy.url, tmp_path, **LOOKS[look]) as visitor:
        visitor.look()
        expect(visitor.page.get_by_label("Token", exact=True)).to_be_visible()
        assert violations(visitor.page) == []
        visitor.sign_in()
        visitor.agrees(busy)
        for summary in visitor.page.locator("summary").all():
            summary.click()
        visitor.page.locator("#legend").evaluate("legend => { legend.open = true; }")
        assert violations(visitor.page) == []
        if look == "phone":
            assert visitor.page.evaluate("document.documentElement.scrollWidth") == PHONE_PX
            small = (
                "buttons => buttons.filter(b => b.checkVisibility() && b.getBoundingClientRect().height < %d).length"
            )
            assert visitor.page.locator("button, summary, select").evaluate_all(small % TOUCH_PX) == 0
        visitor.card("slow").get_by_role("button", name="Force restart…").click()
        expect(visitor.page.get_by_label("Reason")).to_be_focused()
        assert violations(visitor.page) == []
        box = visitor.page.get_by_role("dialog").bounding_box()
        assert box is not None
        assert box["width"] <= PHONE_PX or look != "phone"


def test_states_are_told_without_colour(browser: Browser, busy: Stage, tmp_path: Path) -> None:
    """A letter for the eye, a word for the ear, another shape for each; the legend has them all."""
    with visiting(browser, busy.url, tmp_path) as visitor:
        visitor.sign_in()
        visitor.agrees(busy)
        cells = visitor.card("slow").locator(":scope > .cells > li")
        words = [text.split(" for ")[0].split(" ", 2)[2] for text in cells.locator(".word").all_text_contents()]
        assert words == ["reconciling", "running", "timed out"]
        assert cells.locator(".letter").all_text_contents() == ["C", "R", "T"]
        looks = visitor.page.locator("#legend-cells .cell").evaluate_all(
            """cells => cells.map(cell => { const style = getComputedStyle(cell); return [style.borderTopStyle,
               style.borderTopWidth, style.borderRadius, style.backgroundImage, cell.textContent].join(" "); })"""
        )
        assert len(looks) == len(set(looks)) == 6


def test_everything_can_be_done_by_keyboard(visitor: Visitor, busy: Stage) -> None:
    """Signing in, reading on, an act from its button to its report, and back to where one was."""
    page = visitor.page
    visitor.look()
    expect(page.get_by_label("Token", exact=True)).to_be_focused()
    page.keyboard.type(ADMIN)
    page.keyboard.press("Enter")
    visitor.is_connected("live")
    visitor.agrees(busy)
    focused = (
        "(() => { const e = document.activeElement; return e.id || e.getAttribute('aria-label') || e.textContent; })()"
    )
    expect(page.locator("#main")).to_be_focused()  # not nowhere, when the form is gone
    page.reload()
    visitor.agrees(busy)
    stops = []
    for _ in range(40):
        page.keyboard.press("Tab")
        stops.append(page.evaluate(focused))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", f"where the focus is must be seen: {stops[-1]}"
        if stops[-1].startswith("Release claim"):
            break
    assert stops[0] == "Skip to the content"
    expected = ["act-drain", "act-reload", "act-restart", "sign-out", "filter", "only-problems"]
    assert [stop for stop in stops if stop in expected] == expected
    page.keyboard.press("Enter")
    expect(page.get_by_label("Reason")).to_be_focused()
    inside = set()
    for _ in range(8):
        page.keyboard.press("Tab")
        inside.add(
            page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
        )
    assert inside == {True}, "the focus does not leave the dialog"
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert page.evaluate(focused) == stops[-1]


def test_landmarks_and_what_is_announced(visitor: Visitor, busy: Stage) -> None:
    """Politely and seldom: the connection, and what is wrong; no age and no number that changes each second."""
    visitor.sign_in()
    visitor.agrees(busy)
    page = visitor.page
    for role in ("banner", "main"):
        expect(page.get_by_role(role)).to_have_count(1)
    for name in ("Now", "Identities", "What happened lately"):
        expect(page.get_by_role("region", name=name)).to_have_count(1)
    expect(page.get_by_role("article", name="slow")).to_have_count(1)
    live = page.locator("[role=status], [role=alert], [aria-live]")
    assert live.locator(".age").count() == 0
    page.evaluate(
        """() => { window.told = []; for (const each of document.querySelectorAll("[role=status], [role=alert]"))
            new MutationObserver(() => window.told.push(each.id)).observe(each, {childList: true, characterData: true,
            subtree: true}); }"""
    )
    page.wait_for_timeout(2500)
    assert page.evaluate("window.told.filter(id => id !== 'news')") == []


def test_nothing_moves_for_whom_it_disturbs(browser: Browser, busy: Stage, tmp_path: Path) -> None:
    for motion, behaviour in (("reduce", "auto"), ("no-preference", "smooth")):
        with visiting(browser, busy.url, tmp_path, reduced_motion=motion) as visitor:
            visitor.sign_in()
            assert visitor.page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == behaviour
            moving = (
                "[...document.querySelectorAll('*')].filter(e => getComputedStyle(e).animationName !== 'none').length"
            )
            assert visitor.page.evaluate(moving) == 0


def test_the_list_can_be_narrowed(visitor: Visitor, busy: Stage) -> None:
    visitor.sign_in()
    visitor.agrees(busy)
    cards = visitor.page.locator("#cards > article")
    visitor.page.get_by_label("Show part of a name").or_(visitor.page.locator("#filter")).first.fill("STORY")
    expect(cards).to_have_count(1)
    expect(cards).to_have_attribute("data-id", "triton:storyteller")
    visitor.page.locator("#filter").fill("no such thing")
    expect(visitor.page.get_by_text("No identity matches.")).to_be_visible()
    visitor.page.locator("#filter").fill("")
    expect(cards).to_have_count(3)
    visitor.agrees(busy)


def test_what_is_wrong_leads_to_the_card(visitor: Visitor, busy: Stage) -> None:
    """The sentences at the top are links, and the focus goes along."""
    busy.admin("drain", {})
    file = busy.folder / "governor.toml"
    right = file.read_text()
    try:
        file.write_text(right.replace('name = "sentiment"', 'name = "sentiment"\ntriton_model = "no-such-model"'))
        busy.admin("reload", {})
        busy.wait_for("no-such-model", lambda told: not told["usable"])
        visitor.sign_in()
        told = visitor.agrees(busy)
        [problem] = [each["problem"] for each in told["identities"] if each["problem"]]
        expect(visitor.page.locator("#problems li")).to_have_text(f"triton:no-such-model: {problem}")
        expect(visitor.page).to_have_title("(1) Governor")
        expect(visitor.page.locator("#news")).to_have_text(
            "Something is wrong with triton:no-such-model.", timeout=9000
        )
        visitor.page.get_by_role("link", name="triton:no-such-model").click()
        expect(visitor.card("no-such-model")).to_be_focused()
        visitor.page.locator("#only-problems").check()
        expect(visitor.page.locator("#cards > article")).to_have_count(1)
        lately = visitor.page.locator("#events li")
        visitor.page.locator("#kinds").select_option("acts")
        expect(lately.first).to_contain_text("the configuration was reloaded")
        expect(lately.filter(has_text="broke")).to_have_count(0)
    finally:
        file.write_text(right)
        busy.admin("reload", {})
        busy.admin("undrain", {})
