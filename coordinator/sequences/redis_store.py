"""A counter in a hash of Redis (extra `redis`)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from coordinator.errors import NotFound, StorageUnreachable
from coordinator.sequences.store import Snapshot

WRITE = """
local version = redis.call('HGET', KEYS[1], 'version') or ''
if version ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'data', ARGV[2], 'metadata', ARGV[3], 'version', ARGV[4])
return 1
"""


class RedisCounterStore:
    """`OptimisticSyncStore` on the hash ``{prefix}{name}``, compared and written by one script.

    Guarantees what the protocol does, as far as Redis does: one that loses its last writes in a crash or a failover is a
    restored counter. The ledger in the storage account discovers that; without a ledger, set ``appendfsync always``.
    """

    def __init__(self, name: str, url: str, *, prefix: str = "kennel:sequences:") -> None:
        import redis

        self._name, self._key = name, prefix + name
        self._errors: tuple[type[Exception], ...] = (redis.RedisError,)
        self._client: Any = redis.Redis.from_url(
            url, decode_responses=True, socket_timeout=10.0, socket_connect_timeout=5.0
        )

    def get_data(self) -> Snapshot:
        try:
            found = self._client.hgetall(self._key)
        except self._errors as error:
            raise self._unreachable("read", error, maybe_done=False) from error
        if not found:
            raise NotFound(f"read the counter of sequence {self._name}: there is none", resource=self._name)
        return Snapshot(found["data"], found["version"], json.loads(found["metadata"]))

    def try_optimistic_write(self, data: str, *, etag: str | None, metadata: Mapping[str, str]) -> str | None:
        version = secrets.token_hex(8)
        try:
            written = self._client.eval(
                WRITE, 1, self._key, etag or "", data, json.dumps(dict(metadata)), version
            )
        except self._errors as error:
            raise self._unreachable("write", error, maybe_done=True) from error
        return version if written else None

    def close(self) -> None:
        """Close the connections. A later call connects again."""
        self._client.close()

    def _unreachable(self, action: str, error: Exception, *, maybe_done: bool) -> StorageUnreachable:
        return StorageUnreachable(
            f"{action} the counter of sequence {self._name}: Redis failed ({type(error).__name__}: {error})",
            resource=self._name,
            maybe_done=maybe_done,
        )
