"""Bodies of every size pass through, and other languages read and write the same queues."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator import Queue, Storage
from coordinator.azure.metering import TRAFFIC
from coordinator.config import StorageConfig
from coordinator.testing.azurite import find_node

KIB, MIB = 1024, 1024 * 1024
PROJECT = Path(__file__).resolve().parents[3]


class Order(msgspec.Struct):
    number: int
    name: str


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    async with Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=storage_prefix)
    ) as storage:
        yield storage


async def pass_through(queue: Queue[Any], count: int) -> list[Any]:
    """What a listener makes of the next `count` items."""
    got: list[Any] = []
    done = asyncio.Event()

    async def handler(item: Any) -> None:
        got.append(item)
        if len(got) >= count:
            done.set()

    listener = queue.listener(handler)
    running = asyncio.create_task(listener.run())
    async with asyncio.timeout(90):
        await done.wait()
    await listener.stop(10)
    await running
    return got


SIZES = [0, 1, 48 * KIB, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB]


@pytest.mark.parametrize("kind", ["text", "random bytes"])
async def test_bodies_of_any_size_come_out_as_they_went_in(
    storage: Storage, storage_prefix: str, kind: str
) -> None:
    rng = random.Random(3)
    bodies: list[Any] = (
        ["<ü&" * (size // 4) + "x" * (size % 4) for size in SIZES]
        if kind == "text"
        else [rng.randbytes(size) for size in SIZES]
    )
    queue = storage.queue(f"{storage_prefix}bodies", type=str if kind == "text" else bytes)
    for body in bodies:
        await queue.put(body)
    got = await pass_through(queue, len(bodies))
    assert sorted(got, key=len) == sorted(bodies, key=len)
    assert await queue.depth() == 0
    assert await claims_of(storage, queue.name) == []


@pytest.mark.parametrize("mebibytes", [8, pytest.param(100, marks=pytest.mark.slow)])
async def test_a_large_body_passes_through_and_leaves_nothing_behind(
    storage: Storage, storage_prefix: str, mebibytes: int
) -> None:
    body = random.Random(4).randbytes(MIB) * mebibytes
    queue = storage.queue(f"{storage_prefix}bodies", type=bytes)
    await queue.put(body)
    assert await claims_of(storage, queue.name)
    (got,) = await pass_through(queue, 1)
    assert got == body
    assert await claims_of(storage, queue.name) == []


async def test_the_meter_tells_the_claims_and_bytes_of_a_queue(storage: Storage, storage_prefix: str) -> None:
    queue = storage.queue(f"{storage_prefix}metered", type=str)
    body = random.Random(3).randbytes(100_000).hex()
    await queue.put(body)
    assert await pass_through(queue, 1) == [body]
    told = {what: storage.meter.traffic().get(f"{queue.name}/{what}", 0) for what in TRAFFIC}
    assert told["claim_writes"] >= 1  # a second one where the container had to be made
    assert (told["claim_reads"], told["claim_deletes"]) == (1, 1)
    # Its 200,000 hexadecimal digits are compressed to half, perhaps sent twice.
    assert 100_000 < told["bytes_sent"] < 300_000
    assert 100_000 < told["bytes_received"] < 150_000


async def claims_of(storage: Storage, queue: str) -> list[str]:
    container = storage.aio.blobs.get_container_client(storage.config.container("claims"))
    if not await container.exists():
        return []
    return [blob.name async for blob in container.list_blobs(name_starts_with=f"{queue}/")]


JAVASCRIPT = """
const { QueueClient } = require("@azure/storage-queue");
const [connection, name, word, ...texts] = process.argv.slice(1);
(async () => {
  const queue = new QueueClient(connection, name);
  if (word === "put") for (const text of texts) await queue.sendMessage(text);
  const seen = word === "peek" ? (await queue.peekMessages({ numberOfMessages: 32 })).peekedMessageItems : [];
  console.log(JSON.stringify(seen.map((message) => message.messageText)));
})();
"""


async def javascript(connection_string: str, queue: str, *words: str) -> Any:
    node = find_node()
    assert node is not None
    command = [str(node), "-e", JAVASCRIPT, "--", connection_string, queue, *words]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, check=True, cwd=PROJECT, timeout=60
    )
    return json.loads(done.stdout)


async def test_what_a_javascript_client_puts_is_decoded_plain_or_in_base64(
    storage: Storage, storage_prefix: str, connection_string: str
) -> None:
    queue = storage.queue(f"{storage_prefix}foreign", type=Order)
    await queue.create()
    plain = json.dumps({"number": 1, "name": "Zoë <&> ☂"}, ensure_ascii=False)
    wrapped = base64.b64encode(b'{"number":2,"name":"x"}').decode()
    await javascript(connection_string, queue.name, "put", plain, wrapped)
    got = await pass_through(queue, 2)
    assert sorted(got, key=lambda order: order.number) == [Order(1, "Zoë <&> ☂"), Order(2, "x")]


async def test_a_javascript_client_reads_what_we_put(
    storage: Storage, storage_prefix: str, connection_string: str
) -> None:
    queue = storage.queue(f"{storage_prefix}ours", type=Order)
    await queue.put(Order(1, "Zoë <&> ☂\r\n\uffff"), Order(2, "x"))
    (text,) = await javascript(connection_string, queue.name, "peek")
    message = json.loads(text)
    assert message["kennel"] == 1
    assert message["items"] == [{"number": 1, "name": "Zoë <&> ☂\r\n\uffff"}, {"number": 2, "name": "x"}]


@pytest.mark.parametrize("in_base64", [False, True])
async def test_a_queue_without_envelopes_holds_what_others_read_and_write(
    storage: Storage, storage_prefix: str, connection_string: str, in_base64: bool
) -> None:
    queue = storage.queue(f"{storage_prefix}bare", type=str, envelope=False, base64=in_base64)
    words = ["17", '{"dog": "<ü&>"}', "aGVsbG8="]
    sent = await queue.put(*words)
    texts = [base64.b64encode(word.encode()).decode() if in_base64 else word for word in words]
    assert sorted(await javascript(connection_string, queue.name, "peek")) == sorted(texts)
    assert [each.text for each in sent] == texts
    assert {peeked.items for peeked in await queue.peek()} == {(word,) for word in words}
    await javascript(connection_string, queue.name, "put", texts[0])
    assert sorted(await pass_through(queue, 4)) == sorted([words[0], *words])
