"""Removing the payloads that no message needs any more, for all queues of the account."""

from __future__ import annotations

import logging

from coordinator.queues.azure import old_claims
from coordinator.queues.sweeping import sweep_round
from coordinator.storage import Storage

log = logging.getLogger(__name__)

GRACE_SECONDS = 86_400.0


async def sweep_some(storage: Storage, start: str) -> str:
    """Look at up to 50,000 claims from `start` on, remove those that are old and needed by no message; where to go on.

    One request for 5,000 claims, and what `sweep_round` says: nothing besides where nothing is old.
    """
    old, following = await old_claims(storage, before=storage.clock.time() - GRACE_SECONDS, start=start)
    if old:
        swept = await sweep_round(old, storage.queue)
        log.info("Swept claims: %d removed, %d stay as they cannot be judged", swept.removed, swept.unknown)
    return following
