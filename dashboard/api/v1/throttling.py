"""How many requests a caller may make in a minute, counted for all processes together.

Windows are fixed, a minute long, and counted in Django's cache: in Redis if there are several processes. When Redis is
away each process counts for itself, which lets through more, never less. The headers are those of the IETF's draft.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.base import BaseCache

from dashboard.api.v1.problems import Refusal

WINDOW_SECONDS = 60


class Quota(NamedTuple):
    """What is left of a window. `reset` is in seconds from now."""

    limit: int
    remaining: int
    reset: int

    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.reset),
        }


def spend(caller: str, kind: str) -> Quota:
    """Count one request of a caller; raises `Refusal` (429) if it is one too many. `kind` is reads, writes or refused."""
    limit = settings.API_LIMITS[kind]
    now = time.time()
    window = int(now // WINDOW_SECONDS)
    reset = max(1, round((window + 1) * WINDOW_SECONDS - now))
    used = _count(f"api:{kind}:{caller}:{window}")
    quota = Quota(limit, max(0, limit - used), reset)
    if used > limit:
        raise Refusal(
            429,
            f"more than {limit} {kind} in a minute; try again in {reset} s",
            {"Retry-After": str(reset), **quota.headers()},
        )
    return quota


def _count(key: str) -> int:
    try:
        return _count_in(caches["default"], key)
    except settings.CACHE_AWAY:
        return _count_in(caches["local"], key)


def _count_in(cache: BaseCache, key: str) -> int:
    cache.add(key, 0, timeout=2 * WINDOW_SECONDS)
    try:
        return cache.incr(key)
    except ValueError:  # it was evicted between the two
        return 1
