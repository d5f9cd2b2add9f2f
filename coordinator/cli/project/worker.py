"""PROJECT sells orders, once an operator has opened the gate."""

import msgspec

from coordinator import Worker


class Order(msgspec.Struct):
    item: str
    cents: int


worker = Worker("PROJECT")
numbers = worker.sequence("orders")


@worker.listen("orders-in", gate=worker.gate("start"), tasks=range(0, 11))
async def sell(order: Order) -> None:
    print(f"Sold {order.item} for {order.cents / 100:.2f}: order {numbers.next_id()}", flush=True)
