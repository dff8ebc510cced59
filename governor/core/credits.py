"""Who gets the next slot credit. Pure.

Waiters of one key (a session, a caller) are served in order; keys are served in turn, so a key with a thousand
waiters delays another key's only waiter by one turn, not by a thousand (A6). Nor can it keep others out: when the
queue is full, the newest waiter of the longest key gives way to one of a key that is shorter by two or more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

W = TypeVar("W")


class WaitersFullError(Exception):
    """The queue already holds its limit of waiters."""


class CreditQueue(Generic[W]):
    """A bounded queue of waiters, fair between keys.

    Args:
        limit: the most waiters there may be.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._by_key: OrderedDict[str, deque[W]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, key: str, waiter: W) -> W | None:
        """Appends a waiter.

        Returns:
            Who had to give way, and waits no more; None where there was room.

        Raises:
            WaitersFullError: the queue is full, and no key has that many more waiters; nothing has changed.
        """
        gave_way = self._make_room(key) if self._length >= self.limit else None
        self._by_key.setdefault(key, deque()).append(waiter)
        self._length += 1
        return gave_way

    def is_full_for(self, key: str) -> bool:
        """`push` would refuse a waiter of this key now."""
        return self._length >= self.limit and self._who_gives_way(key) is None

    def _make_room(self, key: str) -> W:
        waiters = self._who_gives_way(key)
        if waiters is None:
            raise WaitersFullError
        self._length -= 1
        return waiters.pop()

    def _who_gives_way(self, key: str) -> deque[W] | None:
        own = len(self._by_key.get(key, ()))
        if 2 * own + 2 > self._length:  # spares who floods the queue the search: all others have fewer together
            return None
        waiters = max(self._by_key.values(), key=len)
        return waiters if len(waiters) >= own + 2 else None

    def pop(self) -> W | None:
        """Takes the waiter whose turn it is; None when nobody waits."""
        if not self._by_key:
            return None
        key, waiters = self._by_key.popitem(last=False)
        waiter = waiters.popleft()
        self._length -= 1
        if waiters:
            self._by_key[key] = waiters
        return waiter

    @property
    def key_count(self) -> int:
        """Keys that have a waiter."""
        return len(self._by_key)

    def heads(self) -> Iterator[W]:
        """The longest waiting waiter of each key; one of them waits longest of all."""
        return (waiters[0] for waiters in self._by_key.values())

    def longest(self, at_most: int) -> list[tuple[str, Sequence[W]]]:
        """The keys with the most waiters, the longest first, and their waiters in order. To look at."""
        longest_first = sorted(self._by_key.items(), key=lambda each: -len(each[1]))
        return [(key, waiters) for key, waiters in longest_first[:at_most]]

    def discard(self, key: str, waiter: W) -> bool:
        """Takes a waiter out wherever it stands. Returns False if it is not in the queue (any more)."""
        waiters = self._by_key.get(key)
        if waiters is None or waiter not in waiters:
            return False
        waiters.remove(waiter)
        self._length -= 1
        if not waiters:
            del self._by_key[key]
        return True
