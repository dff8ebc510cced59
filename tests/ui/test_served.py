"""The operators' page as it is served: where it exists, what a browser may do with it, that all of it is there."""

from __future__ import annotations

import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from api.ui.routes import ASSETS, PAGE, POLICY
from tests.api.harness import Answer, Service, service

if TYPE_CHECKING:
    from trio.testing import MockClock

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "api" / "ui" / "static"
ADMIN = "admin-0123456789ab"
API = "callers-0123456789"
TOKENS = {"admin": ADMIN, "api": API}
PATHS = ["/ui", "/ui/", "/ui/main.js", "/ui/style.css", "/ui/icon.svg", "//ui", "/ui/nothing.js", "/ui/a/b"]
SCRIPTS = sorted(path.name for path in STATIC.glob("*.js"))


async def get(up: Service, path: str, **headers: str) -> Answer:
    """A file of the page, without any token."""
    return await up.ask("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("path", PATHS)
async def test_without_an_admin_token_there_is_no_page(path: str, autojump_clock: MockClock) -> None:
    """A7: like `/admin`; nothing tells it from a path that never existed."""
    for tokens in ({}, {"api": API}):
        async with service(tokens=tokens) as up:
            unknown = await up.ask("GET", "/nothing-here")
            answer = await get(up, path)
            assert (answer.status, answer.body) == (unknown.status, unknown.body)
            assert answer.status in {401, 404}


async def test_with_one_it_is_open_and_opens_nothing_else(autojump_clock: MockClock) -> None:
    """It asks for the token itself, so a browser must get it without one. What it shows needs the token."""
    async with service(tokens=TOKENS) as up:
        page = await get(up, "/ui")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        for path in ("/admin/identities", "/admin/events", "/capabilities", "/uid", "/ui2/main.js"):
            assert (await get(up, path)).status == 401, path
        assert (await get(up, "/ui/nothing.js")).status == 404
        assert (await get(up, f"/ui/{PAGE}")).status == 404
        assert (await up.ask("POST", "/ui", data=b"{}")).status == 405


async def test_a_path_out_of_the_folder_leads_nowhere(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        for path in (
            "/ui/../routes.py",
            "/ui/..%2froutes.py",
            "/ui/%2e%2e/routes.py",
            "/ui/static/main.js",
            "/ui//main.js",
        ):
            assert (await get(up, path)).status == 404, path


async def test_the_folder_leads_to_the_page_below_any_prefix(autojump_clock: MockClock) -> None:
    """The page's own links are relative to `/ui`."""
    async with service(tokens=TOKENS) as up:
        answer = await get(up, "/ui/")
        assert (answer.status, answer.headers["location"]) == (308, "../ui")


async def test_every_file_is_served_as_what_it_is_and_says_what_it_may_do(autojump_clock: MockClock) -> None:
    types = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
    async with service(tokens=TOKENS) as up:
        for name in ASSETS:
            answer = await get(up, "/ui" if name == PAGE else f"/ui/{name}")
            assert answer.status == 200, name
            assert answer.body == (STATIC / name).read_bytes()
            assert answer.headers["content-type"] == types.get(PurePosixPath(name).suffix, "text/html; charset=utf-8")
            told = {
                "content-security-policy": POLICY,
                "x-content-type-options": "nosniff",
                "x-frame-options": "DENY",
                "referrer-policy": "no-referrer",
                "cache-control": "no-cache",
            }
            assert told.items() <= answer.headers.items()
            assert "set-cookie" not in answer.headers


async def test_a_browser_that_has_a_file_gets_it_again_only_if_it_changed(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        etag = (await get(up, "/ui")).headers["etag"]
        again = await get(up, "/ui", If_None_Match=f'"other", {etag}')
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", etag)
        assert again.headers["content-security-policy"] == POLICY
        assert (await get(up, "/ui", If_None_Match='"other"')).status == 200


def test_the_policy_allows_this_server_and_nothing_else() -> None:
    allowed = dict(directive.split(" ", 1) for directive in POLICY.split("; "))
    assert {name: allowed.pop(name) for name in ("default-src", "frame-ancestors", "base-uri", "form-action")} == {
        "default-src": "'none'",
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert {name: allowed.pop(name) for name in ("script-src", "style-src", "connect-src", "img-src")} == dict.fromkeys(
        ("script-src", "style-src", "connect-src", "img-src"), "'self'"
    )
    assert allowed == {"require-trusted-types-for": "'script'", "trusted-types": "'none'"}


def test_every_file_of_the_page_is_in_the_package_and_no_other() -> None:
    """`make test-ui` looks into a wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["api"]
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert {path.name for path in files} == set(ASSETS)
    for path in files:
        packaged = path.relative_to(ROOT / "api")
        assert any(packaged.match(pattern) for pattern in patterns), packaged


class Elements(HTMLParser):
    """Every element of the page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def page() -> Elements:
    return Elements((STATIC / PAGE).read_text())


def test_the_page_has_no_script_or_style_inside_and_asks_nobody_else() -> None:
    for tag, attributes in page().found:
        assert tag not in {"style", "iframe", "object", "embed", "base"}, tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        if tag == "script":
            assert attributes["type"] == "module"
            assert attributes["src"]
        for name in ("src", "href"):
            target = attributes.get(name)
            if target is not None:
                assert target.startswith("#") or target.removeprefix("ui/") in ASSETS, target
    assert re.findall(r"<script[^>]*>(.*?)</script>", (STATIC / PAGE).read_text(), re.DOTALL) == [""]


def test_what_can_be_operated_has_a_name_and_every_reference_its_target() -> None:
    elements = page().found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    labels = {attributes.get("for") for tag, attributes in elements if tag == "label"}
    for tag, attributes in elements:
        for name in ("for", "aria-labelledby", "aria-describedby"):
            assert name not in attributes or attributes[name] in ids, attributes
        if tag == "button":
            assert attributes.get("type") in {"button", "submit"}
        if tag == "input" and attributes.get("type") != "checkbox":
            assert attributes["id"] in labels or attributes["id"] == "filter"
            assert "name" not in attributes, "what is typed must never get into a URL"
    assert {"header", "main", "section", "nav", "dialog"} <= {tag for tag, _ in elements}
    assert ("html", {"lang": "en"}) in elements


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_make_no_markup_out_of_text_and_import_what_is_there(script: str) -> None:
    """Names of models, sessions and reasons are chosen by others: they become text and nothing else."""
    text = (STATIC / script).read_text()
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|createContextual"
    )
    assert not re.search(forbidden, text)
    assert not re.search(r"localStorage|document\.cookie|https?://|indexedDB", text)
    for target in re.findall(r'from "([^"]+)"', text):
        assert target.startswith("./")
        assert target.removeprefix("./") in ASSETS
    for path in re.findall(r'byId\("([^"]+)"\)', text):
        assert f'id="{path}"' in (STATIC / PAGE).read_text(), path


def test_the_token_is_kept_for_the_tab_at_most_and_is_in_no_address() -> None:
    """It goes into a header, and into `sessionStorage` where the operator says so."""
    texts = {name: (STATIC / name).read_text() for name in SCRIPTS}
    assert {name for name, text in texts.items() if "Authorization" in text} == {"api.js", "sse.js"}
    assert {name for name, text in texts.items() if "TOKEN_KEY" in text} == {"main.js"}
    for text in texts.values():
        assert not re.search(
            r"location\.(href|search|hash)\s*=|history\.(push|replace)State|\$\{(this\.)?token\}[?&/]", text
        )


async def test_it_is_there_while_the_governor_is_full(autojump_clock: MockClock) -> None:
    """That is when an operator wants to look."""
    async with service(tokens=TOKENS, server={"max_in_flight": 1}) as up:
        guard: Any = up.app.asgi_app
        guard.in_flight = guard.max_in_flight
        assert (await up.ask("GET", "/capabilities")).status == 503
        for path in ("/ui", "/ui/main.js"):
            assert (await get(up, path)).status == 200
        guard.in_flight = 0
