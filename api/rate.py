"""Bounds how often a caller may ask (off unless configured). Pure.

Each caller has a bucket of tokens for each kind of request; it holds one minute's worth, and fills evenly. Under a bind
that other machines reach, a caller is its address: anybody can make up client ids. On loopback everybody has the
same address, so a caller is its client id, and all anonymous callers are one.
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil
from typing import TYPE_CHECKING, Final, Literal

from governor.errors import RefusedError

if TYPE_CHECKING:
    from governor.config import LimitsConfig

Tier = Literal["prompt", "mutation", "read"]

CALLERS_MAX: Final = 10_000
"""Callers that are remembered; beyond them the one that was longest not seen is forgotten, and begins anew."""
_WINDOW_S: Final = 60.0
_ROUNDING_S: Final = 1e-6
_EXEMPT: Final = frozenset({"/health", "/healthz", "/readyz", "/metrics", "/acp"})


class RateLimitError(RefusedError):
    """The caller has asked too often of late.

    Attributes:
        limit: requests of this tier that a minute may have.
        wait_s: after so many seconds one more is allowed.
    """

    code = "rate_limit_exceeded"
    status = 429

    def __init__(self, tier: Tier, limit: int, wait_s: float) -> None:
        super().__init__("Rate limit exceeded", tier=tier, retryAfterMs=ceil(round(wait_s * 1000, 3)))
        self.limit = limit
        self.wait_s = wait_s
        self.retry_after_s = ceil(round(wait_s, 6))  # type: ignore[misc]  # known per instance only


class RateLimiter:
    """The buckets of all callers.

    Args:
        limits: requests per minute of each tier; None for no limit.

    Attributes:
        limits: as given.
        rejected: refused requests, by tier.
    """

    def __init__(self, limits: dict[Tier, int | None]) -> None:
        self.limits = limits
        self._full_at: OrderedDict[tuple[str, Tier], float] = OrderedDict()
        self.rejected: dict[str, int] = dict.fromkeys(limits, 0)

    @classmethod
    def of(cls, limits: LimitsConfig) -> RateLimiter | None:
        """The limiter that is configured; None if nothing is limited."""
        tiers: dict[Tier, int | None] = {
            "prompt": limits.prompts_per_minute,
            "mutation": limits.mutations_per_minute,
            "read": limits.reads_per_minute,
        }
        return cls(tiers) if any(limit is not None for limit in tiers.values()) else None

    @classmethod
    def renewed(cls, old: RateLimiter | None, limits: LimitsConfig) -> RateLimiter | None:
        """The limiter of a changed configuration: the old one where it limits the same, else one with new buckets."""
        new = cls.of(limits)
        if new is None or old is None:
            return new
        if new.limits == old.limits:
            return old
        new.rejected = old.rejected
        return new

    def take(self, caller: str, tier: Tier, now_s: float) -> None:
        """Counts one request.

        Raises:
            RateLimitError: there have been too many; this one is not counted.
        """
        limit = self.limits[tier]
        if limit is None:
            return
        key, one_s = (caller, tier), _WINDOW_S / limit
        # A bucket is known by the moment at which it is full again: each request puts that off by one token.
        full_at = max(self._full_at.pop(key, now_s), now_s)
        self._full_at[key] = full_at
        if len(self._full_at) > CALLERS_MAX:
            self._full_at.popitem(last=False)
        wait_s = full_at - now_s - (_WINDOW_S - one_s)
        if wait_s > _ROUNDING_S:
            self.rejected[tier] += 1
            raise RateLimitError(tier, limit, wait_s)
        self._full_at[key] = full_at + one_s


def tier_of(method: str, path: str) -> Tier | None:
    """The kind of a request; None for those that are not limited here.

    They are probes, streams, heartbeats, Triton's routes, the operator's and their page, and `/acp`, which counts its
    messages itself. Further slashes in front of a path count for nothing, as in the routes.
    """
    path = f"/{path.lstrip('/')}"
    if method == "OPTIONS" or path in _EXEMPT or f"{path}/".startswith(("/v2/", "/admin/", "/ui/")):
        return None
    if path.endswith(("/heartbeat", "/events")):
        return None
    if method == "POST" and path.startswith("/session/") and path.endswith(("/prompt", "/generate")):
        return "prompt"
    return "read" if method in {"GET", "HEAD"} else "mutation"


def caller_name(*, loopback: bool, address: str, client_id: str | None) -> str:
    """What a caller is counted as."""
    if not loopback:
        return address
    return client_id if client_id is not None else "anonymous"
