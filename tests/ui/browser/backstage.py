"""A thread that runs trio beside the tests, which are not async because the browser's library is not."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

import trio

from tests.e2e.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

T = TypeVar("T")
START_S = 10.0


class Backstage:
    """Runs async functions for whoever is not; what it started ends with it."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=trio.run, args=(self._main,), name="backstage")
        self._started = threading.Event()
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._nursery is not None
        trio.from_thread.run_sync(self._nursery.cancel_scope.cancel, trio_token=self._token)
        self._thread.join()

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Runs it to its end."""
        return trio.from_thread.run(function, *args, trio_token=self._token)

    def proxy(self, target_port: int) -> Proxy:
        """Starts a proxy."""
        assert self._nursery is not None
        proxy = Proxy(target_port)
        self.run(self._nursery.start, proxy.serve)
        return proxy

    def reset_calls(self, proxy: Proxy) -> int:
        """Breaks the connections that carry calls."""
        return trio.from_thread.run_sync(proxy.reset_calls, trio_token=self._token)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            self._started.set()
            await trio.sleep_forever()
