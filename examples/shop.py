"""A ticket shop beside the orders, so that every page of the demo has something that moves.

``python -m coordinator run examples.shop:worker``, twice: then leaders have somebody to hand over to. One leader changes prices
and counts the stock, and gives the lead away after a few minutes. Refunds are sagas: some fail and are rolled back, and now and
then a rollback gets stuck and is repaired. Some price changes come too early for their show: they wait in poison until somebody
requeues them. A flash sale opens for half the workers, then for all, and closes by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from contextlib import suppress

import msgspec

from coordinator import Reject, RetryPolicy, SagaContext, Worker
from coordinator.backoff import Backoff
from coordinator.errors import KennelError
from coordinator.leadership.every import Run
from coordinator.leadership.term import Term
from coordinator.queues.requeue import requeue_poison

PACE = float(os.environ.get("SHOP_PACE", "1"))
"""How many times as fast everything happens; the tests use 20."""
PRICE_SECONDS, TERM_SECONDS = 2.0 / PACE, 240.0 / PACE
EARLY_SECONDS, POISON_EVERY, MOST_POISON = 90.0 / PACE, 40, 3
REFUND_SECONDS = 20.0 / PACE
REPAIR_SECONDS = max(8.0, 45.0 / PACE)  # a try that is repeated waits a second or two, at any pace
SALE_SECONDS, SALE_LASTS_SECONDS, SALE_ORDERS = 150.0 / PACE, 60.0 / PACE, 40
LEFT_ALONE_SECONDS = 240.0 / PACE
SHOWS = ("Swan Lake", "The Tempest", "Don Giovanni", "Aida", "Hamlet", "Carmen")


class PriceChange(msgspec.Struct):
    show: str
    cents: int
    on_sale_at: float = 0.0


class FlashOrder(msgspec.Struct):
    show: str


class Refund(msgspec.Struct):
    show: str
    cents: int
    bank_back_at: float = 0.0
    desk_back_at: float = 0.0


worker = Worker("shop")
storage = worker.storage
changes = storage.queue("price-changes", type=PriceChange)
flash_orders = storage.queue("flash-orders", type=FlashOrder)
flash_sale = worker.gate("flash-sale")
orders_gate = storage.gate("start-order-processing")
numbers = worker.sequence("price-changes", range_size=50)
tickets = worker.sequence("flash-tickets", range_size=20)
refunds = storage.saga("refund", input=Refund)
worker.add(refunds.listener(tasks=range(1, 3)))
QUICK = Backoff(base_seconds=0.5 / PACE, cap_seconds=1.0 / PACE)


@worker.listen("price-changes", tasks=range(1, 4), retries=RetryPolicy(attempts=1))
async def change_price(change: PriceChange) -> None:
    if change.on_sale_at > time.time():
        raise Reject(f"{change.show} is not on sale yet")
    numbers.next_id()
    await asyncio.sleep(0.2)


@worker.listen("flash-orders", gate=flash_sale, tasks=range(1, 4))
async def sell(order: FlashOrder) -> None:
    tickets.next_id()
    await asyncio.sleep(1.0 / PACE)


@refunds.step(attempts=2, backoff=QUICK)
async def return_ticket(context: SagaContext[Refund]) -> str:
    return f"a ticket of {context.input.show} is back"


@return_ticket.compensate
async def return_to_customer(context: SagaContext[Refund]) -> None:
    if time.time() < context.input.desk_back_at:
        raise RuntimeError("the ticket desk does not answer")


@refunds.step(attempts=2, backoff=QUICK)
async def pay_back(context: SagaContext[Refund]) -> str:
    if time.time() < context.input.bank_back_at:
        raise RuntimeError("the bank does not answer")
    return f"{context.input.cents / 100:.2f} paid back"


@worker.lead("prices", again="campaign")
async def change_prices(term: Term) -> None:
    """For a few minutes; then another worker leads."""
    ends = time.monotonic() + TERM_SECONDS
    for turn in itertools.count():
        change = PriceChange(random.choice(SHOWS), random.randrange(1500, 19_000, 50))
        if turn % POISON_EVERY == POISON_EVERY // 2:
            change.on_sale_at = time.time() + EARLY_SECONDS
        with suppress(KennelError):  # a user who plays with the demo may stop its storage
            await changes.put(change)
            if turn % POISON_EVERY == 0 and await changes.poison.depth() >= MOST_POISON:
                await requeue_poison(changes, limit=MOST_POISON - 1)
        await asyncio.sleep(PRICE_SECONDS * random.uniform(0.5, 1.5))
        if time.monotonic() > ends:
            return


@worker.lead("refunds", again="campaign")
async def refund(term: Term) -> None:
    """Every third refund fails and is rolled back; every ninth gets stuck on its way back, and is repaired."""
    ends = time.monotonic() + TERM_SECONDS * 1.3
    while time.monotonic() < ends:
        now = time.time()
        slot = int(now // REFUND_SECONDS)
        late = now + REPAIR_SECONDS
        fails, sticks = slot % 3 == 0, slot % 9 == 0
        with suppress(KennelError):
            await refunds.start(
                f"refund-{slot}",
                Refund(random.choice(SHOWS), 4200, late if fails else 0.0, late if sticks else 0.0),
            )
            await repair(slot)
        await asyncio.sleep(REFUND_SECONDS)


async def repair(slot: int) -> None:
    """As an operator would: roll back again what is stuck, once the desk answers."""
    for earlier in range(slot - 20, slot):
        if earlier % 9:
            continue
        with suppress(KennelError):
            progress = await refunds.read(f"refund-{earlier}")
            if progress.state == "stuck" and time.time() > earlier * REFUND_SECONDS + 2 * REPAIR_SECONDS:
                await refunds.retry(f"refund-{earlier}", by="shop")


@worker.lead("flash-sales", again="campaign")
async def hold_flash_sales(term: Term) -> None:
    ends = time.monotonic() + TERM_SECONDS * 1.7
    while time.monotonic() < ends:
        with suppress(KennelError):
            await flash_orders.put(*(FlashOrder(random.choice(SHOWS)) for _ in range(SALE_ORDERS)))
            until = time.time() + SALE_LASTS_SECONDS
            await flash_sale.open(by="shop", reason="flash sale, first half", share=0.5, until=until)
            await asyncio.sleep(SALE_LASTS_SECONDS / 3)
            await flash_sale.open(by="shop", reason="flash sale for all", until=until)
            await unleash_if_left_alone()
        await asyncio.sleep(SALE_SECONDS - SALE_LASTS_SECONDS / 3)


async def unleash_if_left_alone() -> None:
    """Release the orders of a demo whose visitor only looks: every page is to move."""
    held = await orders_gate.read()
    if (held.state, held.by) == ("closed", "demo") and time.time() - held.changed_at > LEFT_ALONE_SECONDS:
        await orders_gate.open(by="shop", reason="nobody pressed Unleash for minutes", epoch=held.epoch)


@worker.every("1m", lead="stock")
async def count_stock(run: Run) -> None:
    await storage.queue("stock-counts", type=str).put(f"stock at {run.scheduled_at:.0f}")


@worker.listen("stock-counts", tasks=range(1, 2))
async def report_stock(count: str) -> None:
    await asyncio.sleep(0.5)
