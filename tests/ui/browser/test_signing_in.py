"""Who may look, and where the token goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.ui.browser.stage import ADMIN

if TYPE_CHECKING:
    from playwright.sync_api import Route

    from tests.ui.browser.stage import Stage, Visitor

KEPT = "JSON.stringify({session: {...sessionStorage}, local: {...localStorage}, cookies: document.cookie})"


def test_a_wrong_token_shows_nothing_and_says_so(visitor: Visitor) -> None:
    visitor.look()
    expect(visitor.page.get_by_label("Token", exact=True)).to_be_focused()
    for wrong, why in (("no-operators-secret", "does not know this token"), ("with a space", "neither spaces")):
        visitor.page.get_by_label("Token", exact=True).fill(wrong)
        visitor.page.keyboard.press("Enter")
        expect(visitor.page.get_by_role("alert")).to_contain_text(why)
    expect(visitor.page.locator("article")).to_have_count(0)
    assert wrong not in visitor.page.evaluate(KEPT)


def test_the_token_is_in_a_header_of_admin_requests_and_nowhere_else(visitor: Visitor, stage: Stage) -> None:
    """Not in an address, not in the page; nobody but the governor is asked anything."""
    visitor.sign_in()
    visitor.agrees(stage)
    assert len(visitor.requests) > 10
    for _, url, headers in visitor.requests:
        assert url.startswith(f"{stage.url}/"), "nobody else is asked"
        assert ADMIN not in url
        is_admin = url.startswith(f"{stage.url}/admin/")
        assert headers.get("authorization") == (f"Bearer {ADMIN}" if is_admin else None)
    assert ADMIN not in visitor.page.content()
    assert visitor.page.input_value("#token") == ""
    assert visitor.page.url == f"{stage.url}/ui"


def test_the_token_outlives_a_reload_only_if_the_operator_says_so(visitor: Visitor) -> None:
    visitor.sign_in()
    visitor.page.reload()
    visitor.is_connected("live")
    assert ADMIN in visitor.page.evaluate("JSON.stringify({...sessionStorage})")
    visitor.page.get_by_role("button", name="Sign out").click()
    visitor.is_connected("closed")
    expect(visitor.page.locator("article")).to_have_count(0)
    assert ADMIN not in visitor.page.evaluate(KEPT)
    visitor.page.get_by_label("Keep it until this tab is closed").uncheck()
    visitor.page.get_by_label("Token", exact=True).fill(ADMIN)
    visitor.page.keyboard.press("Enter")
    visitor.is_connected("live")
    expect(visitor.page.locator("article")).to_have_count(3)
    assert ADMIN not in visitor.page.evaluate(KEPT)
    visitor.page.reload()
    visitor.is_connected("closed")
    expect(visitor.page.get_by_label("Token", exact=True)).to_be_visible()


def test_the_page_works_below_any_prefix_of_a_proxy(visitor: Visitor, stage: Stage) -> None:
    """Everything that it asks for is relative to where it is. This proxy passes on no stream, so the page asks."""
    prefix = f"{stage.url}/behind/a/proxy"

    def passed_on(route: Route) -> None:
        path = route.request.url.removeprefix(prefix)
        if path == "/admin/events":
            route.fulfill(status=429, json={"error": "no streams here", "code": "subscriber_limit_exceeded"})
        else:
            route.fulfill(response=route.fetch(url=stage.url + path, max_redirects=0))

    visitor.page.route(f"{prefix}/**", passed_on)
    visitor.page.goto(f"{prefix}/ui")
    visitor.page.get_by_label("Token", exact=True).fill(ADMIN)
    visitor.page.keyboard.press("Enter")
    visitor.is_connected("polled")
    visitor.agrees(stage)
    assert all(url.startswith(prefix) for _, url, _ in visitor.requests)
    visitor.page.unroute_all(behavior="ignoreErrors")


def test_the_folder_leads_to_the_page(visitor: Visitor) -> None:
    visitor.page.goto(f"{visitor.url}/ui/")
    assert visitor.page.url == f"{visitor.url}/ui"
    expect(visitor.page.get_by_label("Token", exact=True)).to_be_visible()
