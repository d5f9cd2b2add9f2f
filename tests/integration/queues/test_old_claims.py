"""Promises of finding the payloads that may have lost their message, on a real account."""

from __future__ import annotations

from coordinator.config import StorageConfig
from coordinator.queues.azure import BlobClaims, old_claims
from coordinator.queues.sweeping import OldClaim
from coordinator.storage import Storage


async def test_all_claims_that_are_old_are_found_page_by_page_and_no_others(
    connection_string: str, storage_prefix: str
) -> None:
    async with Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=storage_prefix)
    ) as storage:
        now = storage.clock.time()
        assert await old_claims(storage, before=now) == ([], "")
        one, two = (BlobClaims(storage, name) for name in ("one", "two"))
        for number in range(3):
            await one.put(f"{number:032}", b"x", expires_at=now - 10)
        await two.put("0" * 32, b"x", expires_at=0.0)
        await two.put("1" * 32, b"x", expires_at=now + 1000)
        found: list[OldClaim] = []
        start, calls = "", 0
        while start or not calls:
            more, start = await old_claims(storage, before=now + 100, start=start, pages=1, page=2)
            found += more
            calls += 1
        assert calls == 3
        ended = [OldClaim("one", f"{number:032}", False) for number in range(3)]
        assert found == [*ended, OldClaim("two", "0" * 32, True)]
        assert (await old_claims(storage, before=now - 100))[0] == []
