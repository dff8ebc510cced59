"""The three ways to use the client, under one interface, so that each test holds for all of them.

A test is an async function that takes a `Flavour`. Where the client is the blocking one, its calls are made in threads,
as they are by the programs that use it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from governor.client import (
    AdminClient,
    DaemonClient,
    DaemonSessionClient,
    RetryPolicy,
    SyncAdminClient,
    SyncDaemonClient,
    SyncDaemonSessionClient,
)
from governor.client.blocking import Twin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

QUICK = RetryPolicy(attempts=3, first_pause_s=0.001, max_pause_s=0.002)
"""Tries as often as in earnest, but without the pauses."""
_AT_ONCE = {"stream", "events", "live", "pending_prompts_of", "require_room"}
_THREADS = 200


@dataclass(frozen=True)
class Flavour:
    """One way to use the client."""

    name: str
    backend: str
    blocking: bool = False

    def client(self, url: str, **options: Any) -> Any:
        """A client, for an `async with` block."""
        options.setdefault("retry", QUICK)
        return InThreads(SyncDaemonClient(url, **options)) if self.blocking else DaemonClient(url, **options)

    def admin(self, url: str, **options: Any) -> Any:
        """An operator's client, for an `async with` block."""
        options.setdefault("retry", QUICK)
        return InThreads(SyncAdminClient(url, **options)) if self.blocking else AdminClient(url, **options)

    async def create(self, client: Any, *args: Any, **kwargs: Any) -> Any:
        """`create_or_attach`."""
        return await self._session("create_or_attach", client, *args, **kwargs)

    async def load(self, client: Any, *args: Any, **kwargs: Any) -> Any:
        """`load`."""
        return await self._session("load", client, *args, **kwargs)

    async def resume(self, client: Any, *args: Any, **kwargs: Any) -> Any:
        """`resume`."""
        return await self._session("resume", client, *args, **kwargs)

    def session(self, client: Any, session: Any, **options: Any) -> Any:
        """A session client that is made directly."""
        if self.blocking:
            return InThreads(SyncDaemonSessionClient(client.sync, session, **options))
        return DaemonSessionClient(client, session, **options)

    async def _session(self, how: str, client: Any, *args: Any, **kwargs: Any) -> Any:
        if self.blocking:
            call = getattr(SyncDaemonSessionClient, how)
            return await in_thread(functools.partial(call, client.sync, *args, **kwargs))
        return await getattr(DaemonSessionClient, how)(client, *args, **kwargs)

    def run(self, test: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Runs a test; it may take no longer than a minute."""

        async def bounded() -> None:
            anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
            with anyio.fail_after(60):
                await test(self, *args)

        anyio.run(bounded, backend=self.backend)


FLAVOURS = (Flavour("trio", "trio"), Flavour("asyncio", "asyncio"), Flavour("sync", "asyncio", blocking=True))


async def in_thread(call: Callable[[], Any]) -> Any:
    """Runs a blocking call; what it returns is used in the same way."""
    value = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    return InThreads(value) if isinstance(value, Twin) else value


class InThreads:
    """A blocking object with the interface of the async one."""

    def __init__(self, sync: Any) -> None:
        self.sync = sync

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.sync, name)
        if isinstance(value, Twin):
            return InThreads(value)
        if not callable(value):
            return value
        if name in _AT_ONCE:
            return lambda *args, **kwargs: _adapted(value(*args, **kwargs))
        name = {"close": "close", "aclose": "close"}.get(name, name)
        return lambda *args, **kwargs: in_thread(functools.partial(value, *args, **kwargs))

    async def __aenter__(self) -> InThreads:
        await anyio.to_thread.run_sync(self.sync.__enter__)
        return self

    async def __aexit__(self, *exc: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.sync.__exit__, *exc)

    def __aiter__(self) -> InThreads:
        return self

    async def __anext__(self) -> Any:
        value = await anyio.to_thread.run_sync(next, self.sync, _END, abandon_on_cancel=True)
        if value is _END:
            raise StopAsyncIteration
        return value


_END = object()


def _adapted(value: Any) -> Any:
    return InThreads(value) if isinstance(value, Twin) else value


each_flavour = pytest.mark.parametrize("flavour", FLAVOURS, ids=lambda flavour: flavour.name)
"""For tests that hold for all of them."""
