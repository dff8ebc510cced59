"""`AdminClient`: what an operator sees and may do (A7, E11); docs/admin.md tells what it means."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import httpx

from .admin_shapes import AdminState, AuditPage, IdentityState, ReleaseReport, RestartReport
from .admin_stream import AdminStream
from .http import Http, segment
from .retry import RetryPolicy
from .source import STREAM_SILENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from governor.errors import JsonValue

ADMIN_TOKEN_VARIABLE: Final = "GOVERNOR_ADMIN_TOKEN"  # noqa: S105  # where the token is, not the token
ALL: Final = "all"
"""In place of an identity: each of them."""


class AdminClient:
    """An operator's client of one governor, used as `async with AdminClient(url) as admin`.

    Args:
        base_url: `http[s]://host[:port][/prefix]`.
        token: the admin token; None to take it from `GOVERNOR_ADMIN_TOKEN`.
        request_timeout_s: the longest time of one request.
        retry: how often and when to try again what may be tried again: what only looks, and what was never sent.
        transport: another httpx transport, for a proxy or a test.

    Raises:
        ValueError: the URL or the token can be none.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        request_timeout_s: float = 30.0,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = Http(
            base_url,
            token=token if token is not None else os.environ.get(ADMIN_TOKEN_VARIABLE, ""),
            transport=transport,
            request_timeout_s=request_timeout_s,
            retry=retry if retry is not None else RetryPolicy(),
        )

    async def __aenter__(self) -> AdminClient:
        self._http.open()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def state(self, *, size: int | None = None, after: str | None = None) -> AdminState:
        """The governor and its identities in the order of their ids; `after` is the `next_after` of the page before."""
        label = "GET /admin/identities"
        params = httpx.QueryParams({name: value for name, value in (("size", size), ("after", after)) if value})
        return AdminState.decode((await self._http.ask("GET", f"/admin/identities?{params}", label)).body, label)

    async def identity(self, identity: str, *, claims: int | None = None) -> IdentityState:
        """One identity, with up to 1024 of its claims."""
        query = f"?claims={claims}" if claims is not None else ""
        label = f"GET /admin/identities/{identity}"
        answer = await self._http.ask("GET", f"/admin/identities/{segment(identity)}{query}", label)
        return IdentityState.decode_answer(answer.body, label)

    async def restart(
        self,
        identity: str,
        reason: str,
        *,
        operator: str | None = None,
        drain_ms: int = 0,
        expected_epochs: Mapping[str, int] | None = None,
    ) -> RestartReport:
        """Forgets the broken claims of an identity, or of all (`"all"`): their slots are free, without proof (E11).

        Args:
            identity: an id, or `"all"`.
            reason: kept in the audit log.
            operator: who acts; kept in the audit log.
            drain_ms: how long to wait for the running calls first, handing out no credits meanwhile.
            expected_epochs: the epochs one saw, by identity; in another one nothing is done.

        Raises:
            DaemonHttpError: refused, with nothing forgotten.
        """
        body: dict[str, JsonValue] = {"identity": identity, "reason": reason, "drainMs": drain_ms}
        if operator is not None:
            body["operator"] = operator
        if expected_epochs is not None and identity == ALL:
            body["expectedEpochs"] = dict(expected_epochs)
        elif expected_epochs is not None and identity in expected_epochs:
            body["expectedEpoch"] = expected_epochs[identity]
        label = "POST /admin/restart"
        timeout_s = self._http.request_timeout_s + drain_ms / 1000
        answer = await self._http.ask("POST", "/admin/restart", label, body=body, timeout_s=timeout_s)
        return RestartReport.decode(answer.body, label)

    async def release(
        self,
        identity: str,
        claim: int,
        reason: str,
        *,
        operator: str | None = None,
        expected_epoch: int | None = None,
    ) -> ReleaseReport:
        """Forgets one broken claim: its slot is free, without proof (E11). See `restart`.

        Raises:
            DaemonHttpError: refused: `claim_open`, `unknown_claim`, `unknown_identity`, `epoch_changed`.
        """
        body: dict[str, JsonValue] = {"reason": reason}
        if operator is not None:
            body["operator"] = operator
        if expected_epoch is not None:
            body["expectedEpoch"] = expected_epoch
        path = f"/admin/identities/{segment(identity)}/claims/{claim}/release"
        label = f"POST {path}"
        return ReleaseReport.decode((await self._http.ask("POST", path, label, body=body)).body, label)

    async def audit(self, *, size: int | None = None, before: int | None = None) -> AuditPage:
        """Who did what, the newest first; `before` is the `next_before` of the page before."""
        label = "GET /admin/audit"
        params = httpx.QueryParams({name: value for name, value in (("size", size), ("before", before)) if value})
        return AuditPage.decode((await self._http.ask("GET", f"/admin/audit?{params}", label)).body, label)

    def live(self, *, silence_s: float = STREAM_SILENCE_S) -> AdminStream:
        """The state whenever it changes, and what happens: `async with admin.live() as live: async for it in live`."""
        return AdminStream(self._http, silence_s=silence_s)
