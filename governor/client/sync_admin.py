"""`SyncAdminClient`: the operator's client for code that is not async."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from .admin import AdminClient
from .admin_stream import AdminStream
from .blocking import Blocking, Opening, OwnLoop, Twin, next_of, wait

if TYPE_CHECKING:
    from types import TracebackType

    import httpx

    from .admin_shapes import AdminState
    from .admin_stream import AdminEvents
    from .retry import RetryPolicy


class AdminOptions(TypedDict, total=False):
    """The options of `AdminClient`, with its defaults."""

    token: str | None
    request_timeout_s: float
    retry: RetryPolicy | None
    transport: httpx.AsyncBaseTransport | None


class SyncAdminStream(Twin[AdminStream]):
    """The operator's live view. See `AdminStream`."""

    def __iter__(self) -> SyncAdminStream:
        return self

    def __next__(self) -> AdminState | AdminEvents:
        return next_of(self.portal, self.inner.__anext__)

    def __enter__(self) -> SyncAdminStream:
        wait(self.portal, self.inner.__aenter__)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        wait(self.portal, partial(self.inner.__aexit__, None, None, None))


class SyncAdminClient(OwnLoop[AdminClient]):
    """The blocking twin of `AdminClient`, used as `with SyncAdminClient(url) as admin`.

    Args:
        base_url: as of `AdminClient`.
        backend: what runs in the thread.
        options: as of `AdminClient`.
    """

    def __init__(
        self, base_url: str, *, backend: Literal["asyncio", "trio"] = "asyncio", **options: Unpack[AdminOptions]
    ) -> None:
        super().__init__(AdminClient(base_url, **options), backend)

    state = Blocking(AdminClient.state)
    identity = Blocking(AdminClient.identity)
    restart = Blocking(AdminClient.restart)
    release = Blocking(AdminClient.release)
    audit = Blocking(AdminClient.audit)
    live = Opening(AdminClient.live, SyncAdminStream)
