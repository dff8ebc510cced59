"""Names that somebody else chose, and more of everything than fits on a page."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.ui.browser.stage import ADMIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Route

    from tests.ui.browser.stage import Stage, Visitor

REORDERED = "\u202egnp.exe\u2066\u200f"
NAMES = [
    "<img src=x onerror=\"document.title='owned'\">",
    "</bdi></h3><script>document.title='owned'</script>",
    "'\"`${alert(1)}{{7*7}}",
    "javascript:alert(1)",
    REORDERED,
    "e\u0301" * 400,
    "🂡🧿 " * 20,
    "x" + "🧿" * 150,
    "%00%0a../../admin",
    "__proto__",
    "constructor",
]
ELEMENTS_MAX = 25_000
DRAW_MS_MAX = 3_000


class Pretended:
    """Answers in the governor's stead, in its own shapes."""

    def __init__(self, visitor: Visitor, stage: Stage) -> None:
        stage.break_one("slow")
        self.model = stage.wait_states("slow", reconciling=1)
        self.state = stage.admin()
        stage.clear()
        self.pages: dict[str | None, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.streams = 0
        visitor.page.route("**/admin/**", self.answer)

    def answer(self, route: Route) -> None:
        path = route.request.url.split("/admin/", 1)[1]
        if path == "events":
            frames = f"event: recent\ndata: {json.dumps({'events': self.events})}\n\n"
            frames += f"event: state\ndata: {json.dumps(self.state)}\n\n"
            self.streams += 1
            if self.streams > 1:  # so that the page stays up: it asks instead
                route.fulfill(status=429, json={"error": "full", "code": "subscriber_limit_exceeded"})
            else:
                route.fulfill(status=200, content_type="text/event-stream", body=frames)
        elif path.startswith("audit"):
            route.fulfill(json={"entries": []})
        elif path.startswith("identities?after="):
            route.fulfill(json=self.pages[path.partition("=")[2]])
        else:
            route.fulfill(json=self.state)

    def identity(self, name: str, **changes: Any) -> dict[str, Any]:
        """Like one that there is, by another name."""
        made: dict[str, Any] = copy.deepcopy(self.model)
        made.update({"id": f"triton:{name}", "model": name, "names": [name], "backend": name, **changes})
        return made


@pytest.fixture
def pretended(visitor: Visitor, stage: Stage) -> Iterator[Pretended]:
    yield Pretended(visitor, stage)
    visitor.page.unroute_all(behavior="ignoreErrors")


def enter(visitor: Visitor) -> None:
    visitor.look()
    visitor.page.get_by_label("Token", exact=True).fill(ADMIN)
    visitor.page.keyboard.press("Enter")
    visitor.is_connected("polled")


def test_names_are_text_wherever_they_come_from(visitor: Visitor, pretended: Pretended) -> None:
    """Models, sessions, callers, reasons, errors, boot identities, keys: none becomes markup or runs."""
    identities = []
    for number, name in enumerate(NAMES):
        made = pretended.identity(name, problem=name, readingError=name, boot=name, epoch=number + 2)
        made["claims"][0].update(
            serves={"sessionId": name, "promptId": name}, broke=name, quarantined=name, boot=name, kind=name
        )
        made["queue"].update(waiting=1, callersTotal=2, oldestAgeMs=1)
        made["queue"]["callers"] = [
            {"caller": name, "waiting": 1, "oldestAgeMs": 1},
            {"sessionId": name, "waiting": 1, "oldestAgeMs": 1},
        ]
        made["sessions"].update(queuesTotal=1, queues=[{"sessionId": name, "pendingPrompts": 2, "active": True}])
        identities.append(made)
    pretended.state.update(identities=identities, identitiesTotal=len(identities))
    kinds = ["call_broken", "claim_released", "reloaded", "epoch_began", "claims_proven", NAMES[0], "drained"]
    pretended.events = [
        {
            "id": number + 1, "atMs": pretended.state["atMs"], "lastAtMs": 1, "count": 3, "kind": kind,
            "identity": f"triton:{name}", "code": name, "reason": name, "changes": [name], "claims": [name],
            "cause": name, "proof": name, "epoch": 2, "boot": name,
        }
        for number, (kind, name) in enumerate((kind, name) for kind in kinds for name in NAMES)
    ]  # fmt: skip
    enter(visitor)
    page = visitor.page
    expect(page.locator("#cards > article")).to_have_count(len(NAMES))
    for summary in page.locator("summary").all():
        summary.click()
    assert "owned" not in page.title()
    assert page.locator("#live img, #live script, #live iframe, #live a:not([href^='#'])").count() == 0
    shown = page.locator("#cards h3").all_text_contents()
    at = NAMES.index(REORDERED)
    assert shown.pop(at) == "⟨U+202E⟩gnp.exe⟨U+2066⟩⟨U+200F⟩", "no name passes for another"
    others = [name for name in NAMES if name != REORDERED]
    assert [(one[:90], len(one) <= 200, "\ufffd" in one) for one in shown] == [
        (name[:90], True, False) for name in others
    ]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#cards article").first.get_by_role("button", name="Force restart…").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.locator("dialog img, dialog script").count() == 0


def test_ten_thousand_claims_are_counted_and_not_all_shown(visitor: Visitor, pretended: Pretended) -> None:
    states = {"running": 9000, "timed_out": 500, "reconciling": 400, "awaiting_baseline": 0, "quarantined": 100}
    claim = pretended.model["claims"][0]
    claims = [{**claim, "id": number, "ageMs": number} for number in range(1, 65)]
    made = pretended.identity("many", states=states, claims=claims, claimsTotal=10_000)
    made["credits"] = {"slots": 12_000, "free": 2_000, "held": 10_000}
    pretended.state.update(identities=[made], identitiesTotal=1)
    enter(visitor)
    card = visitor.card("many")
    expect(card.locator(":scope > .cells > li")).to_have_count(48)
    expect(card).to_contain_text("and 9,952 held, 2,000 free more")
    expect(card).to_contain_text(
        "12,000 slots: 2,000 free, 9,000 running, 500 timed out, 400 reconciling, 100 quarantined"
    )
    expect(card.locator(".broken .claims > li")).to_have_count(6)
    card.locator(".broken").get_by_role("button", name="Show 58 more").click()
    expect(card.locator(".broken .claims > li")).to_have_count(64)
    expect(card).to_contain_text("and 436 more, which are not listed here")


def test_hundreds_of_identities_do_not_freeze_the_page(visitor: Visitor, pretended: Pretended) -> None:
    """A page of a hundred, each with all the claims that are told; the others are a button away."""
    claim = pretended.model["claims"][0]
    identities = []
    for number in range(250):
        claims = [{**claim, "id": each, "ageMs": each * 100} for each in range(1, 65)]
        made = pretended.identity(f"model-{number:03}", claims=claims, claimsTotal=64, problem="all slots are held")
        made["credits"] = {"slots": 64, "free": 0, "held": 64}
        made["states"]["reconciling"] = 64
        identities.append(made)
    whole = {**pretended.state, "identitiesTotal": 250}
    marks = [identities[99]["id"], identities[199]["id"]]
    pretended.state.update(whole, identities=identities[:100], nextAfter=marks[0])
    pretended.pages = {
        marks[0].replace(":", "%3A"): {**whole, "identities": identities[100:200], "nextAfter": marks[1]},
        marks[1].replace(":", "%3A"): {**whole, "identities": identities[200:]},
    }
    enter(visitor)
    page = visitor.page
    cards = page.locator("#cards > article")
    expect(cards).to_have_count(100)
    assert page.evaluate("document.querySelectorAll('*').length") < ELEMENTS_MAX
    expect(page.locator("#problems li").last).to_have_text("and 88 more identities")
    for claims in pretended.state["identities"]:
        claims["claims"] = [{**each, "state": "quarantined"} for each in claims["claims"]]
    slowest = page.evaluate(
        """async () => { let slowest = 0, last = performance.now();
          for (let i = 0; i < 120; i++) { await new Promise(r => setTimeout(r, 20)); const now = performance.now();
            slowest = Math.max(slowest, now - last); last = now; } return slowest; }"""
    )
    assert slowest < DRAW_MS_MAX
    expect(cards.first.locator(":scope > .cells > li").first).to_have_attribute("data-state", "quarantined")
    pager = page.get_by_role("navigation", name="Pages of identities")
    expect(pager).to_contain_text("1 to 100 of 250 identities")
    pager.get_by_role("button", name="Next page").click()
    expect(cards.first).to_have_attribute("data-id", "triton:model-100")
    pager.get_by_role("button", name="Next page").click()
    expect(cards).to_have_count(50)
    expect(pager).to_contain_text("201 to 250 of 250 identities")
    expect(pager.get_by_role("button", name="Next page")).to_be_disabled()
    pager.get_by_role("button", name="First page").click()
    expect(cards.first).to_have_attribute("data-id", "triton:model-000")


PARSED = """async (pieces) => {
  const { SseParser } = await import("/ui/sse.js");
  const frames = [];
  const parser = new SseParser((frame) => frames.push(frame));
  for (const piece of pieces) parser.push(piece);
  return frames;
}"""


def test_the_stream_is_cut_into_frames_wherever_it_is_cut_on_its_way(visitor: Visitor) -> None:
    visitor.look()
    text = (
        'retry: 3000\n\n: heartbeat\n\nid: 7\nevent: recent\ndata: {"a":\ndata: 1}\n\r\n'
        "event:state\r\ndata:x\r\n\r\ndata\n\nid: 8\n\nevent: half\ndata: y"
    )
    frames = [
        {"event": "recent", "data": '{"a":\n1}', "id": "7"},
        {"event": "state", "data": "x", "id": None},
        {"event": "message", "data": "", "id": None},
    ]
    for size in (1, 2, 3, 7, len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert visitor.page.evaluate(PARSED, pieces) == frames, size
