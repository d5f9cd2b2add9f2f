"""What outlives a restart of the dashboard: which workers there were, how they ended, and the newest release of each gate.

1. A worker is noted when it connects, and each minute while it is connected, by the process that it is connected to.
2. Its end is noted with its last report: "stopped" if it had said so, else "lost".
3. A process that starts expects the workers that were not noted to have ended. Those that do not connect are lost.
4. Rows older than `KEPT_DAYS` are removed.
5. Of a lost worker the last number that it said it had issued of each range is kept for longer: accountants ask for it.

The newest release of each gate is noted once a second while it changes, and read at the start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

import msgspec
from django.db import transaction

from coordinator.realtime.protocol import Hello, WorkerState
from dashboard.live.presence import Fate
from dashboard.live.releases import ReleaseNews
from dashboard.models import LastIssued, PastRelease, PastWorker

log = logging.getLogger(__name__)

KEPT_DAYS = 30
DAY_SECONDS = 86_400.0
AT_ONCE = 500
MOST_WORKERS = 20_000
"""Of a fleet that starts a new process for each job the newest are kept."""
LAST_ISSUED_DAYS, MOST_LAST_ISSUED = 400, 100_000
"""Of a lost worker's ranges: a year, and the time to make its statement (5)."""
MOST_BYTES, SHOWN_THINGS = 16_384, (30, 10, 0)
"""Of one report; and how many gates, listeners, elections and sequences are left of one that is longer."""


class PastWorkerView(msgspec.Struct, frozen=True):
    """A worker process that ended, with what it last reported. `ended` is "stopped" or "lost"."""

    ended: str
    last_seen: float
    hello: Hello


def save_workers(source: str, fates: Mapping[str, Fate]) -> None:
    """Keep what is new of these workers (1, 2)."""
    PastWorker.objects.bulk_create(
        [
            PastWorker(
                source=source,
                instance=instance,
                name=fate.hello.worker,
                token=fate.token,
                ended=fate.ended,
                seen_at=fate.seen_at,
                report=_kept(fate.hello),
            )
            for instance, fate in fates.items()
        ],
        batch_size=AT_ONCE,
        update_conflicts=True,
        unique_fields=["source", "instance"],
        update_fields=["name", "token", "ended", "seen_at", "report"],
    )
    LastIssued.objects.bulk_create(
        [
            LastIssued(
                sequence=status.name,
                first=status.first,
                owner=fate.hello.worker,
                pid=fate.hello.pid,
                last_issued=status.last_issued,
                at=fate.seen_at,
            )
            for fate in fates.values()
            if fate.ended == "lost"
            for status in fate.hello.state.sequences
            if 0 < status.first <= status.last_issued
        ],
        batch_size=AT_ONCE,
        ignore_conflicts=True,
    )


def _kept(hello: Hello) -> str:
    """The report as it is kept: of a long one the first things of each kind."""
    text = msgspec.json.encode(hello)
    for most in SHOWN_THINGS:
        if len(text) <= MOST_BYTES:
            break
        state = hello.state
        short = WorkerState(
            mode=state.mode,
            gates=state.gates[:most],
            listeners=state.listeners[:most],
            elections=state.elections[:most],
            sequences=state.sequences[:most],
            cpu_seconds=state.cpu_seconds,
            memory_bytes=state.memory_bytes,
        )
        text = msgspec.json.encode(msgspec.structs.replace(hello, state=short))
    return text.decode()


def still_there(source: str, instances: Iterable[str], at: float) -> None:
    """These workers are connected (1)."""
    names = list(instances)
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        PastWorker.objects.filter(source=source, instance__in=part, ended="").update(seen_at=at)


def expected(source: str) -> dict[str, Fate]:
    """The workers that were not noted to have ended (3)."""
    rows = PastWorker.objects.filter(source=source, ended="")
    found = ((row, _report(row)) for row in rows)
    return {row.instance: Fate(hello, row.seen_at, row.token) for row, hello in found if hello is not None}


def ended(source: str, *, before: float | None = None, limit: int = 50) -> list[PastWorkerView]:
    """The workers that ended, the newest first; those last seen `before` a moment."""
    rows = PastWorker.objects.filter(source=source).exclude(ended="")
    if before is not None:
        rows = rows.filter(seen_at__lt=before)
    found = ((row, _report(row)) for row in rows.order_by("-seen_at")[:limit])
    return [PastWorkerView(row.ended, row.seen_at, hello) for row, hello in found if hello is not None]


def one(source: str, instance: str) -> PastWorkerView | None:
    """What is kept of one worker process; "lost" if it is not noted to have ended."""
    row = PastWorker.objects.filter(source=source, instance=instance).first()
    hello = _report(row) if row is not None else None
    if row is None or hello is None:
        return None
    return PastWorkerView(row.ended or "lost", row.seen_at, hello)


def lost_since(source: str, at: float) -> int:
    """How many worker processes ended since then without saying so."""
    return PastWorker.objects.filter(source=source, ended="lost", seen_at__gte=at).count()


def _report(row: PastWorker) -> Hello | None:
    try:
        return msgspec.json.decode(row.report, type=Hello)
    except (msgspec.DecodeError, RecursionError) as error:  # another release wrote it
        log.info("What is kept of the worker %s cannot be read: %s", row.name, error)
        return None


@transaction.atomic
def save_releases(source: str, news: Iterable[ReleaseNews]) -> None:
    """Keep these releases; a newer one of the same gate stays."""
    for each in news:
        rows = PastRelease.objects.filter(source=source, gate=each.gate)
        body, at = msgspec.json.encode(each).decode(), time.time()
        if not rows.filter(epoch__lte=each.epoch).update(epoch=each.epoch, at=at, news=body):
            PastRelease.objects.bulk_create(
                [PastRelease(source=source, gate=each.gate, epoch=each.epoch, at=at, news=body)],
                ignore_conflicts=True,
            )


def releases(source: str) -> list[ReleaseNews]:
    """The newest release of each gate."""
    found = []
    for row in PastRelease.objects.filter(source=source):
        try:
            found.append(msgspec.json.decode(row.news, type=ReleaseNews))
        except (msgspec.DecodeError, RecursionError) as error:
            log.info("What is kept of the release of %s cannot be read: %s", row.gate, error)
    return found


def forget_old() -> int:
    """Remove what is older than `KEPT_DAYS` (4), and the oldest of too many workers; returns how many rows."""
    oldest = time.time() - KEPT_DAYS * DAY_SECONDS
    workers, _ = PastWorker.objects.filter(seen_at__lt=oldest).delete()
    gates, _ = PastRelease.objects.filter(at__lt=oldest).delete()
    edge = PastWorker.objects.order_by("-seen_at").values_list("seen_at", flat=True)[
        MOST_WORKERS : MOST_WORKERS + 1
    ]
    beyond = 0
    if limit := edge.first():
        beyond, _ = PastWorker.objects.filter(seen_at__lte=limit).delete()
    words_at = LastIssued.objects.order_by("-at").values_list("at", flat=True)
    beyond_words = words_at[MOST_LAST_ISSUED : MOST_LAST_ISSUED + 1].first() or 0.0
    since = max(time.time() - LAST_ISSUED_DAYS * DAY_SECONDS, beyond_words)
    words, _ = LastIssued.objects.filter(at__lte=since).delete()
    return int(workers + gates + beyond + words)
