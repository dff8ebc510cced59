"""The files of the operator's page. They hold no secret and are public where there is an admin token (`api.auth`)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from quart import Blueprint, Response, request

from ..errors import RouteNotFoundError

PAGE: Final = "index.html"
CONTENT_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""By suffix; other files are not served."""
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""What the page may do: load and ask this server alone, make no markup out of text, be in no frame."""
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # A governor that was updated must not meet the script of the old one: the browser asks, and mostly gets a 304.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file.

    Attributes:
        body: its bytes.
        content_type: what they are.
        etag: names these bytes.
    """

    body: bytes
    content_type: str
    etag: str


def load_assets() -> dict[str, Asset]:
    """Every file of the page, by its name."""
    found = {}
    for file in files(__package__).joinpath("static").iterdir():
        content_type = CONTENT_TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            body = file.read_bytes()
            found[file.name] = Asset(body, content_type, hashlib.sha256(body).hexdigest()[:32])
    return found


# Read once: what is served does not change below a page that is half loaded.
ASSETS: Final = load_assets()

blueprint = Blueprint("ui", __name__)


@blueprint.get("/ui")
async def page() -> Response:
    """The page itself."""
    return _answer(ASSETS[PAGE])


@blueprint.get("/ui/")
async def page_of_folder() -> Response:
    """The page names its files relative to `/ui`, so that it works below any prefix of a proxy: only there."""
    return Response(b"", 308, {"Location": "../ui", **HEADERS})


@blueprint.get("/ui/<asset>")
async def part(asset: str) -> Response:
    """A file of the page."""
    found = ASSETS.get(asset)
    if found is None or asset == PAGE:
        raise RouteNotFoundError
    return _answer(found)


def _answer(asset: Asset) -> Response:
    headers = {"ETag": f'"{asset.etag}"', **HEADERS}
    if request.if_none_match.contains_weak(asset.etag):
        return Response(b"", 304, headers)
    return Response(asset.body, headers={"Content-Type": asset.content_type, **headers})
