"""Listing by plain REST sees what the SDK's listing sees."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from azure.storage.blob.aio import ContainerClient

from coordinator.azure.listing import ListedBlob, list_blobs
from coordinator.config import StorageConfig
from coordinator.errors import NotFound
from coordinator.storage import Storage

NAMES = ("a", "a/b", "ü & <x>", "100 %", "q?x=1#y", "z'\"", "leased")


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        yield storage


@pytest.fixture
async def container(storage: Storage) -> ContainerClient:
    client = storage.aio.blobs.get_container_client(storage.config.container("things"))
    await client.create_container()
    return client


async def test_it_sees_what_the_sdk_sees(storage: Storage, container: ContainerClient) -> None:
    for number, name in enumerate(NAMES):
        await container.upload_blob(
            name, b"x" * number, metadata={"One": f"a%20b-{number}", "two": ""} if number % 2 else None
        )
    await container.get_blob_client("leased").acquire_lease(15)
    by_sdk = [
        ListedBlob(
            blob.name,
            str(blob.etag),
            blob.size,
            str(blob.lease.state or "available"),
            {key: value or "" for key, value in (blob.metadata or {}).items()},
        )
        async for blob in container.list_blobs(include=["metadata"])
    ]
    found = [blob async for blob in list_blobs(storage, container.container_name)]
    assert found == by_sdk
    assert {blob.name for blob in found} == set(NAMES)
    assert next(blob for blob in found if blob.name == "leased").lease_state == "leased"


async def test_it_goes_on_over_pages_and_keeps_to_a_prefix(
    storage: Storage, container: ContainerClient
) -> None:
    for number in range(7):
        await container.upload_blob(f"n & {number}", b"")
    await container.upload_blob("other", b"")
    found = [blob.name async for blob in list_blobs(storage, container.container_name, prefix="n &", page=3)]
    assert found == [f"n & {number}" for number in range(7)]
    assert storage.meter.by_operation()["blob.ListBlobs"] == 3


async def test_without_the_container_it_says_so(storage: Storage) -> None:
    with pytest.raises(NotFound):
        [blob async for blob in list_blobs(storage, storage.config.container("none"))]
