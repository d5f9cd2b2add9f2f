"""Calls that a type checker must report: misspelt and mistyped options, one a line, marked `# wrong`. Never run.

tests/unit/core/test_typed_calls.py holds that mypy reports each marked line and no other.
"""

from __future__ import annotations

import msgspec

from coordinator import (
    GateConfig,
    IdleBackoff,
    LocalProcessDriver,
    QueueConfig,
    RetryPolicy,
    ScalingPolicy,
    SequenceConfig,
    Storage,
    Term,
    Worker,
    requeue_poison,
)


class Order(msgspec.Struct):
    item: str
    cents: int


async def task(term: Term) -> None: ...


async def handler(order: Order) -> None: ...


storage = Storage.from_env()
Storage.from_env(confg=None)  # wrong
Storage.from_env(config="kennel-")  # wrong
Storage.from_connection_string("…", prefix="kennel-")  # wrong
Storage.from_account_url("…", clok=None)  # wrong
Storage.from_account_url("…", 7)  # wrong

orders = storage.sequence("orders")
storage.sequence("orders", range=1000)  # wrong
storage.sequence("orders", range_size="1000")  # wrong
storage.sequence(7)  # wrong
storage.sequence("orders", contaner="uniqueids")  # wrong
orders.next_ids("10")  # wrong
text: str = orders.next_id()  # wrong
SequenceConfig(range_sise=1000)  # wrong

gate = storage.gate("start")
storage.gate("start", polling_seconds=2.5)  # wrong
storage.gate("start", config=QueueConfig())  # wrong
storage.gate("start", identity=7)  # wrong
gate.open(bye="olga")  # wrong
gate.open(by="olga", share="0.1")  # wrong
gate.close(by="olga", reson="stock check")  # wrong
gate.wait(timeout="5")  # wrong
GateConfig(poll="fast")  # wrong
storage.flag("go", conatiner="flags")  # wrong

election = storage.election("month-end")
storage.election("month-end", identitty="node-7")  # wrong
storage.election("month-end", identity=7)  # wrong
storage.election("month-end", lease_second=15)  # wrong
election.run("close_the_books")  # wrong
storage.mutex("stock", lease_second=15)  # wrong
storage.semaphore("printers")  # wrong
storage.semaphore("printers", "3")  # wrong

queue = storage.queue("orders-in", type=Order)
storage.queue("orders-in", typ=Order)  # wrong
storage.queue("orders-in", type=Order, items_per_message=5)  # wrong
storage.queue("orders-in", config=GateConfig())  # wrong
queue.put(Order("ticket", 4200), dealy=5)  # wrong
queue.put(Order("ticket", 4200), delay="5")  # wrong
queue.put("ticket")  # wrong
queue.listener(handler, task=range(5))  # wrong
queue.listener(handler, tasks=5)  # wrong
queue.listener(handler, retries=5)  # wrong
storage.sharded_queue("orders", shard=4)  # wrong
RetryPolicy(attempt=5)  # wrong
IdleBackoff(maximum="60")  # wrong
requeue_poison(queue, maximum=5)  # wrong

storage.saga("cancel", timeout=5)  # wrong
storage.saga("cancel", Order, timeout_seconds="5")  # wrong
storage.pipeline("billing", handler, handler, handler, chunk=500)  # wrong
storage.table(7)  # wrong

worker = Worker("billing")
Worker("billing", stop="20")  # wrong
Worker(7)  # wrong
worker.gate("start", identitty="x")  # wrong
worker.sequence("orders", range_sizes=1000)  # wrong
worker.listen("orders-in", gates=gate)  # wrong
worker.listen("orders-in", gate="start")  # wrong
worker.listen("orders-in", tasks=(0, 51))  # wrong
worker.lead("month-end", healthy=None)  # wrong
worker.every("5m", led="month-end")  # wrong
worker.every("5m", lead="month-end", missed="all")  # wrong
ScalingPolicy(maximum_instances="20")  # wrong
LocalProcessDriver(7)  # wrong
