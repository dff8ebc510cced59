"""Web pages of other origins that the operator lets in (`server.allow_origins`): what their browsers ask for.

The gate refuses every other origin. What a page of an allowed one sends is answered as usual, and the answer says that
the page may read it, whoever gives it: a route, the gate, or the guard in front of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, HTTPScope, Scope

    from governor.config import Config

ANY: Final = "*"
_NO_PAGE: Final = "null"
"""What a browser says for a page that has no origin, which anybody can make: it is never allowed."""
_MAY_READ: Final = (
    (b"access-control-expose-headers", b"Retry-After, X-Qwen-Event-Epoch, X-Qwen-SSE-Stream-Id, Acp-Connection-Id"),
    (b"vary", b"Origin"),
)
_MAY_SEND: Final = (
    (b"access-control-allow-methods", b"GET, POST, PATCH, DELETE, OPTIONS"),
    (
        b"access-control-allow-headers",
        (
            b"Authorization, Content-Type, X-Qwen-Client-Id, Last-Event-ID, X-Qwen-Event-Epoch, Acp-Connection-Id,"
            b" Acp-Session-Id"
        ),
    ),
    (b"access-control-max-age", b"86400"),
)


class AllowedOrigins:
    """The origins of `server.allow_origins`."""

    def __init__(self, config: Config) -> None:
        self._named = frozenset(config.server.allow_origins)

    @property
    def mode(self) -> str:
        """`none`, `list` or `any`."""
        if ANY in self._named:
            return "any"
        return "list" if self._named else "none"

    def __contains__(self, origin: str) -> bool:
        """Whether a page of this origin may use the governor; `origin` in lower case."""
        return origin != _NO_PAGE and (ANY in self._named or origin in self._named)


class Cors:
    """ASGI middleware, in front of everything, that answers preflights and marks the other answers.

    There are no cookies, and so no credentials that a browser would add by itself.

    Args:
        app: what is behind it.
        config: names the origins.
    """

    def __init__(self, app: ASGIFramework, config: Config) -> None:
        self._app = app
        self._allowed = AllowedOrigins(config)

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serves one ASGI scope; anything but HTTP, and what no allowed page has sent, passes untouched."""
        origin = _origin(scope) if scope["type"] == "http" else None
        if origin is None or origin.decode("latin-1").lower() not in self._allowed:
            await self._app(scope, receive, send)
            return
        mark = [(b"access-control-allow-origin", origin), *_MAY_READ]
        if scope["type"] == "http" and _is_preflight(scope):
            await send({"type": "http.response.start", "status": 204, "headers": [*mark, *_MAY_SEND]})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return

        async def marked(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *mark]}
            await send(message)

        await self._app(scope, receive, marked)


def _origin(scope: Scope) -> bytes | None:
    """The one origin of a request; None where there is none, or more."""
    found = [value for name, value in scope["headers"] if name == b"origin"] if scope["type"] == "http" else []
    return found[0] if len(found) == 1 else None


def _is_preflight(scope: HTTPScope) -> bool:
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )
