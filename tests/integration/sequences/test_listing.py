"""The list of all sequences, as the dashboard reads it again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from azure.storage.blob.aio import ContainerClient

from coordinator.config import StorageConfig
from coordinator.sequences.azure import READ_BYTES, CounterListing
from coordinator.storage import Storage


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        yield storage


async def container(storage: Storage) -> ContainerClient:
    client = storage.aio.blobs.get_container_client(storage.config.container("sequences"))
    await client.create_container()
    return client


def reads(storage: Storage) -> int:
    return storage.meter.by_operation().get("blob.GetBlob", 0)


async def test_without_a_container_there_are_no_sequences(storage: Storage) -> None:
    assert await CounterListing(storage).read() == []


async def test_a_counter_of_another_program_is_read_once_and_again_when_it_changes(storage: Storage) -> None:
    blobs = await container(storage)
    await blobs.upload_blob("orders", b"41")
    listing = CounterListing(storage)
    for _ in range(3):
        assert [(info.name, info.next) for info in await listing.read()] == [("orders", 41)]
    assert reads(storage) == 1
    await blobs.upload_blob("orders", b"52", overwrite=True)
    await blobs.upload_blob("returns", b"7")
    assert [(info.name, info.next) for info in await listing.read()] == [("orders", 52), ("returns", 7)]
    assert reads(storage) == 3
    await blobs.delete_blob("orders")
    assert [info.name for info in await listing.read()] == ["returns"]
    assert reads(storage) == 3


async def test_of_a_long_blob_the_beginning_is_read_and_it_is_no_number(storage: Storage) -> None:
    blobs = await container(storage)
    await blobs.upload_blob("big", b"9" * 1_000_000)
    await blobs.upload_blob("empty", b"")
    big, empty = await CounterListing(storage).read()
    assert (big.next, empty.next) == (None, None)
    assert "9" * 20 in big.problem
    assert len(big.problem) < 2 * READ_BYTES + 300
    assert "big" in big.problem
    assert "empty" in empty.problem
