"""Where a running service gets its configuration from again, and the locks of what is in it (D8, D10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from governor.config import Config
    from governor.identity import IdentityKey

    from .ownership import OwnedIdentities


class FileSource:
    """Fills `governor.operations.ConfigSource`.

    Args:
        load: reads the file, the environment and the flags as at the start.
        owned: the locks that are held.
    """

    def __init__(self, load: Callable[[], Config], owned: OwnedIdentities) -> None:
        self._load = load
        self._owned = owned

    async def load(self) -> Config:
        """The configuration as it stands now; read in a thread, as a disk can be slow."""
        return await trio.to_thread.run_sync(self._load)

    def own(self, identities: Iterable[tuple[str, str]]) -> None:
        """See `OwnedIdentities.take`."""
        self._owned.take(identities)

    def gone(self, key: IdentityKey, url: str) -> None:
        """The governor governs an identity no more; another process may."""
        self._owned.give_back(url, key.model)
