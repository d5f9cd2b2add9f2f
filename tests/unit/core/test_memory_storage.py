"""A storage account in memory: all that `Storage` makes works on it, and shares its data by name."""

import asyncio
import inspect

import pytest

from coordinator import Pipeline, Storage, Upsert, Worker
from coordinator.testing.storage import MemoryStorage

OPTIONS = {"environ": {}}


@pytest.fixture
async def storage():
    async with MemoryStorage() as storage:
        yield storage
        assert storage.meter.by_operation() == {}, "a request was made"


def test_every_factory_has_its_counterpart_in_memory():
    factories = {
        name for name, value in vars(Storage).items() if inspect.isfunction(value) and name[0] != "_"
    }
    assert factories - {"sequence"} <= set(vars(MemoryStorage))
    assert "_generator" in vars(MemoryStorage)


async def test_queues_of_one_name_share_messages_claims_and_poison(storage):
    await storage.queue("orders", type=str).put("ticket", "x" * 200_000)
    peeked = await storage.queue("orders", type=str).peek()
    assert [each.items for each in peeked] == [("ticket",), ("x" * 200_000,)]
    worker = Worker("shop", storage=storage, **OPTIONS)
    got = []

    @worker.listen("orders")
    async def handle(item: str) -> None:
        got.append(item)

    running = asyncio.create_task(worker.run())
    await storage.until_empty("orders")
    worker.stop()
    await running
    assert sorted(got) == ["ticket", "x" * 200_000]
    await storage.queue("orders").put(1)
    with pytest.raises(TimeoutError):
        await storage.until_empty("orders", seconds=0.02)


async def test_a_sharded_queue_reaches_all_shards(storage):
    sharded = storage.sharded_queue("orders", str, shards=3)
    for item in "abc":
        await sharded.put(item)
    assert [await storage.queue(f"orders-{shard}").depth() for shard in range(3)] == [1, 1, 1]


async def test_gates_and_flags_of_one_name_are_one(storage):
    passing = asyncio.create_task(storage.gate("sale").wait())
    await storage.gate("sale").open(by="test")
    assert (await asyncio.wait_for(passing, 5)).epoch == 1
    assert not await storage.flag("day").get_flag()
    await storage.flag("day").set_flag(True)
    assert await storage.flag("day").get_flag()
    assert not await storage.flag("day", container="others").get_flag()


async def test_numbers_go_on_where_the_last_generator_stopped(storage):
    first = storage.sequence("orders", range_size=10)
    assert await asyncio.to_thread(first.next_id) == 1
    await asyncio.to_thread(first.close)
    second = storage.sequence("orders", range_size=10)
    assert await asyncio.to_thread(second.next_id) == 2
    await asyncio.to_thread(second.close)


async def test_one_leads_one_holds_the_mutex_and_two_the_semaphore(storage):
    led = []

    async def lead(term):
        led.append((term.holder, term.epoch))

    for name in ("a", "b"):
        await storage.election("close", identity=name).run(lead)
    assert led == [("a", 1), ("b", 2)]
    async with storage.mutex("stock"):
        assert await storage.mutex("stock", identity="other").try_acquire() is None
    printers = [storage.semaphore("printers", 2, identity=name) for name in "abc"]
    held = [await printer.try_acquire() for printer in printers]
    assert [each is not None for each in held] == [True, True, False]


async def test_jobs_run_on_their_schedule(storage):
    worker = Worker("shop", storage=storage, **OPTIONS)
    ran = asyncio.Event()

    @worker.every("1s", lead="jobs")
    async def job(run):
        ran.set()

    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(ran.wait(), 10)
    worker.stop()
    await running


async def test_sagas_batches_and_bulk_writes_end(storage):
    saga = storage.saga("refund", input=str)

    @saga.step
    async def pay(context):
        return context.input

    def collect(*arguments):
        return {"seen": True}

    pipeline: Pipeline = storage.pipeline(
        "night", lambda source, skip=0: iter([1, 2][skip:]), lambda item: item * 10, collect
    )
    worker = Worker("shop", storage=storage, **OPTIONS)
    for listener in (saga.listener(), pipeline.initiators(), pipeline.processors(), pipeline.controllers()):
        worker.add(listener)
    running = asyncio.create_task(worker.run())
    await saga.start("r1", "42.00")
    assert (await asyncio.wait_for(saga.wait("r1", poll_seconds=0.01), 10)).state == "done"
    await pipeline.start("n1", None)
    async with asyncio.timeout(20):
        while (await pipeline.status("n1")).state != "complete":
            await asyncio.sleep(0.01)
    worker.stop()
    await running
    rows = [Upsert((f"p{n}", "r"), {"n": n}) for n in range(3)]
    bulk = storage.bulk()
    running = asyncio.create_task((listener := bulk.listener()).run())
    assert await bulk.write("b1", "stock", rows) > 0
    await listener.stop()
    await running
    assert [(await storage.table("stock").read((f"p{n}", "r")))["n"] for n in range(3)] == [0, 1, 2]
