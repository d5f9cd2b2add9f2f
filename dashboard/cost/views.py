"""Cost: requests and money, and what polling would have cost; the prices and the daily budget."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe
from msgspec.structs import replace

from coordinator.cost import Prices
from coordinator.errors import ConfigurationError
from dashboard.core import prices as pricing
from dashboard.core.prices import PriceSettings
from dashboard.cost.actions import reset_prices, set_prices
from dashboard.pages.views import act, requires, show, text

KINDS = {
    "queue": "Queue operations",
    "blob_write": "Blob writes",
    "blob_read": "Blob reads",
    "blob_list": "Blob lists",
    "blob_other": "Other blob operations (leases, metadata, tags)",
    "table": "Table operations",
}


class PriceRow(NamedTuple):
    """One price as the page shows it; `typed` is what its field holds."""

    name: str
    kind: str
    price: float
    default: float
    typed: str


@require_safe
@requires("page.view")
def cost(request: HttpRequest) -> HttpResponse:
    return _page(request)


@require_POST
@requires("cost.prices")
def prices(request: HttpRequest) -> HttpResponse:
    """Save prices and budget, or (`reset`) use those of the environment again."""
    back, reason = f"{reverse('cost')}#prices", text(request, "reason")
    if text(request, "reset"):
        done = "Default prices and budget restored."
        return act(request, lambda actor: reset_prices(actor, reason=reason), done, back=back)
    try:
        wanted = _read(request)
    except (ValueError, ConfigurationError) as error:
        messages.error(request, f"The prices were not changed: {error}.")
        return _page(request, status=422)
    done = "Prices and budget saved."
    return act(request, lambda actor: set_prices(actor, wanted, reason=reason), done, back=back)


def _page(request: HttpRequest, *, status: int = 200) -> HttpResponse:
    now, defaults = pricing.refresh(), pricing.defaults()
    typed = request.POST

    def shown(name: str, value: object) -> str:
        # No exponent: "0.00001" is what people type.
        plain = f"{value:.12f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value or "")
        return typed.get(name, plain)

    rows = [
        PriceRow(name, str(kind), getattr(now.prices, name), getattr(defaults.prices, name), "")
        for name, kind in KINDS.items()
    ]
    return show(
        request,
        "cost/cost.html",
        "cost",
        status=status,
        pricing=now,
        defaults=defaults,
        rows=[row._replace(typed=shown(row.name, row.price)) for row in rows],
        typed={
            "as_of": shown("as_of", now.prices.as_of),
            "source": shown("source", now.prices.source),
            "per_day": shown("per_day", now.per_day),
            "instance_hour": shown("instance_hour", now.prices.instance_hour or None),
        },
    )


def _read(request: HttpRequest) -> PriceSettings:
    figures: dict[str, Any] = {name: _number(request, name, str(kind)) for name, kind in KINDS.items()}
    if text(request, "instance_hour"):
        figures["instance_hour"] = _number(request, "instance_hour", "Instance hour")
    table = Prices(**figures, as_of=text(request, "as_of"), source=text(request, "source"))
    if not table.as_of or not table.source:
        raise ValueError("enter the date and the source of the prices")
    budget = text(request, "per_day")
    wanted = PriceSettings(replace(table, currency=pricing.current_prices().prices.currency))
    return pricing.checked(
        replace(wanted, per_day=_number(request, "per_day", "Daily budget") if budget else None)
    )


def _number(request: HttpRequest, name: str, label: str) -> float:
    value = text(request, name, 24)
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{label}: {value!r} is not a number such as 0.004") from None
