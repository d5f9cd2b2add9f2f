"""What the README's worker sells."""

from __future__ import annotations

import msgspec


class Order(msgspec.Struct):
    item: str
    cents: int


def sell(number: int, order: Order) -> None:
    """Say which number the order got; a real shop would insert both in its database."""
    print(f"order {number}: {order.item} for {order.cents / 100:.2f}", flush=True)
