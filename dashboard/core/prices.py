"""The current prices and daily budget: those that operators stored, else those of the environment.

Every process reads the stored ones again every two seconds (housekeeping) and whenever somebody looks at the cost, so all
follow a change within seconds. Asking for them does no I/O.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import msgspec
from django.conf import settings

from coordinator.cost import Budget, Prices
from coordinator.errors import ConfigurationError
from dashboard.models import Pricing

log = logging.getLogger(__name__)

MOST_A_DAY = 1_000_000.0


class PriceSettings(msgspec.Struct, frozen=True):
    """Dollars for 10,000 requests, and the budget of a day (None: none). `by` and `at`: who stored them; "" the environment."""

    prices: Prices
    per_day: float | None = None
    by: str = ""
    at: float | None = None

    @property
    def budget(self) -> Budget | None:
        return Budget(self.per_day) if self.per_day else None


def changed(table: Prices) -> dict[str, Any]:
    """What of a table differs from the defaults: only that is stored, so that who saves a budget does not keep the prices
    of that day for ever."""
    usual = msgspec.to_builtins(defaults().prices)
    return {name: value for name, value in msgspec.to_builtins(table).items() if value != usual[name]}


_stored: PriceSettings | None = None


@cache
def parsed(prices: str, per_day: float) -> PriceSettings:
    """Prices and budget as the settings give them; raises `ConfigurationError` naming the fault."""
    try:
        table = msgspec.json.decode(prices, type=Prices)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"KENNEL_PRICES is not a table of prices: {error}") from error
    return checked(PriceSettings(table, per_day or None))


def checked(wanted: PriceSettings) -> PriceSettings:
    """The same; raises `ConfigurationError` for a budget that is none."""
    if wanted.per_day is not None and not 0 < wanted.per_day <= MOST_A_DAY:
        raise ConfigurationError(
            f"a daily budget is more than 0 and at most {MOST_A_DAY:,.0f} dollars, not {wanted.per_day:g}"
        )
    return wanted


def defaults() -> PriceSettings:
    """What counts when nothing is stored."""
    return parsed(settings.PRICES, settings.DAILY_BUDGET)


def current_prices() -> PriceSettings:
    """As last read."""
    return _stored or defaults()


def refresh() -> PriceSettings:
    """Read what is stored: one request to the database."""
    global _stored
    row = Pricing.objects.filter(pk=1).first()
    if row is None:
        _stored = None
        return defaults()
    try:
        own = msgspec.json.decode(row.prices, type=dict[str, Any])
        table = msgspec.convert(msgspec.to_builtins(defaults().prices) | own, Prices)
        _stored = checked(PriceSettings(table, row.per_day, row.by, row.at))
    except (msgspec.DecodeError, msgspec.ValidationError, ConfigurationError) as error:
        log.warning("The stored prices cannot be read, the environment's count: %s", error)
        _stored = None
    return current_prices()
