"""What requests cost: a price table that operators may edit, what a request costs, and a daily budget. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from coordinator.azure.metering import Meter, Request
from coordinator.bounds import Figure, Remark
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import ConfigurationError

DAY_SECONDS = 86_400.0


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices for 10,000 requests. The defaults are those of a general-purpose v2 account, hot tier, locally redundant:
    check them.

    Attributes:
        queue: Any request to a queue.
        blob_write: A write of a blob or a block, or the creation of a container.
        blob_read: A read of a blob.
        blob_list: A list of blobs.
        table: Any request to a table.
        as_of: When the prices were read.
        source: Where.
        currency: Their currency.
        blob_other: Any other request to a blob: for its lease, metadata, tags or properties.
        instance_hour: An hour of one instance of a pool (default 0: not known, so that its cost is not shown).

    Raises:
        ConfigurationError: A price is out of bounds.
    """

    queue: Figure = 0.004
    blob_write: Figure = 0.055
    blob_read: Figure = 0.0044
    blob_list: Figure = 0.055
    table: Figure = 0.00036
    as_of: Remark = "2025-06"
    source: Remark = "azure.microsoft.com/pricing/details/storage, LRS, hot, US regions"
    currency: Remark = "USD"
    blob_other: Figure = 0.0044
    instance_hour: Figure = 0.0

    def __post_init__(self) -> None:
        for name in ("queue", "blob_write", "blob_read", "blob_list", "table", "blob_other"):
            if not 0 <= getattr(self, name) <= 1000:
                raise ConfigurationError(f"the price of {name} must be 0 to 1,000 for 10,000 requests")
        if not 0 <= self.instance_hour <= 1000:
            raise ConfigurationError("the price of an instance must be 0 to 1,000 an hour")


DEFAULT_PRICES = Prices()
_BLOB_WRITES = ("Put", "Append", "Create")
_FREE = ("DeleteBlob", "DeleteContainer")


def price_of(request: Request, prices: Prices = DEFAULT_PRICES) -> float:
    """What one such request costs."""
    operation = request.operation
    if request.service == "queue":
        each = prices.queue
    elif request.service == "table":
        each = prices.table
    elif operation in _FREE:
        each = 0.0
    elif operation.startswith("List"):
        each = prices.blob_list
    elif operation.startswith(_BLOB_WRITES):
        each = prices.blob_write
    elif operation == "GetBlob":
        each = prices.blob_read
    else:
        each = prices.blob_other
    return each / 10_000


@dataclass(frozen=True)
class Budget:
    """Money a day. Past it idle polling may slow down; work never does.

    Attributes:
        per_day: The budget, in the currency of the `Prices`.
        warn_share: Share of it from which a warning is due (default 0.8).
        slow_idle_polling: Whether idle polling slows down past the budget (default False).
        slowest_seconds: Longest pause of slowed polling (default 60).

    Raises:
        ConfigurationError: A value is out of bounds.
    """

    per_day: float
    warn_share: float = 0.8
    slow_idle_polling: bool = False
    slowest_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.per_day <= 0 or not 0 < self.warn_share <= 1 or self.slowest_seconds < 1:
            raise ConfigurationError(
                "a budget needs per_day > 0, 0 < warn_share <= 1 and slowest_seconds >= 1, got "
                f"{self.per_day}, {self.warn_share}, {self.slowest_seconds}"
            )

    def verdict(self, spent_today: float) -> str:
        """Compare the budget with what was spent.

        Args:
            spent_today: Money since midnight, UTC.

        Returns:
            "ok", "warn" or "over".
        """
        if spent_today > self.per_day:
            return "over"
        return "warn" if spent_today > self.warn_share * self.per_day else "ok"

    def idle_seconds(self, spent_today: float, usual: float) -> float:
        """The pause between two polls of an idle queue.

        Args:
            spent_today: Money since midnight, UTC.
            usual: The pause within the budget, in seconds.

        Returns:
            Seconds: as usual, or stretched by how far the budget is exceeded.
        """
        if not self.slow_idle_polling or spent_today <= self.per_day:
            return usual
        return min(max(usual, self.slowest_seconds), usual * spent_today / self.per_day)


class Spending:
    """What this process has spent since midnight (UTC). It knows nothing of the time before it started.

    Args:
        meter: Counts the requests: `storage.meter`.
        clock: The clock, for tests.
        prices: The prices.
    """

    def __init__(self, meter: Meter, *, clock: Clock = SYSTEM_CLOCK, prices: Prices = DEFAULT_PRICES) -> None:
        self._meter, self._clock, self._prices = meter, clock, prices
        self._day = -1
        self._before = 0.0

    def today(self) -> float:
        """Money since midnight."""
        total = sum(
            number * price_of(request, self._prices) for request, number in self._meter.snapshot().items()
        )
        day = int(self._clock.time() // DAY_SECONDS)
        if day != self._day:
            self._before = 0.0 if self._day < 0 else total
            self._day = day
        return total - self._before
