"""A governor to look at, somebody who looks at it, and what both of them say."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import httpx
from playwright.sync_api import expect

from governor.demo.ports import free_ports
from tests.e2e.simulated import simulated_triton
from tests.e2e.stack import start_governor

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tests.e2e.proxy import Proxy
    from tests.ui.browser.backstage import Backstage

ADMIN: Final = "operators-own-secret"
AS_ADMIN: Final = {"Authorization": f"Bearer {ADMIN}"}
PATIENCE_S: Final = 15.0
WHY: Final = "the GPU is idle, ticket 4711"


@dataclass
class Stage:
    """A governor in its own process.

    Attributes:
        url: its base URL.
        folder: where its configuration is.
        process: the process.
        backend: base URL of what is behind it.
        reset_calls: resets the connections that carry calls; how many there were.
    """

    url: str
    folder: Path
    process: subprocess.Popen[bytes]
    backend: str
    reset_calls: Callable[[], int]

    def admin(self, path: str = "identities", body: object = None) -> dict[str, Any]:
        """What `/admin` answers."""
        method = "GET" if body is None else "POST"
        answer = httpx.request(method, f"{self.url}/admin/{path}", headers=AS_ADMIN, json=body, timeout=10)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def identity(self, name: str) -> dict[str, Any]:
        """One of them, by Triton's name of the model."""
        return next(each for each in self.admin()["identities"] if each["model"] == name)

    def wait_for(self, name: str, what: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Waits until something is true of an identity."""
        for _ in attempts():
            told = self.identity(name)
            if what(told):
                return told
        raise AssertionError(f"{name} never got there: {told}")

    def wait_states(self, name: str, **states: int) -> dict[str, Any]:
        """Waits until an identity has these claims and no others."""
        return self.wait_for(name, lambda told: {k: v for k, v in told["states"].items() if v} == states)

    def call(self, model: str, text: str, *, give_up_s: float = 600) -> None:
        """Sends a call and waits for nothing; its caller leaves after a while."""
        threading.Thread(target=self._call, args=(model, text, give_up_s), daemon=True).start()

    def _call(self, model: str, text: str, give_up_s: float) -> None:
        try:
            httpx.post(f"{self.url}/v2/models/{model}/generate", json={"text_input": text}, timeout=give_up_s)
        except httpx.TransportError:
            return  # left, or was cut

    def break_one(self, model: str) -> None:
        """A call whose connection breaks while it executes."""
        before = self.identity(model)["claimsTotal"]
        self.call(model, "600 seconds")
        self.wait_for(model, lambda told: told["claimsTotal"] > before and told["claims"][-1]["delivered"])
        self.break_calls()

    def break_calls(self, count: int = 1) -> None:
        """Breaks the connections of so many calls, as soon as what lies between has them."""
        for _ in attempts():
            count -= self.reset_calls()
            if count <= 0:
                return
        raise AssertionError(f"{count} calls have not come through")

    def clear(self) -> None:
        """No call is left, be it open or broken."""
        for _ in attempts():
            self.reset_calls()
            self.admin("restart", {"identity": "all", "reason": "between two tests"})
            if not any(each["claimsTotal"] or each["queue"]["waiting"] for each in self.admin()["identities"]):
                return
        raise AssertionError("calls are left that neither end nor break")

    def start_again(self) -> None:
        """Another process on the same port."""
        self.process, log = start_governor((self.folder / "governor.toml").read_text(), self.folder)
        wait_ready(self.url, self.process, log)

    def end(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


def config(port: int, backend: str, *, slots: int = 3, server: str = "", metrics_url: str | None = None) -> str:
    """One backend and the demo models."""
    metrics = f'metrics_url = "{metrics_url}"\n' if metrics_url is not None else ""
    models = {"slow": ("generate", slots), "storyteller": ("generate_stream", 2), "sentiment": ("generate", 6)}
    tables = "".join(
        f'[[models]]\nname = "{name}"\nbackend = "triton"\nslots = {count}\nkind = "{kind}"\n'
        for name, (kind, count) in models.items()
    )
    head = f'[server]\nport = {port}\n{server}\n[tokens]\nadmin = "{ADMIN}"\n'
    return f'{head}[[backends]]\nname = "triton"\nurl = "{backend}"\nhealth_interval_ms = 100\n{metrics}{tables}'


@contextmanager
def simulated_stage(backstage: Backstage, folder: Path) -> Iterator[Stage]:
    """In front of a simulated Triton without metrics, so that a reload proves nothing."""
    with simulated_triton() as triton:
        proxy = backstage.proxy(int(triton.rpartition(":")[2]))
        with staged(backstage, proxy, folder, triton) as stage:
            yield stage


@contextmanager
def staged(
    backstage: Backstage, proxy: Proxy, folder: Path, triton: str, *, metrics_url: str | None = None
) -> Iterator[Stage]:
    """A governor behind a proxy."""
    [port] = free_ports(1)
    told = config(port, f"http://127.0.0.1:{proxy.port}", metrics_url=metrics_url)
    process, log = start_governor(told, folder)
    stage = Stage(f"http://localhost:{port}", folder, process, triton, lambda: backstage.reset_calls(proxy))
    try:
        wait_ready(stage.url, process, log)
        yield stage
    finally:
        stage.end()


def wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until a governor is ready."""
    for _ in attempts(30):
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            assert process.poll() is None, log.read_text()
    raise AssertionError(f"the governor was not ready:\n{log.read_text()}")


def attempts(seconds: float = PATIENCE_S) -> Iterator[None]:
    """Every 50 ms until the time is up."""
    ends_at_s = time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < ends_at_s:
        yield
        pause.wait(0.05)


@dataclass
class Visitor:
    """Somebody at a browser.

    Attributes:
        page: what they look at.
        requests: method, URL and headers of everything that it asked for.
        complaints: errors of its scripts, and what the browser refused.
    """

    page: Page
    url: str
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def look(self) -> None:
        """Goes to the page."""
        self.page.goto(f"{self.url}/ui")

    def sign_in(self, token: str = ADMIN) -> None:
        """Goes to the page with a token, and waits until it is live."""
        self.look()
        self.page.get_by_label("Token", exact=True).fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.is_connected("live")

    def is_connected(self, kind: str, *, seconds: float = PATIENCE_S) -> None:
        """Waits until the page says how it is connected."""
        expect(self.page.locator("#connection")).to_have_attribute("data-connection", kind, timeout=seconds * 1000)

    def card(self, model: str) -> Any:
        """The card of an identity."""
        return self.page.locator(f'article[data-id="triton:{model}"]')

    def agrees(self, stage: Stage) -> dict[str, Any]:
        """Holds that the page shows what the admin API tells, and returns that."""
        for _ in attempts():
            told, shown = stage.admin(), self.page.evaluate(SHOWN)
            if shown == as_shown(told) and not ages_differ(self.page.evaluate(AGES), told):
                return told
        ages = ages_differ(self.page.evaluate(AGES), told)
        raise AssertionError(
            f"the page shows\n{json.dumps(shown)}\nthe API tells\n{json.dumps(as_shown(told))}\n{ages}"
        )


@contextmanager
def visiting(browser: Browser, url: str, folder: Path, **options: Any) -> Iterator[Visitor]:
    """A visitor with a browser context of their own; a screenshot is kept where something failed."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    page = context.new_page()
    visitor = Visitor(page, url)
    page.on("request", lambda asked: visitor.requests.append((asked.method, asked.url, asked.headers)))
    page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
    page.on("console", lambda said: visitor.complaints.append(said.text) if _is_complaint(said) else None)
    try:
        yield visitor
        assert not visitor.complaints
    except BaseException:
        page.screenshot(path=folder / "page.png", full_page=True)
        print(f"the page as it was: {folder / 'page.png'}")  # noqa: T201
        raise
    finally:
        context.close()


def _is_complaint(said: Any) -> bool:
    # That an answer was no success, or that nobody answered, is what the tests provoke.
    return said.type in {"error", "warning"} and "Failed to load resource" not in said.text


SHOWN: Final = """() => {
  const number = (text) => Number(text);
  const claim = (each) => [number(each.dataset.claim), each.dataset.state];
  return {
    draining: document.body.dataset.draining === "true",
    identities: [...document.querySelectorAll("#cards > article")].map((card) => ({
      id: card.dataset.id, usable: card.dataset.usable === "true", epoch: number(card.dataset.epoch),
      boot: card.dataset.boot || null, slots: number(card.dataset.slots), free: number(card.dataset.free),
      held: number(card.dataset.held), waiting: number(card.dataset.waiting),
      polling: card.dataset.polling === "true", pending: number(card.dataset.pendingPrompts),
      cells: [...card.querySelectorAll(":scope > .cells > li")].filter((cell) => cell.dataset.claim).map(claim),
      freeCells: card.querySelectorAll(":scope > .cells > li[data-state=free]").length,
      broken: [...card.querySelectorAll(".broken:not([hidden]) .claims > li")].map(claim),
      queues: [...card.querySelectorAll("li[data-session]")].map(
        (row) => [row.dataset.session, number(row.dataset.pending), row.dataset.active === "true"]),
      problems: [...card.querySelectorAll(":scope > .problem:not([hidden]) > li")].map((line) => line.textContent),
      now: card.querySelector(".epochs .now b")?.textContent ?? null,
    })),
  };
}"""

AGES: Final = """() => Object.fromEntries([...document.querySelectorAll("#cards .cells > li[data-claim]")].map(
  (cell) => [cell.closest("article").dataset.id + " " + cell.dataset.claim, cell.querySelector(".age").textContent]))"""


def as_shown(told: dict[str, Any]) -> dict[str, Any]:
    """What the page must show of a state."""
    return {
        "draining": told["draining"],
        "identities": [
            {
                "id": each["id"],
                "usable": each["usable"],
                "epoch": each["epoch"],
                "boot": each["boot"],
                "slots": each["credits"]["slots"],
                "free": each["credits"]["free"],
                "held": each["credits"]["held"],
                "waiting": each["queue"]["waiting"],
                "polling": each["polling"],
                "pending": each["sessions"]["pendingPrompts"],
                "cells": [[claim["id"], claim["state"]] for claim in each["claims"]],
                "freeCells": each["credits"]["free"],
                "broken": [[claim["id"], claim["state"]] for claim in each["claims"] if claim["releasable"]],
                "queues": [
                    [queue["sessionId"], queue["pendingPrompts"], queue["active"]]
                    for queue in each["sessions"]["queues"]
                ],
                "problems": _problems(each),
                "now": f"Epoch {each['epoch']}",
            }
            for each in told["identities"]
        ],
    }


def _problems(each: dict[str, Any]) -> list[str]:
    told = [*([each["problem"]] if each["problem"] is not None else []), *each["remarks"]]
    stuck = each["states"]["quarantined"]
    if each["problem"] is None and stuck:
        whose = "slot is held by a call" if stuck == 1 else "slots are held by calls"
        told.append(f"{stuck} {whose} that nothing can prove ended")
    return told


def ages_differ(shown: dict[str, str], told: dict[str, Any]) -> list[str]:
    """Ages in cells that are off by more than two seconds; those over a minute are rounded too much to tell."""
    wrong = []
    for each in told["identities"]:
        for claim in each["claims"]:
            text = shown.get(f"{each['id']} {claim['id']}", "nothing")
            if claim["ageMs"] < 58_000 and not (
                text.endswith("s") and abs(int(text[:-1]) - claim["ageMs"] / 1000) <= 2
            ):
                wrong.append(f"claim {claim['id']} of {each['id']}: {text}, not {claim['ageMs']} ms")
    return wrong
