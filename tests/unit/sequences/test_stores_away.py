"""Counters outside the storage account whose server is away or whose file is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.errors import StorageUnreachable
from coordinator.sequences.redis_store import RedisCounterStore
from coordinator.sequences.sql_store import SqlCounterStore
from coordinator.sequences.store import OptimisticSyncStore


@pytest.fixture(params=["redis", "sqlite", "postgres"])
def broken(request: pytest.FixtureRequest, tmp_path: Path, unused_tcp_port: int) -> OptimisticSyncStore:
    if request.param == "redis":
        return RedisCounterStore("orders", f"redis://127.0.0.1:{unused_tcp_port}/0")
    if request.param == "postgres":
        return SqlCounterStore.postgres("orders", f"postgres://a@127.0.0.1:{unused_tcp_port}/shop")
    path = tmp_path / "counters.sqlite3"
    path.write_bytes(b"this is no database, and was never one" * 100)
    return SqlCounterStore.sqlite("orders", str(path))


@pytest.mark.parametrize("etag", [None, "v1"], ids=["create", "replace"])
def test_a_store_that_fails_says_so_and_whether_a_write_may_be_done(
    broken: OptimisticSyncStore, etag: str | None
) -> None:
    with pytest.raises(StorageUnreachable, match="read the counter of sequence orders") as caught:
        broken.get_data()
    assert not caught.value.maybe_done
    with pytest.raises(StorageUnreachable, match="write the counter of sequence orders") as caught:
        broken.try_optimistic_write("1", etag=etag, metadata={})
    assert caught.value.maybe_done and caught.value.__cause__ is not None


def test_a_write_over_a_counter_in_a_database_without_its_table_is_no_write(tmp_path: Path) -> None:
    store = SqlCounterStore.sqlite("orders", str(tmp_path / "new.sqlite3"))
    assert store.try_optimistic_write("2", etag="v1", metadata={}) is None
    assert store.try_optimistic_write("1", etag=None, metadata={}) is not None
    assert store.get_data().data == "1"
