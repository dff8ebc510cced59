"""What is async, for code that is not: the same objects, run by an event loop in a thread of its own.

Nothing is written twice. A method of a twin is the method of the async object, called in the loop's thread; its
parameters, its result and its documentation are the async method's own, for readers and for type checkers
(ADR-0011).
"""

from __future__ import annotations

import functools
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import TYPE_CHECKING, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, overload

from anyio.from_thread import start_blocking_portal

from .errors import DaemonUsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from anyio.from_thread import BlockingPortal

Inner = TypeVar("Inner")
P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


class Twin(Generic[Inner]):
    """The blocking twin of an async object.

    Args:
        inner: the async object.
        portal: leads to the thread of its event loop.
    """

    def __init__(self, inner: Inner, portal: BlockingPortal) -> None:
        self._inner = inner
        self._portal = portal

    @property
    def inner(self) -> Inner:
        """The async object. Its methods belong to the event loop's thread."""
        return self._inner

    @property
    def portal(self) -> BlockingPortal:
        """Leads to the thread of the event loop."""
        return self._portal


class OwnLoop(Twin[Inner]):
    """The twin of an async context manager, with a thread and an event loop of its own inside of its `with` block.

    Args:
        inner: the async context manager.
        backend: what runs in the thread.
    """

    def __init__(self, inner: Inner, backend: Literal["asyncio", "trio"]) -> None:
        self._inner = inner
        self._backend = backend
        self._opened: BlockingPortal | None = None
        self._stack = ExitStack()

    @property
    def portal(self) -> BlockingPortal:
        """Leads to the thread of the event loop.

        Raises:
            DaemonUsageError: the block has not begun, or has ended.
        """
        if self._opened is None:
            raise DaemonUsageError(f"It is not open: use it inside of `with {type(self).__name__}(...) as client`")
        return self._opened

    def __enter__(self) -> Self:
        if self._opened is not None:
            raise DaemonUsageError("This client is open already; use one block around all that uses it")
        assert isinstance(self._inner, AbstractAsyncContextManager)
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal(self._backend))
            stack.enter_context(portal.wrap_async_context_manager(self._inner))
            self._opened = portal
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._opened = None
        self._stack.__exit__(exc_type, exc_value, tb)


class Blocking(Generic[Inner, P, T]):
    """A method of a twin, from the async method of the same name.

    Args:
        method: the async method.
        before: called with the async object and the first arguments in the caller's thread; what it raises is raised
            without a trip to the loop's thread.
    """

    def __init__(
        self,
        method: Callable[Concatenate[Inner, P], Awaitable[T]],
        *,
        before: Callable[Concatenate[Inner, P], None] | None = None,
    ) -> None:
        self._method = method
        self._before = before
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Twin[Inner], P], T]: ...
    @overload
    def __get__(self, instance: Twin[Inner], owner: type) -> Callable[P, T]: ...
    def __get__(
        self, instance: Twin[Inner] | None, owner: type
    ) -> Callable[Concatenate[Twin[Inner], P], T] | Callable[P, T]:
        """The method of an instance, or the function of the class."""
        method, before = self._method, self._before

        @functools.wraps(method)
        def call(twin: Twin[Inner], /, *args: P.args, **kwargs: P.kwargs) -> T:
            if before is not None:
                before(twin.inner, *args, **kwargs)
            return wait(twin.portal, functools.partial(method, twin.inner, *args, **kwargs))

        return call if instance is None else functools.partial(call, instance)


class Opening(Generic[Inner, P, T, U]):
    """A method of a twin that gives the twin of what the async method of the same name gives at once.

    Args:
        method: the method of the async object; it does not wait.
        wrap: makes the twin.
    """

    def __init__(self, method: Callable[Concatenate[Inner, P], T], wrap: Callable[[T, BlockingPortal], U]) -> None:
        self._method = method
        self._wrap = wrap
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Twin[Inner], P], U]: ...
    @overload
    def __get__(self, instance: Twin[Inner], owner: type) -> Callable[P, U]: ...
    def __get__(
        self, instance: Twin[Inner] | None, owner: type
    ) -> Callable[Concatenate[Twin[Inner], P], U] | Callable[P, U]:
        """The method of an instance, or the function of the class."""
        method, wrap = self._method, self._wrap

        @functools.wraps(method)
        def call(twin: Twin[Inner], /, *args: P.args, **kwargs: P.kwargs) -> U:
            return wrap(method(twin.inner, *args, **kwargs), twin.portal)

        return call if instance is None else functools.partial(call, instance)


def next_of(portal: BlockingPortal, fetch: Callable[[], Awaitable[T]]) -> T:
    """What an async iterator gives next.

    Raises:
        StopIteration: nothing any more.
    """
    try:
        return wait(portal, fetch)
    except StopAsyncIteration:
        raise StopIteration from None


def wait(portal: BlockingPortal, call: Callable[[], Awaitable[T]]) -> T:
    """Runs a call in the loop's thread and waits for it; an interrupt (Ctrl-C) cancels the call."""
    future = portal.start_task_soon(call)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
