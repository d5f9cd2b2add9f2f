"""Listing by plain REST sees what the SDK's listing sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from azure.storage.blob.aio import ContainerClient

from coordinator.azure.listing import BlobListing, ListedBlob
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
    found = await BlobListing(storage, container.container_name).read()
    assert found == by_sdk
    assert {blob.name for blob in found} == set(NAMES)
    assert next(blob for blob in found if blob.name == "leased").lease_state == "leased"


async def test_it_goes_on_over_pages_and_keeps_to_a_prefix(
    storage: Storage, container: ContainerClient
) -> None:
    for number in range(7):
        await container.upload_blob(f"n & {number}", b"")
    await container.upload_blob("other", b"")
    found = [
        blob.name
        for blob in await BlobListing(storage, container.container_name, prefix="n &", page=3).read()
    ]
    assert found == [f"n & {number}" for number in range(7)]
    assert storage.meter.by_operation()["blob.ListBlobs"] == 3


async def test_before_each_page_the_program_may_let_it_wait(
    storage: Storage, container: ContainerClient
) -> None:
    for number in range(7):
        await container.upload_blob(f"n-{number}", b"")
    waits: list[int] = []

    async def wait() -> None:
        waits.append(storage.meter.by_operation().get("blob.ListBlobs", 0))

    storage.before_listing = wait
    await BlobListing(storage, container.container_name, page=3).read()
    assert waits == [0, 1, 2]


async def test_without_the_container_it_says_so(storage: Storage) -> None:
    with pytest.raises(NotFound):
        await BlobListing(storage, storage.config.container("none")).read()


async def test_only_what_has_changed_is_decoded_again(storage: Storage, container: ContainerClient) -> None:
    for number in range(7):
        await container.upload_blob(f"n-{number}", b"")
    listing = BlobListing(storage, container.container_name, page=3)
    first, again = await listing.read(), await listing.read()
    assert again == first
    assert all(one is other for one, other in zip(first, again, strict=True))
    await container.upload_blob("n-4", b"", overwrite=True, metadata={"changed": "yes"})
    await container.delete_blob("n-6")
    now = await listing.read()
    assert [blob.name for blob in now] == [f"n-{number}" for number in range(6)]
    assert [one is other for one, other in zip(first, now, strict=False)] == [True] * 3 + [False] * 3
    assert now[4].metadata == {"changed": "yes"}


async def test_metadata_named_like_the_parts_of_the_answer_is_metadata(
    storage: Storage, container: ContainerClient
) -> None:
    await container.upload_blob("odd", b"", metadata={"Blob": "x", "NextMarker": "y", "Name": "z"})
    (blob,) = await BlobListing(storage, container.container_name).read()
    assert (blob.name, dict(blob.metadata)) == ("odd", {"Blob": "x", "NextMarker": "y", "Name": "z"})


async def test_a_long_answer_leaves_the_event_loop_to_others_between_its_parts(storage: Storage) -> None:
    listing = BlobListing(storage, "things")
    blob = (
        "<Blob><Name>n-{}</Name><Properties><Etag>1</Etag></Properties><Metadata><a>{}</a></Metadata></Blob>"
    )
    answer = f"<R><Blobs>{''.join(blob.format(n, 'x' * 200) for n in range(2_000))}</Blobs></R>".encode()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    page = await listing._decoded(answer, b"")
    beside.cancel()
    assert len(page.blobs) == 2_000
    assert turns >= 20


async def test_of_all_listings_one_request_is_under_way(storage: Storage, container: ContainerClient) -> None:
    for number in range(7):
        await container.upload_blob(f"n-{number}", b"")
    under_way = most = 0

    class Counting(BlobListing):
        async def _page(self, marker: str) -> bytes:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                return await super()._page(marker)
            finally:
                under_way -= 1

    listings = [Counting(storage, container.container_name, page=3) for _ in range(3)]
    found = await asyncio.gather(*(listing.read() for listing in listings))
    assert [len(each) for each in found] == [7, 7, 7]
    assert most == 1
