"""The gate in front of every route: is the request for us, from a page of ours, and by someone who may?

It is an ASGI layer and refuses by default, so a route that is added later is behind the token without being told.
The order is the protocol's: target, Host, Origin, token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote_to_bytes

from governor.config.crosscheck import is_loopback
from governor.errors import InvalidRequestError

from .cors import AllowedOrigins
from .errors import ForeignOriginError, InvalidHostError, RouteNotFoundError, UnauthorizedError, send_error

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

    from governor.config import Config
    from governor.errors import GovernorError

OPEN_PATHS: Final = frozenset({"/health", "/healthz", "/readyz"})
"""Served without a token, as probes have none: names of models and why one cannot be used, no work and no text."""
METRICS_PATH: Final = "/metrics"
ADMIN_PATH: Final = "/admin"
"""What is here and below it is for operators: it has a token of its own, and without one it does not exist (A7)."""
PAGE_PATH: Final = "/ui"
"""The operators' page and its files: no secrets, so no token, but without one for operators they do not exist."""

_OPERATOR: Final = "governor.operator"
_CONTROL: Final = re.compile(
    r"/v2/(repository/models/[^/]+/(un)?load|(models/[^/]+/)?trace/setting|logging|(system|cuda)sharedmemory/.+)"
)
_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]", "host.docker.internal")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_BEARER = re.compile(rb"[ \t]*bearer[ \t]+(\S+)[ \t]*", re.IGNORECASE)
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Gate:
    """Lets through what may pass, and answers the rest itself.

    - A target with a broken percent-encoding, or a query that is not ASCII, gets 400.
    - On a loopback bind, a `Host` other than a loopback name at the server's own port gets 403: a web page whose
      name was rebound to 127.0.0.1 sends its own name. On other binds the token protects.
    - An `Origin` other than the server's own, and none of `server.allow_origins`, gets 403. Below `/admin` the name
      in `Host` is the server's own as well, so that the operators' page works by whatever name it is reached; a page
      of somebody else that had itself rebound to this server has no operator's token.
    - With `tokens.api` set, a request without that bearer token gets 401; one answer for every reason.
    - Below `/admin` that token is `tokens.admin` instead. Without one there is no such route.
    - `/ui` and what is below it is public where `tokens.admin` is set, and does not exist otherwise.
    - On Triton's routes for operators (`is_control_path`) the one token is as good as the other; what only operators
      may do there, the routes decide. The operator's token opens nothing else.

    Args:
        app: what is behind the gate.
        config: `server.host` tells the bind, also under a server that was bound by somebody else.
    """

    def __init__(self, app: ASGIFramework, config: Config) -> None:
        self._app = app
        self._loopback = is_loopback(config.server.host)
        self._names = (*_LOOPBACK_NAMES, _bracketed(config.server.host).lower())
        self._allowed_origins = AllowedOrigins(config)
        self.follow(config)

    def follow(self, config: Config) -> None:
        """Other tokens are in force from now on."""
        self._token = _digest_of(config.tokens.api)
        self._admin_token = _digest_of(config.tokens.admin)
        self._open = OPEN_PATHS | ({METRICS_PATH} if config.tokens.metrics_public else frozenset())

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serves one ASGI scope; anything but HTTP passes."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await send_error(send, refusal)

    def _refusal(self, scope: HTTPScope) -> GovernorError | None:
        if _is_malformed(scope.get("raw_path") or b"") or not scope["query_string"].isascii():
            return InvalidRequestError("Malformed URL encoding", code="invalid_request")
        own = self._own_authorities(scope)
        if self._loopback and own is not None:
            hosts = [host.decode("latin-1") for host in _values(scope, b"host")]
            if len(hosts) != 1 or hosts[0].lower() not in own:
                return InvalidHostError(hosts, own)
        for origin in _values(scope, b"origin"):
            named = origin.decode("latin-1").lower()
            at_home = self._is_own_origin(named, own) or (is_admin_path(scope["path"]) and _is_at_host(named, scope))
            if not at_home and named not in self._allowed_origins:
                return ForeignOriginError()
        return self._token_refusal(scope)

    def _token_refusal(self, scope: HTTPScope) -> GovernorError | None:
        for_operators = is_admin_path(scope["path"])
        is_page = _is_at_or_below(scope["path"], PAGE_PATH)
        if is_page and self._admin_token is not None:
            return None
        if self._admin_token is not None and (for_operators or is_control_path(scope["path"])):
            if _has_token(scope, self._admin_token):
                cast("dict[str, object]", scope)[_OPERATOR] = True
                return None
            if for_operators:
                return UnauthorizedError()
        if self._token is not None and scope["path"] not in self._open and not _has_token(scope, self._token):
            return UnauthorizedError()
        return RouteNotFoundError() if for_operators or is_page else None

    def _own_authorities(self, scope: HTTPScope) -> frozenset[str] | None:
        """How this server is named at the port the request came in on; None where that is not known."""
        server = scope["server"]
        if server is None or server[1] is None:
            return None
        return _authorities(self._names, server[1], scope["scheme"])

    @staticmethod
    def _is_own_origin(origin: str, own: frozenset[str] | None) -> bool:
        scheme, separator, authority = origin.partition("://")
        return bool(separator) and scheme in _DEFAULT_PORTS and own is not None and authority in own


@lru_cache(64)
def _authorities(names: tuple[str, ...], port: int, scheme: str) -> frozenset[str]:
    named = {f"{name}:{port}" for name in names}
    if port == _DEFAULT_PORTS.get(scheme):
        named.update(names)
    return frozenset(named)


def is_admin_path(path: str) -> bool:
    """Whether a path, decoded, is for operators. Further slashes before it count for nothing, as in the routes."""
    return _is_at_or_below(path, ADMIN_PATH)


def is_control_path(path: str) -> bool:
    """Whether a path, decoded, is one of Triton's by which a caller could harm others."""
    return _CONTROL.fullmatch(f"/{path.lstrip('/')}") is not None


def is_operator(scope: Scope) -> bool:
    """Whether the gate has seen the operator's token on this request. What has not passed the gate is none's."""
    return cast("dict[str, object]", scope).get(_OPERATOR) is True


def _is_at_host(origin: str, scope: HTTPScope) -> bool:
    """Whether a page came from where its request goes, by the name that its browser knows."""
    scheme, _, authority = origin.partition("://")
    hosts = [host.decode("latin-1").lower() for host in _values(scope, b"host")]
    return scheme in _DEFAULT_PORTS and hosts == [authority]


def _is_at_or_below(path: str, top: str) -> bool:
    path = f"/{path.lstrip('/')}"
    return path == top or path.startswith(f"{top}/")


def _has_token(scope: HTTPScope, token: bytes) -> bool:
    given = _values(scope, b"authorization")
    match = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
    # The digests have one length, so that not even the length of the token shows in the time.
    offered = _digest(match[1] if match is not None else b"")
    return hmac.compare_digest(offered, token) and match is not None


def _values(scope: HTTPScope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _digest_of(token: str | None) -> bytes | None:
    return None if token is None else _digest(token.encode())


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_malformed(raw_path: bytes) -> bool:
    if b"%" not in raw_path:
        return False
    if _BAD_ESCAPE.search(raw_path):
        return True
    try:
        unquote_to_bytes(raw_path).decode()
    except UnicodeDecodeError:
        return True
    return False
