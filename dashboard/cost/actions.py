"""What requests cost, and what they may cost a day."""

from __future__ import annotations

import time

import msgspec
from django.db import transaction

from coordinator.errors import ConfigurationError
from dashboard.core import prices as pricing
from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import Actor
from dashboard.core.prices import PriceSettings
from dashboard.models import Pricing

TARGET = "prices"
LONGEST = {"as_of": 40, "source": 200}


def set_prices(actor: Actor, wanted: PriceSettings, *, reason: str = "") -> PriceSettings:
    """Save prices and a daily budget; all processes use them within seconds; they stay until they are changed again."""
    with audited(actor, "cost.prices", TARGET, reason) as act:
        for name, longest in LONGEST.items():
            if len(getattr(wanted.prices, name)) > longest:
                raise ActionFailed(f"{name} has more than {longest} characters.")
        try:
            pricing.checked(wanted)
        except ConfigurationError as error:
            raise ActionFailed(f"The prices were not changed: {error}.") from error
        with transaction.atomic():
            act.before = _described(pricing.refresh())
            Pricing.objects.update_or_create(
                pk=1,
                defaults={
                    "prices": msgspec.json.encode(pricing.changed(wanted.prices)).decode(),
                    "per_day": wanted.per_day,
                    "by": actor.name,
                    "at": time.time(),
                },
            )
        act.after = _described(now := pricing.refresh())
    return now


def reset_prices(actor: Actor, *, reason: str = "") -> PriceSettings:
    """Back to the prices and the budget of the environment; harmless if they are used already."""
    with audited(actor, "cost.prices", TARGET, reason) as act:
        act.before = _described(pricing.refresh())
        Pricing.objects.all().delete()
        act.after = _described(now := pricing.refresh())
    return now


def _described(known: PriceSettings) -> str:
    return msgspec.json.encode({"prices": known.prices, "per_day": known.per_day}).decode()
