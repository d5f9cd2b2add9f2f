"""A worker that prices a batch of transactions every ten minutes, and opens each with a saga: something to watch.

``python -m coordinator run examples.nightly:worker``. One transaction in 2,500 fails at first, as if its tariff were not
there yet: the batch ends with failures, and *Retry failed items* on the Batches page completes it.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from coordinator import Saga, SagaContext, Worker
from coordinator.leadership.term import Term
from examples import billing

TRANSACTIONS = int(os.environ.get("NIGHTLY_TRANSACTIONS", "12000"))
EVERY_SECONDS = float(os.environ.get("NIGHTLY_EVERY_SECONDS", "600"))
WORK_SECONDS = float(os.environ.get("NIGHTLY_WORK_SECONDS", "0.005"))
SLA_SECONDS = 300.0

worker = Worker("nightly")
_refused: set[int] = set()


def price(one: billing.Transaction) -> billing.Charge:
    time.sleep(WORK_SECONDS)
    if one.id % 2500 == 1234 and one.id not in _refused:
        _refused.add(one.id)
        raise LookupError(f"customer {one.customer} has no tariff for {one.kind} yet")
    return billing.price(one)


nights = worker.storage.pipeline(
    "nightly",
    billing.split,
    price,
    billing.add,
    item=billing.Transaction,
    result=billing.Charge,
    combine=billing.combine,
    reporter=billing.report,
    chunk_items=100,
)
opening: Saga[str] = worker.storage.saga("open-night", input=str)
worker.add(nights.initiators())
worker.add(nights.processors(tasks=range(1, 3)))
worker.add(nights.controllers())
worker.add(opening.listener(tasks=range(1, 2)))


@opening.step
async def lock_accounts(context: SagaContext[str]) -> str:
    return f"accounts of {context.input} are locked"


@opening.step
async def announce(context: SagaContext[str]) -> str:
    await asyncio.sleep(1.0)
    return f"{context.input} is announced"


@worker.lead("nightly")
async def start_nights(term: Term) -> None:
    """Start a batch now and then; its name makes repetitions harmless."""
    while True:
        slot = int(time.time() // EVERY_SECONDS)
        name = time.strftime("%Y-%m-%d-%H%M", time.gmtime(slot * EVERY_SECONDS))
        source: dict[str, Any] = {"transactions": TRANSACTIONS, "seed": slot}
        await nights.start(name, source, sla_seconds=SLA_SECONDS, expected_items=TRANSACTIONS)
        await opening.start(name, name)
        await asyncio.sleep(10)
