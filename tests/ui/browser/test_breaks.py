"""When the governor cannot be reached: it is seen that what is shown is old, and the page comes back by itself."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.ui.browser.stage import ADMIN

if TYPE_CHECKING:
    from tests.ui.browser.stage import Stage, Visitor


def test_a_governor_that_dies_and_comes_back(visitor: Visitor, stage: Stage) -> None:
    """Ages stand still, the banner says since when; the new process' events replace the old one's."""
    stage.break_one("slow")
    stage.wait_states("slow", reconciling=1)
    visitor.sign_in()
    visitor.agrees(stage)
    expect(visitor.page.locator("#events li").first).to_contain_text("the connection of a call broke")
    stage.end()
    visitor.is_connected("lost")
    banner = visitor.page.locator("#banner")
    expect(banner).to_contain_text("The governor could not be reached. What is shown is how it was at")
    expect(visitor.page).to_have_title("Not live · Governor")
    age = visitor.card("slow").locator(".cell[data-claim] .age").first
    before = age.text_content()
    visitor.page.wait_for_timeout(2100)
    assert age.text_content() == before
    expect(banner).to_contain_text("Next attempt in")
    visitor.card("slow").get_by_role("button", name="Force restart…").click()
    dialog = visitor.page.get_by_role("dialog", name="This cannot be done now")
    expect(dialog).to_contain_text("could not be reached")
    dialog.get_by_role("button", name="Close").click()
    stage.start_again()
    if banner.is_visible():
        visitor.page.get_by_role("button", name="Try now").click()
    visitor.is_connected("live")
    expect(banner).to_be_hidden()
    assert all(not each["claims"] for each in visitor.agrees(stage)["identities"])
    expect(visitor.page.locator("#events li")).to_have_count(0)


def test_a_governor_that_says_nothing_any_more_is_noticed(visitor: Visitor, stage: Stage) -> None:
    """A connection can be open and dead: after 20 s of silence the page asks, and gives up after five more."""
    visitor.page.clock.install()
    visitor.sign_in()
    visitor.agrees(stage)
    os.kill(stage.process.pid, signal.SIGSTOP)
    try:
        visitor.page.wait_for_timeout(500)  # what was on its way is there
        visitor.page.clock.fast_forward(21_000)
        visitor.is_connected("lost")
        expect(visitor.page.locator("#banner")).to_contain_text("did not answer in time")
    finally:
        os.kill(stage.process.pid, signal.SIGCONT)
    visitor.page.clock.fast_forward(20_000)
    visitor.is_connected("live")


def test_where_no_stream_is_to_be_had_it_asks_instead(visitor: Visitor, stage: Stage) -> None:
    host, port = stage.url.removeprefix("http://").split(":")
    with ExitStack() as streams:
        for _ in range(16):
            raw = streams.enter_context(socket.create_connection((host, int(port))))
            raw.sendall(
                f"GET /admin/events HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {ADMIN}\r\n\r\n".encode()
            )
            assert raw.recv(100).startswith(b"HTTP/1.1 200")
        visitor.look()
        visitor.page.get_by_label("Token", exact=True).fill(ADMIN)
        visitor.page.keyboard.press("Enter")
        visitor.is_connected("polled")
        stage.break_one("slow")
        stage.wait_states("slow", reconciling=1)
        visitor.agrees(stage)
    stage.clear()
