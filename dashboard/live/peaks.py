"""The highest epoch of each gate, kept in the database: storage cannot say that it was restored."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction

from coordinator.storage import Storage
from dashboard.live.releases import Peak
from dashboard.models import GatePeak


def source_of(storage: Storage) -> str:
    """What these gates are gates of."""
    return f"{storage.endpoints.account}/{storage.config.prefix}"


def load(source: str) -> dict[str, Peak]:
    """All that were ever seen."""
    return {row.name: Peak(row.epoch, row.back_since) for row in GatePeak.objects.filter(source=source)}


@transaction.atomic
def save(source: str, peaks: Mapping[str, Peak]) -> None:
    """Keep these, but never lower what another process kept."""
    known = load(source)
    GatePeak.objects.bulk_create(
        (GatePeak(source=source, name=name) for name in peaks if name not in known), ignore_conflicts=True
    )
    for name, peak in peaks.items():
        if known.get(name) != peak:
            rows = GatePeak.objects.filter(source=source, name=name, epoch__lte=peak.epoch)
            rows.update(epoch=peak.epoch, back_since=peak.since)
