"""Finds ports that nobody uses, for whatever is started beside something else."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

_LOW, _HIGH = 15_000, 32_000
"""Below the range from which the kernel hands out ports to connections: one of those could come in between."""
_TRIES_MAX = 1_000


def free_ports(count: int) -> list[int]:
    """That many different TCP ports of 127.0.0.1 that were free a moment ago.

    Raises:
        OSError: none were found.
    """
    found: list[int] = []
    with ExitStack() as held:
        for _ in range(_TRIES_MAX):
            if len(found) == count:
                return found
            probe = held.enter_context(socket.socket())
            port = random.randrange(_LOW, _HIGH)  # noqa: S311  # no secret: different runs should not collide
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    raise OSError(f"no {count} free TCP ports between {_LOW} and {_HIGH} on 127.0.0.1")
