"""What every queue service promises: in memory, the fast service over HTTP, and Azurite alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.errors import (
    AlreadyExists,
    InvalidRequest,
    MessageUndecodable,
    NotFound,
    PreconditionFailed,
    ReceiptStale,
)
from coordinator.queues.azure import AzureQueue, BlobClaims, BlobRules, BlobShards, list_queues
from coordinator.queues.protocols import ClaimStore, QueueTransport, RuleStore, ShardLayout, ShardStore
from coordinator.queues.rules import Steps, TargetLatency
from coordinator.testing.queue_service import QueueService
from coordinator.testing.queues import MemoryClaimStore, MemoryQueueTransport, MemoryRules, MemoryShards


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    async with Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=storage_prefix)
    ) as storage:
        yield storage


@pytest.fixture
async def fast_storage() -> AsyncIterator[Storage]:
    service = QueueService()
    async with Storage.from_connection_string(await service.start()) as storage:
        yield storage
    await service.close()


@pytest.fixture(params=["memory", "service", "azurite"])
def transport(request: pytest.FixtureRequest) -> QueueTransport:
    if request.param == "memory":
        return MemoryQueueTransport("work")
    if request.param == "service":
        return AzureQueue(request.getfixturevalue("fast_storage"), "work")
    prefix = request.getfixturevalue("storage_prefix")
    return AzureQueue(request.getfixturevalue("storage"), f"{prefix}work")


@pytest.fixture
async def queue(transport: QueueTransport) -> QueueTransport:
    assert await transport.create()
    return transport


@pytest.fixture(params=["memory", "azurite"])
def claims(request: pytest.FixtureRequest) -> ClaimStore:
    if request.param == "memory":
        return MemoryClaimStore()
    return BlobClaims(request.getfixturevalue("storage"), "work")


async def test_every_call_on_a_queue_nobody_made_says_not_found(transport: QueueTransport) -> None:
    for call in (
        transport.put("x"),
        transport.get(1, visibility_seconds=5),
        transport.peek(1),
        transport.count(),
        transport.clear(),
        transport.delete_queue(),
    ):
        with pytest.raises(NotFound):
            await call


async def test_creating_twice_is_harmless(queue: QueueTransport) -> None:
    assert not await queue.create()


@pytest.mark.parametrize("text", ["plain", "<&>\"' ü ☂ 😀", "  spaces \t\r\n kept  ", "", '{"a":[1,2]}'])
async def test_a_text_comes_back_as_it_was_put(queue: QueueTransport, text: str) -> None:
    await queue.put(text)
    (message,) = await queue.get(32, visibility_seconds=30)
    assert (message.text, message.dequeue_count) == (text, 1)


async def test_a_message_taken_is_invisible_until_its_time_is_over(queue: QueueTransport) -> None:
    await queue.put("x")
    await queue.get(1, visibility_seconds=30)
    assert await queue.get(1, visibility_seconds=30) == []
    assert await queue.peek(1) == []
    assert await queue.count() == 1


async def test_a_message_shown_again_is_taken_with_a_higher_count_and_the_first_receipt_is_stale(
    queue: QueueTransport,
) -> None:
    await queue.put("x")
    (first,) = await queue.get(1, visibility_seconds=30)
    await queue.update(first.id, first.receipt, visibility_seconds=0)
    (second,) = await queue.get(1, visibility_seconds=30)
    assert second.id == first.id
    assert second.dequeue_count == 2
    with pytest.raises(ReceiptStale):
        await queue.delete(first.id, first.receipt)
    await queue.delete(second.id, second.receipt)
    assert await queue.count() == 0


async def test_an_update_keeps_the_text_unless_it_gives_one_and_the_new_receipt_holds(
    queue: QueueTransport,
) -> None:
    await queue.put("old <&>")
    (message,) = await queue.get(1, visibility_seconds=30)
    receipt = await queue.update(message.id, message.receipt, visibility_seconds=30)
    assert receipt != message.receipt
    receipt = await queue.update(message.id, receipt, visibility_seconds=0)
    (message,) = await queue.get(1, visibility_seconds=30)
    assert message.text == "old <&>"
    await queue.update(message.id, message.receipt, visibility_seconds=0, text="new ☂")
    (message,) = await queue.get(1, visibility_seconds=30)
    assert message.text == "new ☂"


async def test_a_deleted_message_is_gone_and_a_second_delete_says_so(queue: QueueTransport) -> None:
    await queue.put("x")
    (message,) = await queue.get(1, visibility_seconds=30)
    await queue.delete(message.id, message.receipt)
    with pytest.raises(ReceiptStale) as caught:
        await queue.delete(message.id, message.receipt)
    assert caught.value.status == 404


async def test_a_put_with_a_delay_is_hidden_and_its_receipt_serves_the_putter(queue: QueueTransport) -> None:
    stored = await queue.put("x", delay_seconds=60)
    assert await queue.get(1, visibility_seconds=30) == []
    receipt = await queue.update(stored.id, stored.receipt, visibility_seconds=30)
    await queue.delete(stored.id, receipt)
    assert await queue.count() == 0


async def test_a_batch_holds_at_most_32_and_none_comes_twice(queue: QueueTransport) -> None:
    await asyncio.gather(*(queue.put(str(n)) for n in range(40)))
    first = await queue.get(32, visibility_seconds=60)
    second = await queue.get(32, visibility_seconds=60)
    assert (len(first), len(second)) == (32, 8)
    assert {message.text for message in [*first, *second]} == {str(n) for n in range(40)}
    with pytest.raises(InvalidRequest):
        await queue.get(33, visibility_seconds=60)


async def test_a_peek_takes_nothing(queue: QueueTransport) -> None:
    await queue.put("x")
    (peeked,) = await queue.peek(32)
    assert (peeked.text, peeked.dequeue_count, peeked.receipt) == ("x", 0, "")
    assert len(await queue.get(1, visibility_seconds=5)) == 1


async def test_a_message_lives_as_long_as_its_time_says(queue: QueueTransport) -> None:
    await queue.put("for ever")
    await queue.put("a minute", ttl_seconds=60)
    lifetimes = {message.text: message.expires_at - message.inserted_at for message in await queue.peek(32)}
    assert lifetimes["a minute"] == pytest.approx(60, abs=2)
    assert lifetimes["for ever"] > 10 * 365 * 24 * 3600


async def test_clearing_removes_all_and_deleting_removes_the_queue(queue: QueueTransport) -> None:
    await queue.put("x")
    await queue.clear()
    assert await queue.count() == 0
    await queue.delete_queue()
    with pytest.raises(NotFound):
        await queue.count()


async def test_a_message_of_64_kib_fits_and_one_byte_more_is_refused(queue: QueueTransport) -> None:
    await queue.put("x" * 65536)
    with pytest.raises(InvalidRequest):
        await queue.put("x" * 65537)


@pytest.fixture(params=["memory", "azurite"])
def shards(request: pytest.FixtureRequest) -> ShardStore:
    return MemoryShards() if request.param == "memory" else BlobShards(request.getfixturevalue("storage"))


async def test_the_number_of_shards_is_stored_only_over_the_one_that_was_read(shards: ShardStore) -> None:
    assert await shards.read("work") == (None, "")
    await shards.write("work", ShardLayout(2, 2), "")
    layout, etag = await shards.read("work")
    assert layout == ShardLayout(2, 2)
    with pytest.raises((PreconditionFailed, AlreadyExists)):
        await shards.write("work", ShardLayout(9, 9), "")
    await shards.write("work", ShardLayout(4, 4), etag)
    with pytest.raises(PreconditionFailed):
        await shards.write("work", ShardLayout(9, 9), etag)
    assert (await shards.read("work"))[0] == ShardLayout(4, 4)


async def test_a_claim_is_kept_until_it_is_deleted(claims: ClaimStore) -> None:
    name = "0" * 32
    with pytest.raises(NotFound):
        await claims.get(name, at_most=2_000)
    await claims.put(name, b"\x00\xff" * 1000, expires_at=100)
    assert await claims.get(name, at_most=2_000) == b"\x00\xff" * 1000
    with pytest.raises(MessageUndecodable, match="2000 bytes, more than 1999"):
        await claims.get(name, at_most=1_999)
    assert await claims.expired(101) == [name]
    assert await claims.expired(99) == []
    await claims.keep(name)
    assert await claims.expired(10**12) == []
    await claims.delete(name)
    await claims.delete(name)
    with pytest.raises(NotFound):
        await claims.get(name, at_most=2_000)


async def test_a_claim_that_never_expires_is_known_by_when_it_was_written(claims: ClaimStore) -> None:
    await claims.put("0" * 32, b"x", expires_at=0)
    await claims.put("1" * 32, b"x", expires_at=100)
    assert await claims.lasting(10**12) == ["0" * 32]
    assert await claims.lasting(10**9) == []
    await claims.keep("1" * 32)
    assert sorted(await claims.lasting(10**12)) == ["0" * 32, "1" * 32]
    assert await claims.expired(10**12) == []


async def test_nothing_has_expired_where_nothing_was_kept(claims: ClaimStore) -> None:
    assert await claims.expired(10**12) == []
    assert await claims.lasting(10**12) == []


async def test_the_queues_of_an_account_are_listed(storage: Storage, storage_prefix: str) -> None:
    await AzureQueue(storage, f"{storage_prefix}one").create()
    await AzureQueue(storage, f"{storage_prefix}two").create()
    names = [name for name in await list_queues(storage) if name.startswith(storage_prefix)]
    assert sorted(names) == [f"{storage_prefix}one", f"{storage_prefix}two"]


async def test_message_requests_are_counted_by_operation_and_queue(
    storage: Storage, storage_prefix: str
) -> None:
    queue = AzureQueue(storage, f"{storage_prefix}work")
    await queue.create()
    await queue.put("x")
    (message,) = await queue.get(32, visibility_seconds=30)
    receipt = await queue.update(message.id, message.receipt, visibility_seconds=30)
    await queue.delete(message.id, receipt)
    await queue.peek(1)
    counted = storage.meter.by_operation()
    operations = ("PutMessage", "GetMessages", "UpdateMessage", "DeleteMessage", "PeekMessages")
    assert [counted[f"queue.{name}"] for name in operations] == [1] * 5
    assert {request.resource for request in storage.meter.snapshot()} == {queue.name}


@pytest.fixture(params=["memory", "azurite"])
def rules(request: pytest.FixtureRequest) -> RuleStore:
    return MemoryRules() if request.param == "memory" else BlobRules(request.getfixturevalue("storage"))


async def test_a_rule_is_read_as_it_was_written_and_an_unchanged_one_is_not_sent_again(
    rules: RuleStore,
) -> None:
    assert await rules.read("orders", "") is None
    await rules.write("orders", TargetLatency(60), by="olga")
    answer = await rules.read("orders", "")
    assert answer is not None
    rule, etag = answer
    assert rule == TargetLatency(60)
    assert await rules.read("orders", etag) is None
    await rules.write("orders", Steps(beyond=7), by="olga")
    answer = await rules.read("orders", etag)
    assert answer is not None
    assert answer[0] == Steps(beyond=7)
    await rules.remove("orders")
    await rules.remove("orders")
    assert await rules.read("orders", answer[1]) == (None, "")
